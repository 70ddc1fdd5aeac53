"""The searches as users call them: a pure algorithm each, and its own arguments. They run nothing themselves.

The fields of a search are the arguments of its algorithm, by the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro_spark.tune.algorithms.fixed import GridAlgorithm, RandomAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm
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

    _algorithm = GridAlgorithm
    epochs: int


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

    _algorithm = RandomAlgorithm
    num_trials: int
    epochs: int


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class TPESearch(ModelSearch):
    """Train configurations that Hyperopt's TPE proposes, each with what is known from the earlier ones.

    Args:
        num_trials: How many configurations are proposed.
        epochs: How many epochs each trial is trained for.
        max_concurrent: How many trials are trained at a time: fewer learn more from each other, more keep the workers
            busy. Defaults to None: twice the number of workers; with `fuse` eight for each worker, but no more than a
            quarter of the trials.

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

    _algorithm = TPEAlgorithm
    num_trials: int
    epochs: int


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class Hyperband(ModelSearch):
    """Hyperband: brackets of many short and few long trials, of which the best are trained on.

    Args:
        max_epochs: How many epochs the best trials are trained for in all.
        eta: One trial in `eta` goes on to the next rung, with `eta` times as many epochs. Defaults to 3.

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

    _algorithm = HyperbandAlgorithm
    max_epochs: int
    eta: int = 3


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class ASHA(ModelSearch):
    """Asynchronous successive halving: a trial goes on as soon as it is among the best of its rung.

    Args:
        num_trials: How many configurations are drawn.
        max_epochs: How many epochs a trial is trained for in all, if it passes every rung.
        eta: The best one in `eta` of a rung goes on, with `eta` times as many epochs. Defaults to 3.
        min_epochs: How many epochs every trial is trained for at least. Defaults to 1.
        max_concurrent: How many trials are trained at a time. Defaults to None: twice the number of workers; with
            `fuse` eight for each worker, but no more than a quarter of the trials.

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

    _algorithm = ASHAAlgorithm
    num_trials: int
    max_epochs: int
    eta: int = 3
    min_epochs: int = 1


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class PBT(ModelSearch):
    """Population-based training: the worst trials go on from the weights of the best, with changed hyperparameters.

    Args:
        population: How many trials are trained side by side; at least 2.
        epochs: How many epochs each of them is trained for.
        perturb_every: After how many epochs a trial is compared with the others. Defaults to 1.
        quantile: The fraction of the population that counts as worst, and as best; above 0, at most 0.5. Defaults to
            0.25.
        perturb: The names of the hyperparameters that may change while a model is trained. Defaults to None: those that
            are not whole numbers, names or dicts, which may shape the model.

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

    _algorithm = PBTAlgorithm
    population: int
    epochs: int
    perturb_every: int = 1
    quantile: float = 0.25
    perturb: Sequence[str] | None = None
