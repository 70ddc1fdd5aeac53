"""Whether a unit kills its workers, or they die of something else. PURE.

Workers also die without a unit's fault: machines are preempted, other processes use up their memory. A unit is taken
for the cause only when such deaths do not explain it any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cerebro_spark.events import Settings
from cerebro_spark.scheduling.records import Kill, WorkerRecord

# A unit is the cause if its workers died by chance with less than this probability. Runs have up to a million units.
_BY_CHANCE = math.log(1e-6)
# The prior for a new cluster: in three units of a hundred the worker dies.
_PRIOR_DEATHS, _PRIOR_UNITS = 0.6, 20.0
# No unit is tried more often than this, whatever explains the deaths.
_MOST = 10
# Workers of one host that die within this many seconds have the same cause.
_TOGETHER = 10.0


@dataclass(slots=True)
class Deaths:
    """How often workers die on this cluster: `units` succeeded, and `innocent` deaths were in one that did so later."""

    units: int = 0
    innocent: int = 0

    def record_success(self, kills: Iterable[Kill]) -> None:
        """A unit succeeded in the end, after these workers had died while they ran it."""
        self.units += 1
        self.innocent += sum(not kill.explained for kill in kills)

    def is_cause(self, settings: Settings, kills: Sequence[Kill], hosts: Collection[str], open_cases: int) -> bool:
        """Whether a unit that lost its worker this often in a row is the cause.

        `hosts` are the present ones. `open_cases` counts the other trials that lost one worker so far: a unit that
        kills its workers has soon lost more than one.
        """
        if settings.kill_rule == "in a row":
            return len(kills) >= settings.max_kills
        if len(kills) >= max(_MOST, settings.max_kills):
            return True
        counted = [kill.host for kill in kills if not kill.explained]
        if len({*hosts, *counted}) == 1:  # the only machine cannot have been taken away
            return len(counted) > settings.max_kills
        if settings.kill_rule == "chance" and not self._beyond_chance(len(counted), open_cases):
            return False
        # Deaths on one host only, where there are others, are rather the host's fault: more of them are needed.
        return len(counted) >= (settings.max_kills if len(set(counted)) > 1 else 2 * settings.max_kills + 1)

    def _beyond_chance(self, deaths: int, open_cases: int) -> bool:
        """Whether this many deaths in a row are more than chance explains on this cluster."""
        others = self.innocent + open_cases
        careful = others + math.sqrt(others)  # one standard deviation above what was seen
        rate = (careful + _PRIOR_DEATHS) / (self.units + careful + _PRIOR_UNITS)
        return deaths * math.log(rate) <= _BY_CHANCE + 1e-9


def has_host_failed(host: str, workers: Iterable[WorkerRecord], now: float) -> bool:
    """Whether all of several workers of a host died just now, while another host has live workers.

    With no other host there is nothing to compare with.
    """
    workers = list(workers)
    there = [worker for worker in workers if worker.host == host and (worker.live or now - worker.lost_at <= _TOGETHER)]
    return (
        len(there) > 1
        and not any(worker.live for worker in there)
        and any(worker.live and worker.host != host for worker in workers)
    )


def died_with_host(kill: Kill, host: str, now: float) -> bool:
    """Whether this was one of the deaths with which the host just failed."""
    return kill.host == host and now - kill.at <= _TOGETHER
