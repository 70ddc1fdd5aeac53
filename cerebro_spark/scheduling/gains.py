"""By how much units become faster when several of one kin are computed at once, as it is learnt. PURE.

A gain is the logarithm of a ratio. The first width at which a kin is measured is what its other widths are compared
with, so that it does not matter whether that was one trial or many.
"""

from __future__ import annotations

import math


class Gains:
    """The gains by kin and width.

    >>> gains = Gains()
    >>> gains.settle("mlp", 1, 0.0)
    >>> gains.settle("mlp", 4, 1.0)
    >>> gains.log("mlp", 2), gains.log("mlp", 8)
    (0.5, 1.0)
    """

    def __init__(self) -> None:
        self._log: dict[str, dict[int, float]] = {}
        self._seen: dict[tuple[str, int], float] = {}

    def is_known(self, kin: str, width: int) -> bool:
        """Whether units of this kin were measured at this width, or costs are given for it."""
        return width in self._log.get(kin, ())

    def is_new(self, kin: str) -> bool:
        """Whether no unit of this kin was ever measured, and no cost given."""
        return kin not in self._log

    def log(self, kin: str, width: int) -> float:
        """Return the gain; between widths that are known it grows with the logarithm of the width."""
        known = self._log.get(kin)
        if not known:
            return 0.0
        if width in known:
            return known[width]
        below = max((other for other in known if other < width), default=None)
        above = min((other for other in known if other > width), default=None)
        if below is None or above is None:
            return known[next(other for other in (below, above) if other is not None)]
        share = math.log(width / below) / math.log(above / below)
        return known[below] + share * (known[above] - known[below])

    def settle(self, kin: str, width: int, log: float) -> None:
        """Take this for the gain from now on. That of the first width of a kin will never change."""
        first = kin not in self._log
        self._log.setdefault(kin, {})[width] = log
        self._seen[kin, width] = math.inf if first else 1.0

    def weigh(self, kin: str, width: int) -> float:
        """Count a measurement, and return which share of its deviation the gain has to take."""
        self._seen[kin, width] += 1.0
        return 1.0 / self._seen[kin, width]

    def move(self, kin: str, width: int, by: float) -> None:
        """Correct the gain."""
        self._log[kin][width] += by
