"""Tree-structured Parzen estimators of Hyperopt, asked for one trial at a time, so that each finished trial counts.

It keeps its own history of points and losses, and gives it to Hyperopt each time. No object of Hyperopt is stored, and
no process-wide randomness is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cerebro_spark.checks import check_at_least
from cerebro_spark.tune.algorithms.base import SpaceLike
from cerebro_spark.tune.algorithms.fixed import FixedEpochs
from cerebro_spark.tune.libraries import needed_by
from cerebro_spark.tune.spaces.dimensions import Dimension, LogUniform, Normal, QLogUniform, Stepped, Uniform
from cerebro_spark.tune.spaces.space import Point, Space
from cerebro_spark.types import Objective, TrialId

# Hyperopt's own number of random trials at the start; fewer where there are few trials in all.
_MOST_STARTUP = 20
# A little less than half a step, so that rounding never leaves the range.
_NEARLY_HALF = 0.4999


class TPEAlgorithm(FixedEpochs):
    """Train `num_trials` configurations for `epochs` epochs each, every one proposed with what is known by then.

    A trial counts by its best epoch. The first `startup` trials to finish are drawn at random: a third, at most 20.

    >>> from cerebro_spark.tune import hp
    >>> search = TPEAlgorithm({"x": hp.uniform(-1, 1)}, Objective("loss", "min"), epochs=1, num_trials=30)
    >>> search.startup
    10
    """

    # TPE learns from finished trials only, so few may be unfinished at a time.
    default_concurrent = 4

    def __init__(
        self,
        space: SpaceLike,
        objective: Objective,
        epochs: int,
        num_trials: int,
        seed: int = 0,
        max_concurrent: int | None = None,
        startup: int | None = None,
    ) -> None:
        load_hyperopt()
        if startup is not None:
            check_at_least("startup", startup, 1, "the first trial has nothing to learn from")
        super().__init__(space, objective, epochs, num_trials, seed, max_concurrent)
        self.startup = max(1, min(_MOST_STARTUP, num_trials // 3)) if startup is None else startup
        self._points: list[Point] = []
        self._losses: dict[int, float | None] = {}

    def _point(self, number: int) -> Point:
        if len(self._losses) < self.startup or not self.space.dimensions:
            point = self._draw(number)
        else:
            seed = int(np.random.SeedSequence([self._seed, 1, number]).generate_state(1)[0])
            point = self.space.fitted(suggestion(self.space, self._points, self._losses, seed))
        self._points.append(point)
        return point

    def _rested(self, trial: TrialId) -> None:
        loss = self._loss(self.standing(trial).best)
        self._losses[self._numbers[trial]] = loss if loss == loss else None

    def _left(self, trial: TrialId, failed: bool) -> None:
        number = self._numbers[trial]
        if failed:
            self._losses[number] = None
        elif number not in self._losses:
            self._rested(trial)


def suggestion(space: Space, points: list[Point], losses: Mapping[int, float | None], seed: int) -> dict[str, float]:
    """Return what Hyperopt would try next, by path. A trial without a loss, failed or unfinished, counts as worst."""
    hyperopt = load_hyperopt()
    domain = hyperopt.Domain(None, space.translated(_leaf, hyperopt.hp.choice))
    trials = hyperopt.Trials()
    documents = [point_document(number, point, space.dimensions) for number, point in enumerate(points)]
    trials.insert_trial_docs([_finished(document, losses.get(document["tid"])) for document in documents])
    trials.refresh()
    new = hyperopt.tpe.suggest([len(points)], domain, trials, seed, n_startup_jobs=0, verbose=False)
    values: Mapping[str, list[Any]] = new[0]["misc"]["vals"]
    return {path: float(found[0]) for path, found in values.items() if len(found)}


def load_hyperopt() -> Any:
    """Return Hyperopt, which is imported only where TPE is used. Raises MissingDependency if it cannot be imported."""
    with needed_by("TPESearch", "hyperopt", "hyperopt"):
        import hyperopt
        import hyperopt.tpe
    return hyperopt


def point_document(tid: int, point: Mapping[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """Return a point as a new document of Hyperopt. It has all labels: the algorithms expect the unused ones too."""
    from hyperopt.fmin import generate_trial

    document: dict[str, Any] = generate_trial(tid, point)
    for label in labels:
        document["misc"]["idxs"].setdefault(label, [])
        document["misc"]["vals"].setdefault(label, [])
    return document


def _finished(document: dict[str, Any], loss: float | None) -> dict[str, Any]:
    result = {"status": "fail"} if loss is None else {"status": "ok", "loss": loss}
    return {**document, "state": 2, "result": result}


def _leaf(path: str, dimension: Dimension) -> Any:
    """Return a hyperparameter of Hyperopt. Whole numbers have an order, which its `randint` would ignore."""
    hp = load_hyperopt().hp
    if isinstance(dimension, Normal):
        return hp.normal(path, dimension.mu, dimension.sigma)
    if isinstance(dimension, Stepped):
        low, high = (dimension.first - _NEARLY_HALF) * dimension.step, (dimension.last + _NEARLY_HALF) * dimension.step
        if isinstance(dimension, QLogUniform):
            return hp.qloguniform(path, math.log(max(low, dimension.low)), math.log(high), dimension.step)
        return hp.quniform(path, low, high, dimension.step)
    if isinstance(dimension, LogUniform):
        return hp.loguniform(path, math.log(dimension.low), math.log(dimension.high))
    assert isinstance(dimension, Uniform)
    return hp.uniform(path, dimension.low, dimension.high)
