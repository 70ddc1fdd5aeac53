"""The size of groups that the scheduler chooses, against every size that is fixed, and against Cerebro's rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.groups.runs import automatic, makespan, ring_efficiency
from cerebro_spark.simulation import CNN_COSTS, Scenario

SETTINGS = 240
# A setting takes the mean of so many runs: one run of few trials is luck by some percent.
SEEDS = 3
GOAL_EACH, GOAL_MEAN = 1.05, 1.01
SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload: its number, the scenario without groups, and the share that exchanging gradients takes."""

    number: int
    scenario: Scenario
    overhead: float

    @property
    def seeds(self) -> range:
        return range(100 * self.number, 100 * self.number + SEEDS)


def draw(number: int) -> Setting:
    """Draw a setting: 4 to 16 workers, up to twice as many trials, alike or as the CNNs of the Cerebro paper.

    >>> draw(3).scenario.trials, draw(3).overhead
    (23, 0.05)
    """
    rng = np.random.default_rng([5, number])
    workers = int(rng.choice([4, 8, 16]))
    trials = int(rng.integers(1, 2 * workers + 1))
    overhead = float(rng.choice([0.01, 0.05, 0.2, 0.6]))
    mixed = rng.random() < 0.6
    costs = rng.choice(CNN_COSTS, trials) / np.mean(CNN_COSTS) if mixed else np.ones(trials)
    scenario = Scenario(
        trials=trials,
        workers=workers,
        epochs=2,
        costs=tuple(costs.tolist()),
        jitter=0.05,
        known_costs=True,
        efficiency=ring_efficiency(overhead, workers),
    )
    return Setting(number, scenario, overhead)


def measure(setting: Setting) -> dict[str, Any]:
    """Return what the setting takes: with each fixed size, with the scheduler's own, and by Cerebro's rule."""
    scenario = setting.scenario
    fixed = {size: makespan(replace(scenario, group=size), setting.seeds) for size in SIZES if size <= scenario.workers}
    best = min(fixed, key=fixed.__getitem__)
    few = scenario.trials <= scenario.workers / 2
    return {
        "number": setting.number,
        "trials": scenario.trials,
        "workers": scenario.workers,
        "alike": len(set(scenario.costs)) == 1,
        "overhead": setting.overhead,
        "best_size": best,
        "own": makespan(automatic(scenario), setting.seeds) / fixed[best],
        "single": fixed[1] / fixed[best],
        "cerebro": fixed[scenario.workers if few else 1] / fixed[best],
    }


def run() -> list[dict[str, Any]]:
    """Measure all settings, and print what they come to."""
    found = [measure(draw(number)) for number in range(SETTINGS)]
    print(
        f"\n## The rule: {SETTINGS} settings, makespan over that of the best fixed size, mean of {SEEDS} seeds each\n"
    )
    print("| sizes | mean | 95 % below | worst | goal |")
    print("|---|---|---|---|---|")
    goal = f"mean {GOAL_MEAN}, each {GOAL_EACH}"
    for name, key, wanted in (
        ("the scheduler's", "own", goal),
        ("all workers if trials are at most half as many (Cerebro), else 1", "cerebro", "-"),
        ("always 1", "single", "-"),
    ):
        ratios = np.array([row[key] for row in found])
        print(f"| {name} | {ratios.mean():.3f} | {np.quantile(ratios, 0.95):.3f} | {ratios.max():.3f} | {wanted} |")
    missed = [row for row in found if row["own"] > GOAL_EACH]
    best = sum(row["own"] <= 0.95 for row in found)
    print(f"\nabove {GOAL_EACH}: {len(missed)}; at most 0.95, where trials get sizes of their own: {best}")
    for row in missed:
        print(row)
    return found
