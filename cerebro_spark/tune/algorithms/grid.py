"""Every configuration of a space, in order. It draws nothing and learns nothing."""

from __future__ import annotations

from cerebro_spark.tune.algorithms.base import FixedEpochs, SpaceLike
from cerebro_spark.tune.spaces.space import Point, Space
from cerebro_spark.types import Objective


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
