"""Searches that ask for each trial once, for the same number of epochs: all of a grid, or random draws.

They learn nothing from reports; a subclass may, by the points that it chooses.
"""

from __future__ import annotations

from abc import abstractmethod

from cerebro_spark.checks import check_at_least
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike
from cerebro_spark.tune.spaces.space import Point, Space
from cerebro_spark.types import Objective, Work


class FixedEpochs(Algorithm):
    """Ask for each trial once, in order, for the same number of epochs. A subclass defines the points (`_point`).

    Args:
        space: The space, or the dict to make one from.
        objective: What counts as better.
        epochs: How many epochs each trial is trained for.
        num_trials: How many trials there will be.
        seed: The seed of all random choices.
        max_concurrent: How many trials are trained at a time; None for the default of the algorithm.
    """

    _asked = 0

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

    @abstractmethod
    def _point(self, number: int) -> Point:
        """Return the point of a trial, given by its number."""

    def _asked_all(self) -> bool:
        return self._asked == len(self._ids)

    def _next(self) -> Work:
        number, self._asked = self._asked, self._asked + 1
        return Work(self._ids[number], self.space.params(self._point(number)), self._epochs)


class GridAlgorithm(FixedEpochs):
    """Train all configurations for `epochs` epochs; the last name of the space changes fastest.

    >>> from cerebro_spark.tune import hp
    >>> search = GridAlgorithm({"lr": hp.choice([0.1, 0.2]), "layers": 3}, Objective("loss", "min"), epochs=5)
    >>> search.ask()
    Work(trial='t0', params={'lr': 0.1, 'layers': 3}, until_epoch=5, warm_start=None)
    """

    def __init__(self, space: SpaceLike, objective: Objective, epochs: int, max_concurrent: int | None = None) -> None:
        space = space if isinstance(space, Space) else Space(space)
        super().__init__(space, objective, epochs, space.size, max_concurrent=max_concurrent)

    def _point(self, number: int) -> Point:
        return self.space.numbered(number)


class RandomAlgorithm(FixedEpochs):
    """Train `num_trials` configurations, drawn independently, for `epochs` epochs each.

    >>> from cerebro_spark.tune import hp
    >>> search = RandomAlgorithm({"lr": hp.loguniform(1e-4, 1)}, Objective("loss", "min"), epochs=5, num_trials=10)
    >>> 1e-4 <= search.ask().params["lr"] <= 1
    True
    """

    def _point(self, number: int) -> Point:
        return self._draw(number)
