"""The searches as users call them: a pure algorithm each, and its own arguments. They run nothing themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.grid import GridAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.random import RandomAlgorithm
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm, check_hyperopt
from cerebro_spark.tune.estimator import ModelSearch
from cerebro_spark.tune.signatures import explained


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class GridSearch(ModelSearch):
    """Train every configuration of a space of choices, each for the same number of epochs.

    Args:
        epochs: How many epochs each trial is trained for.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

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

    epochs: int

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return GridAlgorithm(self.space, self.objective, self.epochs, max_concurrent)


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class RandomSearch(ModelSearch):
    """Train configurations that are drawn from the space at random, each for the same number of epochs.

    Args:
        num_trials: How many configurations are drawn.
        epochs: How many epochs each trial is trained for.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

    >>> from cerebro_spark import hp
    >>> space = {"lr": hp.loguniform(1e-4, 1e-1), "batch_size": hp.choice([32, 64])}
    >>> search = RandomSearch(
    ...     lambda params: None, space=space, store="/tmp/runs", metric="val_auc", num_trials=20, epochs=3,
    ...     framework="torch",
    ... )
    >>> search.num_trials, search.seed
    (20, 0)
    """

    num_trials: int
    epochs: int

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return RandomAlgorithm(self.space, self.objective, self.epochs, self.num_trials, self.seed, max_concurrent)


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class TPESearch(ModelSearch):
    """Train configurations that Hyperopt's TPE proposes, each with what is known from the earlier ones.

    Args:
        num_trials: How many configurations are proposed.
        epochs: How many epochs each trial is trained for.
        max_concurrent: How many trials are trained at a time: fewer learn more from each other, more keep the workers
            busy. Default: twice the number of workers.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.
        MissingDependency: Hyperopt is not installed.

    >>> from cerebro_spark import hp
    >>> search = TPESearch(
    ...     lambda params: None, space={"lr": hp.loguniform(1e-4, 1e-1)}, store="/tmp/runs", metric="val_auc",
    ...     num_trials=30, epochs=3, framework="torch",
    ... )
    >>> search.objective.mode
    'max'
    """

    num_trials: int
    epochs: int

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        check_hyperopt()
        concurrent = max_concurrent or 2 * workers
        return TPEAlgorithm(self.space, self.objective, self.epochs, self.num_trials, self.seed, concurrent)


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class Hyperband(ModelSearch):
    """Hyperband: brackets of many short and few long trials, of which the best are trained on.

    Args:
        max_epochs: How many epochs the best trials are trained for in all.
        eta: One trial in `eta` goes on to the next rung, with `eta` times as many epochs. Default: 3.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

    >>> from cerebro_spark import hp
    >>> search = Hyperband(
    ...     lambda params: None, space={"lr": hp.loguniform(1e-4, 1e-1)}, store="/tmp/runs", metric="val_auc",
    ...     max_epochs=27, framework="torch",
    ... )
    >>> search.eta
    3
    """

    max_epochs: int
    eta: int = 3

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return HyperbandAlgorithm(self.space, self.objective, self.max_epochs, self.eta, self.seed, max_concurrent)


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class ASHA(ModelSearch):
    """Asynchronous successive halving: a trial goes on as soon as it is among the best of its rung.

    Args:
        num_trials: How many configurations are drawn.
        max_epochs: How many epochs a trial is trained for in all, if it passes every rung.
        eta: The best one in `eta` of a rung goes on, with `eta` times as many epochs. Default: 3.
        min_epochs: How many epochs every trial is trained for at least. Default: 1.
        max_concurrent: How many trials are trained at a time. Default: twice the number of workers.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

    >>> from cerebro_spark import hp
    >>> search = ASHA(
    ...     lambda params: None, space={"lr": hp.loguniform(1e-4, 1e-1)}, store="/tmp/runs", metric="val_auc",
    ...     num_trials=50, max_epochs=27, framework="torch",
    ... )
    >>> search.eta, search.min_epochs
    (3, 1)
    """

    num_trials: int
    max_epochs: int
    eta: int = 3
    min_epochs: int = 1

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return ASHAAlgorithm(
            self.space,
            self.objective,
            self.num_trials,
            self.max_epochs,
            self.eta,
            self.min_epochs,
            self.seed,
            max_concurrent or 2 * workers,
        )


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class PBT(ModelSearch):
    """Population-based training: the worst trials go on from the weights of the best, with changed hyperparameters.

    Args:
        population: How many trials are trained side by side; at least 2.
        epochs: How many epochs each of them is trained for.
        perturb_every: After how many epochs a trial is compared with the others. Default: 1.
        quantile: The fraction of the population that counts as worst, and as best; above 0, at most 0.5. Default: 0.25.
        perturb: The names of the hyperparameters that may change while a model is trained. Default: those that are not
            whole numbers, names or dicts, which may shape the model.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

    >>> from cerebro_spark import hp
    >>> search = PBT(
    ...     lambda params: None, space={"lr": hp.loguniform(1e-4, 1e-1)}, store="/tmp/runs", metric="val_auc",
    ...     population=8, epochs=20, perturb_every=4, framework="torch",
    ... )
    >>> search.quantile
    0.25
    """

    population: int
    epochs: int
    perturb_every: int = 1
    quantile: float = 0.25
    perturb: Sequence[str] | None = None

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        return PBTAlgorithm(
            self.space,
            self.objective,
            self.population,
            self.epochs,
            self.perturb_every,
            self.quantile,
            self.perturb,
            self.seed,
            max_concurrent,
        )
