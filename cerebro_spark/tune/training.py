"""A model function with its options, checked, and what is made of them: a data set and a recipe. It runs nothing."""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import Any

from cerebro_spark import runs
from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.base import is_spark_frame
from cerebro_spark.data.prepare import prepare
from cerebro_spark.data.prepared_as import check_prepared_as
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.recipe import Recipe, check_functions
from cerebro_spark.result import Result
from cerebro_spark.search import Search
from cerebro_spark.spark_session import active_session
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import Framework, TrainerSpec, detect_framework
from cerebro_spark.tune import arguments
from cerebro_spark.tune.objective import objective_for
from cerebro_spark.tune.options import ModelFn, TrainingOptions


class Training:
    """The part that all runs have in common, whichever search or library proposes the trials.

    Args:
        model_fn: Called as `model_fn(params)`; returns a compiled Keras model or a `cs.TorchModel`.
        options: The other arguments.

    Raises:
        ConfigurationError: An argument can never be right, whatever the data.
    """

    def __init__(self, model_fn: ModelFn, options: TrainingOptions) -> None:
        self.hooks = Hooks(model_fn, options.input_fn, options.train_fn, options.eval_fn)
        arguments.check_functions_fit(self.hooks)
        self.objective = objective_for(options.metric, options.mode)
        self.framework = _chosen_framework(model_fn, options.framework)
        arguments.check_options(options)
        self._options = options

    def recipe(self, search: Search, data: Any, store: Store, backend: Backend) -> Recipe:
        """Return the recipe of a run over `data`, which is prepared if it is not a Dataset yet."""
        options = self._options
        self.check(data, store, backend)
        hooks, group = self.hooks.with_modules(), arguments.group_of(options.workers_per_trial)
        dataset = self.dataset(data, store, backend)
        arguments.check_group(options.workers_per_trial, backend.num_workers, len(dataset.train))
        return Recipe(
            search,
            self.objective,
            dataset,
            TrainerSpec(hooks, options.seed, self.framework, options.resources or Resources()),
            replicas=options.replicas,
            max_kills=options.max_kills,
            kind=options.kind,
            unit_timeout=options.unit_timeout,
            fuse=arguments.fused_trials(options.fuse),
            group=group.size,
            group_auto=group.auto,
        )

    def check(self, data: Any, store: Store, backend: Backend) -> None:
        """Raise ConfigurationError for all that can be seen to be wrong before the data is read or a worker started."""
        check_functions(self.hooks)
        arguments.check_replicas(self._options.replicas, backend.num_workers)
        partitions = self._options.partitions or backend.num_workers
        if not isinstance(data, Dataset):
            arguments.check_group(self._options.workers_per_trial, backend.num_workers, partitions)
        _check_shared(store, backend)
        self.check_data(data)

    def dataset(self, data: Any, store: Store, backend: Backend) -> Dataset:
        """Return `data` if it is a Dataset, or else a data set that is prepared from it in `store`."""
        if isinstance(data, Dataset):
            return data
        options = self._options
        assert options.features is not None
        assert options.label is not None
        runs.check_writable(store)
        return prepare(
            data,
            store=store,
            features=options.features,
            label=options.label,
            validation=options.validation,
            partitions=options.partitions or backend.num_workers,
            seed=options.seed,
            weight=options.weight,
            allow_nan=options.allow_nan,
        )

    def check_data(self, data: Any) -> None:
        """Raise ConfigurationError if the options do not fit this data. None of it is read."""
        wants_validation = self.objective.metric.startswith("val_")
        if isinstance(data, Dataset):
            if wants_validation and not data.validation:
                raise ConfigurationError(
                    f"`metric` is {self.objective.metric!r}, but the data set has no validation rows: prepare it with"
                    " validation=0.2, or choose a metric without 'val_'"
                )
            asked = self._options
            check_prepared_as(data, asked.features, asked.label, asked.weight, asked.validation, asked.partitions)
            return
        if data is None:
            raise ConfigurationError("there is no data: give fit a DataFrame, or what cs.prepare returned")
        self._check_columns()
        validation = self._options.validation
        none = validation is None or (isinstance(validation, int | float) and validation == 0)
        if wants_validation and none:
            raise ConfigurationError(
                f"`metric` is {self.objective.metric!r}, but there is no validation: give validation=0.2, the name of a"
                " boolean column or a second DataFrame, or choose a metric without 'val_'"
            )

    def _check_columns(self) -> None:
        if self._options.features is None:
            raise ConfigurationError("`features` is not given: name the columns, such as features=['age', 'income']")
        if self._options.label is None:
            raise ConfigurationError("`label` is not given: name the columns, such as label='churned'")


def default_backend(data: Any = None) -> Backend:
    """Return the cluster of a Spark session, that of `data` or else the active one; without one, processes here."""
    # What else comes from Spark's modules, such as a column, is refused later.
    framed = is_spark_frame(data) and hasattr(type(data), "sparkSession")
    session = data.sparkSession if framed else active_session()
    if session is not None:
        from cerebro_spark.backend.spark import SparkBackend

        return SparkBackend(session)
    from cerebro_spark.backend.local import LocalBackend

    return LocalBackend()


def driving_thread(**options: Any) -> threading.Thread:
    """Return a thread to drive a run in. Where there is a Spark context, it has the local properties of this one."""
    if "pyspark" in sys.modules:
        from pyspark import InheritableThread, SparkContext

        if SparkContext._active_spark_context is not None:
            return InheritableThread(**options)
    return threading.Thread(**options)


def open_result(store: Store, run_id: str) -> Result:
    """Return the result of a run; where pyspark is installed it is a `pyspark.ml.Model` too."""
    if importlib.util.find_spec("pyspark") is None:
        return Result(store, run_id)
    from cerebro_spark.tune.fitted import FittedSearch

    return FittedSearch(store, run_id)


def _check_shared(store: Store, backend: Backend) -> None:
    """Workers are other processes, which cannot read the memory of this one."""
    if isinstance(backend, RemoteBackend) and store.url.startswith("memory://"):
        raise ConfigurationError(
            f"{store.url} is in the memory of this process, which workers cannot reach: use a folder, hdfs:// or s3://"
        )


def _chosen_framework(model_fn: ModelFn, framework: Framework) -> Framework:
    if framework == "auto":
        return "keras" if detect_framework(model_fn) == "keras" else "torch"
    if framework not in ("keras", "torch"):
        raise ConfigurationError(f"`framework` is {framework!r}, but must be 'auto', 'keras' or 'torch'")
    return framework
