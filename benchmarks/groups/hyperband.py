"""Hyperband (R = 81, eta = 3) on 8 workers, the real algorithm, with and without groups."""

from __future__ import annotations

from typing import Any

from benchmarks.groups.runs import linear_efficiency, ring_efficiency
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Settings
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import Search
from cerebro_spark.timeline import Timeline
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.halving import HyperbandAlgorithm
from cerebro_spark.types import Objective, Partition, Work

WORKERS, MAX_EPOCHS, ETA = 8, 81, 3
GOAL = 1.8
# Both come to 0.5 for all 8 workers.
EFFICIENCIES = {
    "every worker adds as much": linear_efficiency(1 / 7, WORKERS),
    "as around a ring": ring_efficiency(4 / 7, WORKERS),
}


class OneAfterAnother(HyperbandAlgorithm):
    """The brackets in turn, as Hyperband was published: the next one begins once the one before it is done."""

    def _next(self) -> Work | None:
        current = next((one for one in self._brackets if one.waiting or not one.complete), None)
        if current is None or not current.waiting:
            return None
        trial = current.waiting.pop(0)
        return Work(trial, self.space.params(self._draw(self._numbers[trial])), current.plan[current.rung][1])


def hyperband(kind: type[HyperbandAlgorithm], limit: int | None = None) -> HyperbandAlgorithm:
    """Return the search, with so many trials at a time."""
    space = {"lr": hp.uniform(0, 1)}
    return kind(space, Objective("loss", "min"), max_epochs=MAX_EPOCHS, eta=ETA, max_concurrent=limit)


def epochs_of(search: HyperbandAlgorithm) -> int:
    """Return how many epochs all trials train in all.

    >>> epochs_of(hyperband(HyperbandAlgorithm))
    1404
    """
    return sum(
        trials * (until - before)
        for plan in search.table
        for (trials, until), before in zip(plan, [0, *(until for _, until in plan)], strict=False)
    )


def seconds(search: Search, efficiency: tuple[float, ...], grouped: bool) -> float:
    """Return the virtual seconds of a search whose trials all take one second a unit, by 5 % more or less."""
    world = World(cost=lambda params: 1.0, jitter=0.05, efficiency=lambda params, size: efficiency[size - 1])
    backend = SimulatedBackend([SimulatedWorker(f"w{number}") for number in range(WORKERS)], world)
    partitions = tuple(Partition(f"p{number}") for number in range(WORKERS))
    settings = Settings(partitions, workers=WORKERS, group=WORKERS if grouped else 1, group_auto=grouped)
    timeline = Timeline()
    Engine(search, with_todays_rules(settings), backend, DiscardingLog(), observers=[timeline]).run()
    return timeline.end


def run() -> list[dict[str, Any]]:
    """Measure the ways in which brackets can run, and print the table."""
    print(
        f"\n## Hyperband (R = {MAX_EPOCHS}, eta = {ETA}) on {WORKERS} workers, e(8) = 0.5, nothing known beforehand\n"
    )
    print("| brackets | e(2), e(4) | single workers | groups | faster by | no worker ever idle | goal |")
    print("|---|---|---|---|---|---|---|")
    ways: tuple[tuple[str, type[HyperbandAlgorithm], int | None], ...] = (
        ("together (cs.Hyperband)", HyperbandAlgorithm, None),
        ("together, 8 trials at a time", HyperbandAlgorithm, WORKERS),
        ("one after another (as published)", OneAfterAnother, None),
    )
    found = []
    for name, kind, limit in ways:
        single = seconds(hyperband(kind, limit), EFFICIENCIES["as around a ring"], grouped=False)
        for shape, efficiency in EFFICIENCIES.items():
            grouped = seconds(hyperband(kind, limit), efficiency, grouped=True)
            most = single / epochs_of(hyperband(kind))
            found.append({"brackets": name, "shape": shape, "single": single, "grouped": grouped, "most": most})
            print(
                f"| {name} | {efficiency[1]:.2f}, {efficiency[3]:.2f} | {single:,.0f} s | {grouped:,.0f} s"
                f" | {single / grouped:.2f} x | {most:.2f} x | {GOAL} x |",
                flush=True,
            )
    return found
