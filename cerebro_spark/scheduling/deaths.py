"""Whether a unit is what kills its workers, or they die of something else. PURE.

Workers also die by themselves: machines are preempted, neighbours eat their memory. A unit is to blame only when that
does not explain it any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cerebro_spark.events import Settings
from cerebro_spark.scheduling.records import Kill, WorkerRecord

# So unlikely must it be that a unit's workers died by chance. Runs have up to a million units.
_BY_CHANCE = math.log(1e-6)
# Before anything is known of a cluster it is taken for one on which three workers in a hundred die during a unit.
_PRIOR_DEATHS, _PRIOR_UNITS = 0.6, 20.0
# Whatever explains them: nothing is tried more often than that.
_MOST = 10
# Workers of one host that die within so many seconds die of the same.
_TOGETHER = 10.0


@dataclass(slots=True)
class Deaths:
    """How workers die on this cluster: `units` went well, and `innocent` are deaths in a unit that later went well."""

    units: int = 0
    innocent: int = 0

    def record_success(self, kills: Iterable[Kill]) -> None:
        """A unit went well in the end, although these workers died of it, as it seemed."""
        self.units += 1
        self.innocent += sum(not kill.explained for kill in kills)

    def convict(self, settings: Settings, kills: Sequence[Kill], hosts: Collection[str], open_cases: int) -> bool:
        """Whether a unit that lost its worker so often in a row is the cause.

        `hosts` are those there are; `open_cases` are units of other trials that lost their worker once so far: what
        kills its workers soon has lost more of them.
        """
        if settings.kill_rule == "in a row":
            return len(kills) >= settings.max_kills
        if len(kills) >= max(_MOST, settings.max_kills):
            return True
        counted = [kill.host for kill in kills if not kill.explained]
        if len({*hosts, *counted}) == 1:  # nobody takes the only machine away from under its workers
            return len(counted) > settings.max_kills
        if settings.kill_rule == "chance" and not self._beyond_chance(len(counted), open_cases):
            return False
        # What happened on one host only, where there are others, is the host's fault rather than the unit's.
        return len(counted) >= (settings.max_kills if len(set(counted)) > 1 else 2 * settings.max_kills + 1)

    def _beyond_chance(self, deaths: int, open_cases: int) -> bool:
        """Whether so many deaths in a row are more than what happens to any unit on this cluster."""
        others = self.innocent + open_cases
        careful = others + math.sqrt(others)  # so many may be expected where so many were seen
        rate = (careful + _PRIOR_DEATHS) / (self.units + careful + _PRIOR_UNITS)
        return deaths * math.log(rate) <= _BY_CHANCE + 1e-9


def has_host_failed(host: str, workers: Iterable[WorkerRecord], now: float) -> bool:
    """Whether all workers of a host, of which there were several, died just now, and there are other hosts.

    A single host that falls with all its workers would take the driver, or all that it could be compared with, along.
    """
    workers = list(workers)
    there = [worker for worker in workers if worker.host == host and (worker.live or now - worker.lost_at <= _TOGETHER)]
    return (
        len(there) > 1
        and not any(worker.live for worker in there)
        and any(worker.live and worker.host != host for worker in workers)
    )


def died_with_host(kill: Kill, host: str, now: float) -> bool:
    """Whether this was one of the deaths with which a host just fell."""
    return kill.host == host and now - kill.at <= _TOGETHER
