"""The searches as users call them: a pure algorithm each, and what it needs to be told. They run nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from cerebro_spark.store.base import Store
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.grid import GridAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.random import RandomAlgorithm
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm, check_hyperopt
from cerebro_spark.tune.estimator import ModelFn, ModelSearch, Options
from cerebro_spark.tune.spaces.space import Space


class GridSearch(ModelSearch):
    """Every configuration of a space of choices, each for `epochs` epochs.

    >>> def model_fn(params):
    ...     import keras
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile(optimizer=keras.optimizers.SGD(params["lr"]), loss="mse")
    ...     return model
    >>> from cerebro_spark import hp
    >>> search = GridSearch(model_fn, space={"lr": hp.choice([0.1, 0.01])}, store="/tmp/runs", metric="loss", epochs=3)
    >>> search.objective.mode
    'min'
    """

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        epochs: int,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model_fn, space=space, store=store, metric=metric, **options)
        self.epochs = epochs
        self._check_algorithm()

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return GridAlgorithm(self.space, self.objective, self.epochs, max_concurrent)


class _DrawnSearch(ModelSearch):
    """What searches share that draw so many trials, each for as many epochs."""

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        epochs: int,
        num_trials: int,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model_fn, space=space, store=store, metric=metric, **options)
        self.epochs = epochs
        self.num_trials = num_trials
        self._check_algorithm()


class RandomSearch(_DrawnSearch):
    """`num_trials` configurations drawn from the space, each for `epochs` epochs."""

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        seed = self._options.get("seed", 0)
        return RandomAlgorithm(self.space, self.objective, self.epochs, self.num_trials, seed, max_concurrent)


class TPESearch(_DrawnSearch):
    """`num_trials` configurations, each proposed by hyperopt's TPE from what is known by then.

    By default twice as many trials as workers are under way: fewer learn more from each other, more keep workers busy.
    """

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        check_hyperopt()
        seed = self._options.get("seed", 0)
        concurrent = max_concurrent or 2 * workers
        return TPEAlgorithm(self.space, self.objective, self.epochs, self.num_trials, seed, concurrent)


class Hyperband(ModelSearch):
    """Hyperband: brackets of many short and few long trials, `max_epochs` at most, a share of 1 / `eta` going on."""

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        max_epochs: int,
        eta: int = 3,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model_fn, space=space, store=store, metric=metric, **options)
        self.max_epochs = max_epochs
        self.eta = eta
        self._check_algorithm()

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        seed = self._options.get("seed", 0)
        return HyperbandAlgorithm(self.space, self.objective, self.max_epochs, self.eta, seed, max_concurrent)


class ASHA(ModelSearch):
    """Asynchronous successive halving: `num_trials`, each promoted as soon as it is among the best 1 / `eta`.

    `max_epochs` is the total that a trial gets over all rungs. By default twice as many trials as workers are under
    way.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        num_trials: int,
        max_epochs: int,
        eta: int = 3,
        min_epochs: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model_fn, space=space, store=store, metric=metric, **options)
        self.num_trials = num_trials
        self.max_epochs = max_epochs
        self.eta = eta
        self.min_epochs = min_epochs
        self._check_algorithm()

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return ASHAAlgorithm(
            self.space,
            self.objective,
            self.num_trials,
            self.max_epochs,
            self.eta,
            self.min_epochs,
            self._options.get("seed", 0),
            max_concurrent or 2 * workers,
        )


class PBT(ModelSearch):
    """Population based training: every `perturb_every` epochs the worst go on from the best, with other numbers."""

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        population: int,
        epochs: int,
        perturb_every: int = 1,
        quantile: float = 0.25,
        perturb: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model_fn, space=space, store=store, metric=metric, **options)
        self.population = population
        self.epochs = epochs
        self.perturb_every = perturb_every
        self.quantile = quantile
        self.perturb = perturb
        self._check_algorithm()

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return PBTAlgorithm(
            self.space,
            self.objective,
            self.population,
            self.epochs,
            self.perturb_every,
            self.quantile,
            self.perturb,
            self._options.get("seed", 0),
            max_concurrent,
        )
