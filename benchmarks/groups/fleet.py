"""100 trials of very different lengths, as in Table 4 of FLEET (MLSys 2020), against its published totals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.groups.runs import automatic, makespan
from cerebro_spark.simulation import Scenario

# Seconds by GPUs. With fewer GPUs than these there are enough trials for all.
PUBLISHED = {80: 21891.0, 100: 18359.1, 160: 11825.2}
TRIALS, MEAN, DEVIATION = 100, 10372.2, 4178.9
# With more GPUs than trials its baseline takes as long as the longest trial: its best speed-up tells how long that is.
LONGEST = 1.92 * PUBLISHED[160]
# Images a second of the slowest trial and of the fastest.
RATES = (21, 176)
# What the goal supposes of groups of two and of four; a node has four GPUs, and no group is larger.
EFFICIENCY = (1.0, 0.6, 0.575, 0.55)
DRAWS = 2
# Its largest model, at what a modest network has.
MODEL_BYTES, BANDWIDTH = 1_190_000_000, 1e9


def lengths(seed: int) -> NDArray[np.float64]:
    """Draw the seconds of each trial on one GPU: the published mean and deviation, its longest, its range of rates.

    >>> found = lengths(0)
    >>> round(found.max()), round(found.max() / found.min(), 1)
    (22704, 8.4)
    """
    drawn: NDArray[np.float64] = np.random.default_rng(seed).normal(size=TRIALS)
    drawn = MEAN + DEVIATION * (drawn - drawn.mean()) / drawn.std()
    drawn[:] = np.clip(drawn, LONGEST * RATES[0] / RATES[1], LONGEST)
    drawn[drawn.argmax()] = LONGEST
    drawn[drawn.argmin()] = LONGEST * RATES[0] / RATES[1]
    return drawn


def scenario_of(gpus: int, seed: int) -> Scenario:
    """Return one epoch of these trials over as many partitions as GPUs, without groups; hops take time."""
    return Scenario(
        trials=TRIALS,
        workers=gpus,
        epochs=1,
        costs=tuple((lengths(seed) / gpus).tolist()),
        jitter=0.05,
        known_costs=True,
        model_bytes=MODEL_BYTES,
        bandwidth=BANDWIDTH,
        efficiency=EFFICIENCY,
    )


def run() -> list[dict[str, Any]]:
    """Measure each number of GPUs, and print the table."""
    print(f"\n## FLEET, Table 4: 100 trials, e(2) = 0.6, e(4) = 0.55, seconds; {DRAWS} draws of trials\n")
    print("| GPUs | published | single workers | groups of up to 4 | slowest draw over published | goal |")
    print("|---|---|---|---|---|---|")
    found = []
    for gpus, published in PUBLISHED.items():
        scenarios = [scenario_of(gpus, seed) for seed in range(DRAWS)]
        single = makespan(scenarios[0], [0])
        grouped = [makespan(automatic(each, most=4), [seed]) for seed, each in enumerate(scenarios)]
        row = {"gpus": gpus, "published": published, "single": single, "grouped": grouped}
        found.append(row)
        shown = ", ".join(f"{seconds:,.0f}" for seconds in grouped)
        ratio = max(grouped) / published
        print(f"| {gpus} | {published:,.0f} | {single:,.0f} | {shown} | {ratio:.2f} | below 1 |", flush=True)
    return found
