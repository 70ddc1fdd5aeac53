"""One number for several seeds, and whether two such numbers are the same. It knows nothing of what they measure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """The same number for several seeds.

    >>> Spread.of([1.0, 3.0])
    Spread(mean=2.0, low=1.0, high=3.0)
    """

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.fmean(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} - {self.high:.4f})"


def within_spread(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two means lie no further apart than the values of either lie among themselves, from lowest to highest.

    >>> within_spread([1.0, 1.2], [1.1, 1.3]), within_spread([1.0, 1.1], [3.0, 3.1])
    (True, False)
    """
    widest = max(max(values) - min(values) for values in (one, other))
    return abs(statistics.fmean(one) - statistics.fmean(other)) <= widest
