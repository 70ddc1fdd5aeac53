"""Configurations drawn at random. A draw depends on the seed and its number alone, never on what was reported."""

from __future__ import annotations

from cerebro_spark.checks import check_at_least
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike
from cerebro_spark.types import Objective, Work


class RandomAlgorithm(Algorithm):
    """Train so many configurations, drawn independently, for so many epochs.

    >>> from cerebro_spark.tune import hp
    >>> search = RandomAlgorithm({"lr": hp.loguniform(1e-4, 1)}, Objective("loss", "min"), epochs=5, num_trials=10)
    >>> 1e-4 <= search.ask().params["lr"] <= 1
    True
    """

    def __init__(
        self,
        space: SpaceLike,
        objective: Objective,
        epochs: int,
        num_trials: int,
        seed: int = 0,
        max_concurrent: int | None = None,
    ) -> None:
        check_at_least("epochs", epochs, 1)
        check_at_least("num_trials", num_trials, 1)
        super().__init__(space, objective, num_trials, seed, max_concurrent)
        self._epochs = epochs
        self._asked = 0

    def _asked_all(self) -> bool:
        return self._asked == len(self._ids)

    def _next(self) -> Work:
        number, self._asked = self._asked, self._asked + 1
        return Work(self._ids[number], self.space.params(self._draw(number)), self._epochs)
