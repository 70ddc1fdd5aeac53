"""Runs on made-up clusters, and how efficient groups are taken to be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cerebro_spark.simulation import Scenario, simulate


def ring_efficiency(overhead: float, workers: int) -> tuple[float, ...]:
    """Return the efficiencies of groups whose gradients go around a ring: each adds 2 (m - 1) / m of the overhead.

    Args:
        overhead: What it takes to send a model's gradients once, as a share of what the step of one worker takes.
        workers: The size of the largest group.

    >>> [round(share, 3) for share in ring_efficiency(0.5, 4)]
    [1.0, 0.667, 0.6, 0.571]
    """
    return tuple(1 / (1 + 2 * overhead * (size - 1) / size) for size in range(1, workers + 1))


def linear_efficiency(overhead: float, workers: int) -> tuple[float, ...]:
    """Return the efficiencies of groups for which every further worker adds the same.

    >>> linear_efficiency(1.0, 3)
    (1.0, 0.5, 0.3333333333333333)
    """
    return tuple(1 / (1 + overhead * (size - 1)) for size in range(1, workers + 1))


def makespan(scenario: Scenario, seeds: Sequence[int]) -> float:
    """Return the virtual seconds that a scenario takes, the mean over some seeds.

    >>> makespan(Scenario(trials=2, workers=2, epochs=1), seeds=[0, 1])
    2.0
    """
    return float(np.mean([simulate(scenario, seed).makespan for seed in seeds]))


def automatic(scenario: Scenario, most: int | None = None) -> Scenario:
    """Return the scenario with groups of any size up to `most`, by default all workers."""
    return replace(scenario, group=most or scenario.workers, group_auto=True)
