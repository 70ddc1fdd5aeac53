"""The times of units as products: of what is trained and of who trains it. PURE.

Logarithms of measured seconds are taken for sums of a row's and a worker's part, and fitted by least squares: exactly,
where they are such sums.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from statistics import median
from typing import TypeVar

import numpy as np

from cerebro_spark.types import WorkerId

Row = TypeVar("Row", bound=Hashable)
# Differences below this are rounding errors: products that are meant to be equal must be equal, or ties are broken
# otherwise than in the run itself.
ROUNDING = 1e-9


def fit(samples: Iterable[tuple[Row, WorkerId, float]]) -> tuple[dict[Row, float], dict[WorkerId, float]]:
    """Find the seconds of each row on an average worker, and the slowness of each worker.

    Args:
        samples: Measured seconds, by row and worker. Of several for the same pair the median counts.

    Returns:
        The seconds by row, and the slowness by worker, 1 on average. Workers that have no row in common, not even
        through others, cannot be compared: they count as equally fast.

    >>> rows, slowness = fit([("a", "w0", 1.0), ("a", "w1", 4.0), ("b", "w1", 8.0)])
    >>> round(slowness["w1"], 9), round(rows["b"], 9)
    (2.0, 4.0)
    """
    cells: dict[Row, dict[WorkerId, list[float]]] = {}
    for row, worker, seconds in samples:
        cells.setdefault(row, {}).setdefault(worker, []).append(max(seconds, 1e-9))
    medians = {row: {worker: median(found) for worker, found in by.items()} for row, by in cells.items()}
    counts = {row: {worker: len(found) for worker, found in by.items()} for row, by in cells.items()}
    slowness = _slowness(medians, counts)
    return {row: _level(medians[row], counts[row], slowness) for row in medians}, slowness


def _slowness(
    medians: Mapping[Row, Mapping[WorkerId, float]], counts: Mapping[Row, Mapping[WorkerId, int]]
) -> dict[WorkerId, float]:
    """Solve for the workers' parts; those of the rows are eliminated, as there are many more of them."""
    workers = sorted({worker for by in medians.values() for worker in by})
    place = {worker: index for index, worker in enumerate(workers)}
    matrix, right = np.zeros((len(workers), len(workers))), np.zeros(len(workers))
    for row, by in medians.items():
        if len(by) < 2:
            continue  # it compares nobody
        at = [place[worker] for worker in by]
        count = np.array([counts[row][worker] for worker in by], dtype=np.float64)
        logs = np.array([math.log(seconds) for seconds in by.values()])
        matrix[at, at] += count
        matrix[np.ix_(at, at)] -= np.outer(count, count) / count.sum()
        right[at] += count * (logs - (count * logs).sum() / count.sum())
    # The level is not determined, also not that of one group of workers against another: the least solution has none.
    found = np.linalg.lstsq(matrix, right, rcond=None)[0] if workers else right
    return {worker: _exact(math.exp(found[index]), 1.0) for worker, index in place.items()}


def _level(by: Mapping[WorkerId, float], counts: Mapping[WorkerId, int], slowness: Mapping[WorkerId, float]) -> float:
    """Return the seconds of a row on an average worker."""
    alone = [seconds / slowness[worker] for worker, seconds in by.items()]
    logs = sum(counts[worker] * math.log(own) for worker, own in zip(by, alone, strict=True))
    return _exact(math.exp(logs / sum(counts.values())), median(alone))


def _exact(value: float, candidate: float) -> float:
    """Return the candidate if the value is the same but for rounding."""
    return candidate if abs(value - candidate) <= ROUNDING * abs(candidate) else value
