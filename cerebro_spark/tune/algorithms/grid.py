"""Every configuration of a space, in order. It draws nothing and learns nothing."""

from __future__ import annotations

from cerebro_spark.checks import check_at_least
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike
from cerebro_spark.tune.spaces.space import Space
from cerebro_spark.types import Objective, Work


class GridAlgorithm(Algorithm):
    """Train all configurations for so many epochs; the last name of the space changes fastest.

    >>> from cerebro_spark.tune import hp
    >>> search = GridAlgorithm({"lr": hp.choice([0.1, 0.2]), "layers": 3}, Objective("loss", "min"), epochs=5)
    >>> search.ask()
    Work(trial='t0', params={'lr': 0.1, 'layers': 3}, until_epoch=5, warm_start=None)
    """

    def __init__(self, space: SpaceLike, objective: Objective, epochs: int, max_concurrent: int | None = None) -> None:
        check_at_least("epochs", epochs, 1)
        space = space if isinstance(space, Space) else Space(space)
        super().__init__(space, objective, space.size, seed=0, max_concurrent=max_concurrent)
        self._epochs = epochs
        self._asked = 0

    def _asked_all(self) -> bool:
        return self._asked == len(self._ids)

    def _next(self) -> Work:
        number, self._asked = self._asked, self._asked + 1
        return Work(self._ids[number], self.space.params(self.space.numbered(number)), self._epochs)
