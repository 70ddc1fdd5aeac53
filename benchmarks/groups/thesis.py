"""Three small workloads of the thesis on the Cerebro platform (2023, Figures 4.1 to 4.3), against random MOP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.groups.runs import automatic, makespan
from cerebro_spark.simulation import CNN_COSTS, Scenario

DRAWS = 50


class Workload(NamedTuple):
    """A workload: its figure, how many trials on how many GPUs, the best published ratio, and the goal."""

    figure: str
    trials: int
    gpus: int
    published: float
    goal: float


WORKLOADS = (
    Workload("4.1", 6, 16, 7967 / 15926, 0.30),
    Workload("4.2", 6, 8, 5252 / 7780, 0.56),
    Workload("4.3", 10, 8, 8956 / 10172, 0.82),
)


def draw_costs(trials: int, seed: int, cnns: bool = False) -> NDArray[np.float64]:
    """Draw the seconds of a unit of each trial, which were not published: by 0.5 to 1.5, or those of 35 CNNs."""
    rng = np.random.default_rng(seed)
    return rng.choice(CNN_COSTS, trials) / np.mean(CNN_COSTS) if cnns else rng.uniform(0.5, 1.5, trials)


def ratios(workload: Workload, seed: int, cnns: bool = False) -> tuple[float, float, float]:
    """Return the makespans of groups, of no groups, and of no worker ever idle, over that of random MOP."""
    costs = draw_costs(workload.trials, seed, cnns)
    single = Scenario(
        trials=workload.trials,
        workers=workload.gpus,
        epochs=1,
        costs=tuple(costs.tolist()),
        known_costs=True,
        efficiency=(1.0,),
    )
    random = makespan(replace(single, policy="random"), [seed])
    return makespan(automatic(single), [seed]) / random, makespan(single, [seed]) / random, float(costs.sum()) / random


def run() -> list[dict[str, Any]]:
    """Measure the three workloads, and print the table."""
    print(f"\n## The thesis' workloads: makespan over random multi-GPU MOP, median of {DRAWS} draws (range)\n")
    print("| figure | trials, GPUs | unit times | groups | single workers | no worker idle | best published | goal |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for workload in WORKLOADS:
        for cnns in (False, True):
            measured = np.array([ratios(workload, seed, cnns) for seed in range(DRAWS)])
            grouped, single, ideal = np.median(measured, axis=0)
            spread = f"{measured[:, 0].min():.2f} to {measured[:, 0].max():.2f}"
            kind = "35 CNNs" if cnns else "0.5 to 1.5"
            found.append({"figure": workload.figure, "cnns": cnns, "ratios": measured.tolist()})
            print(
                f"| {workload.figure} | {workload.trials}, {workload.gpus} | {kind} | {grouped:.3f} ({spread})"
                f" | {single:.3f} | {ideal:.3f} | {workload.published:.3f} | {'-' if cnns else workload.goal} |",
                flush=True,
            )
    return found
