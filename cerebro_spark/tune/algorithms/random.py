"""Configurations drawn at random. A draw depends on the seed and its number alone, never on reports."""

from __future__ import annotations

from cerebro_spark.tune.algorithms.base import FixedEpochs
from cerebro_spark.tune.spaces.space import Point


class RandomAlgorithm(FixedEpochs):
    """Train `num_trials` configurations, drawn independently, for `epochs` epochs each.

    >>> from cerebro_spark.tune import hp
    >>> from cerebro_spark.types import Objective
    >>> search = RandomAlgorithm({"lr": hp.loguniform(1e-4, 1)}, Objective("loss", "min"), epochs=5, num_trials=10)
    >>> 1e-4 <= search.ask().params["lr"] <= 1
    True
    """

    def _point(self, number: int) -> Point:
        return self._draw(number)
