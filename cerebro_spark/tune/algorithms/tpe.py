"""Tree-structured Parzen estimators: hyperopt's, asked one by one so that it learns from every finished trial.

It keeps its own history of points and losses, and hands it to hyperopt anew each time: nothing of hyperopt's is ever
stored, and no process-wide randomness is touched.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebro_spark.checks import check_at_least
from cerebro_spark.errors import MissingDependency
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike, packed
from cerebro_spark.tune.spaces.dimensions import Dimension, LogUniform, Normal, QLogUniform, Stepped, Uniform
from cerebro_spark.tune.spaces.space import Point, Space
from cerebro_spark.types import Objective, TrialId, Work

# TPE learns from finished trials only, so it must not have too many unfinished ones.
_DEFAULT_CONCURRENT = 4
# hyperopt's own number of random trials to begin with; fewer where there are few trials in all.
_MOST_STARTUP = 20
# Just short of half a step: rounding then never leaves the range.
_NEARLY_HALF = 0.4999


class TPEAlgorithm(Algorithm):
    """Train so many configurations for so many epochs, each proposed with what is known by then.

    A trial counts by its best epoch. The first `startup` trials to finish are drawn at random: a third, at most 20.

    >>> from cerebro_spark.tune import hp
    >>> search = TPEAlgorithm({"x": hp.uniform(-1, 1)}, Objective("loss", "min"), epochs=1, num_trials=30)
    >>> search.startup
    10
    """

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
        check_at_least("epochs", epochs, 1)
        check_at_least("num_trials", num_trials, 1)
        if startup is not None:
            check_at_least("startup", startup, 1, "the first trial cannot be learnt from anything")
        limit = _DEFAULT_CONCURRENT if max_concurrent is None else max_concurrent
        super().__init__(space, objective, num_trials, seed, limit)
        self.startup = max(1, min(_MOST_STARTUP, num_trials // 3)) if startup is None else startup
        self._epochs = epochs
        self._points: list[Point] = []
        self._losses: dict[int, float | None] = {}

    def _asked_all(self) -> bool:
        return len(self._points) == len(self._ids)

    def _next(self) -> Work:
        number = len(self._points)
        self._points.append(self._proposed(number))
        return Work(self._ids[number], self.space.params(self._points[number]), self._epochs)

    def _proposed(self, number: int) -> Point:
        if len(self._losses) < self.startup or not self.space.dimensions:
            return self._draw(number)
        seed = int(np.random.SeedSequence([self._seed, 1, number]).generate_state(1)[0])
        return self.space.fitted(suggestion(self.space, self._points, self._losses, seed))

    def _rested(self, trial: TrialId) -> None:
        sign = -1.0 if self.objective.mode == "max" else 1.0
        self._losses[self._numbers[trial]] = packed(sign * self.standing(trial).best)

    def _left(self, trial: TrialId, failed: bool) -> None:
        number = self._numbers[trial]
        if failed:
            self._losses[number] = None
        elif number not in self._losses:
            self._rested(trial)


def suggestion(space: Space, points: list[Point], losses: Mapping[int, float | None], seed: int) -> dict[str, float]:
    """What hyperopt would try next, by path; trials that failed or are under way have no loss, which is the worst."""
    hyperopt = _hyperopt()
    domain = hyperopt.Domain(None, space.translated(_leaf, hyperopt.hp.choice))
    trials = hyperopt.Trials()
    documents = [_document(number, point, losses.get(number), space) for number, point in enumerate(points)]
    trials.insert_trial_docs(documents)
    trials.refresh()
    new = hyperopt.tpe.suggest([len(points)], domain, trials, seed, n_startup_jobs=0, verbose=False)
    values: Mapping[str, list[Any]] = new[0]["misc"]["vals"]
    return {path: float(found[0]) for path, found in values.items() if len(found)}


def check_hyperopt() -> None:
    """Raise MissingDependency if there is no hyperopt, which is imported only when the first trials are done."""
    if importlib.util.find_spec("hyperopt") is None:
        raise _missing("is not installed")


def _hyperopt() -> Any:
    try:
        import hyperopt
        import hyperopt.tpe
    except ImportError as error:
        raise _missing(f"cannot be imported ({error})") from error
    return hyperopt


def _missing(why: str) -> MissingDependency:
    return MissingDependency(f"TPESearch needs hyperopt, which {why}: pip install 'cerebro-spark[hyperopt]'")


def _document(number: int, point: Point, loss: float | None, space: Space) -> dict[str, Any]:
    """A finished trial as hyperopt writes it down."""
    result = {"status": "fail"} if loss is None else {"status": "ok", "loss": loss}
    misc = {
        "tid": number,
        "cmd": None,
        "workdir": None,
        "idxs": {path: [number] if path in point else [] for path in space.dimensions},
        "vals": {path: [point[path]] if path in point else [] for path in space.dimensions},
    }
    document = {"tid": number, "state": 2, "spec": None, "result": result, "misc": misc, "exp_key": None, "owner": None}
    return {**document, "version": 0, "book_time": None, "refresh_time": None}


def _leaf(path: str, dimension: Dimension) -> Any:
    """A hyperparameter in hyperopt's words. Whole numbers have an order, which its `randint` would not know."""
    hp = _hyperopt().hp
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
