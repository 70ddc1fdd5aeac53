"""What the searches that users call have in common: `search.fit(df)`. It checks, prepares and hands over.

Where pyspark is installed a search is a `pyspark.ml.Estimator`; where it is not, a plain class that does the same on a
LocalBackend.
"""

from __future__ import annotations

import importlib.util
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from cerebro_spark import runs
from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Framework
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import ColumnNames
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.recipe import Recipe, check_functions
from cerebro_spark.result import Result
from cerebro_spark.search import Search
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.choice import framework_of
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.tune import arguments
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.tune.objective import objective_for
from cerebro_spark.tune.spaces.space import Space
from cerebro_spark.tune.tracking import Tracker, Tracking

if TYPE_CHECKING or importlib.util.find_spec("pyspark") is None:
    from cerebro_spark.tune.stage import PlainStage as _Stage
else:
    from cerebro_spark.tune.estimator_stage import SearchStage as _Stage

ModelFn = Callable[[Any], Any]


class Options(TypedDict, total=False):
    """What every search takes beside `model_fn`, `space`, `store` and `metric`."""

    backend: Backend | None
    features: ColumnNames | None
    label: ColumnNames | None
    weight: str | None
    validation: Any
    partitions: int | None
    allow_nan: bool
    mode: str | None
    seed: int
    replicas: int
    max_kills: int | None
    unit_timeout: float | None
    max_concurrent: int | None
    time_budget: float | None
    patience: int | None
    target: float | None
    trackers: Sequence[Tracker]
    input_fn: Callable[..., Any] | None
    train_fn: Callable[..., Any] | None
    eval_fn: Callable[..., Any] | None
    framework: Framework
    resources: Resources
    kind: str | None
    progress: bool | None


class ModelSearch(_Stage):
    """What all searches have in common.

    `model_fn(params)` returns a compiled Keras model or a `cs.TorchModel`. `store` is where data, checkpoints and
    results go: a folder, `hdfs://`, `s3://`, anything `cs.open_store` takes. `metric` is what counts, such as
    "val_auc"; `mode`, "min" or "max", is inferred for the usual ones.

    - `backend`: where units run; the active Spark session's cluster, or two processes of this machine if there is none.
    - `features`, `label`, `weight`, `validation`, `partitions`, `allow_nan`: how a DataFrame becomes a data set; see
      `cs.prepare`.
    - `replicas`: how many workers hold each partition. `max_concurrent`: how many trials are under way at a time.
    - `max_kills`: how many workers a unit may lose in a row, on different hosts, before its trial fails; if not given,
      that goes by how often workers die by themselves. `unit_timeout`: the seconds after which a unit, or the load of a
      partition, is taken for stuck, and its worker replaced; if not given, that goes by what they usually take.
    - `time_budget` (seconds), `patience` (epochs without a new best), `target` (a value of the metric): when to stop.
    - `input_fn(batch, params)`, `train_fn(model, batches, params)`, `eval_fn(model, batches, params)`: the user's other
      functions. A batch is a dict of arrays with the keys "features", "label" and, with `weight`, "weight"; where
      `features` or `label` is a dict, with its keys instead. `input_fn` returns a batch with the same keys; the others
      return sums with their count, such as `{"loss": 12.5, "rows": 1000}`.
    - `framework`: "keras" or "torch", where the code of `model_fn` does not tell. `resources`: threads, device and
      precision of a worker.
    - `kind`: what the model puts out, where the loss does not tell; see `Result.transform`.
    - `trackers`: MLflow, TensorBoard, CSV. `progress`: a bar, or none; where somebody can see it, if not given.
    """

    def __init__(
        self,
        model_fn: ModelFn,
        *,
        space: Mapping[str, Any] | Space,
        store: Store | str,
        metric: str,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        own = inspect.signature(type(self).__init__).parameters
        arguments.check_names(type(self).__name__, options, {*Options.__annotations__, *own} - {"self", "options"})
        self.hooks = Hooks(model_fn, options.get("input_fn"), options.get("train_fn"), options.get("eval_fn"))
        arguments.check_functions_fit(self.hooks)
        self.objective = objective_for(metric, options.get("mode"))
        self.space = space if isinstance(space, Space) else Space(space)
        arguments.check_batch_sizes(self.space)
        self.framework = _framework(model_fn, options.get("framework", "auto"))
        self._store = store
        self._options = options
        arguments.check_options(options)

    def _check_algorithm(self) -> None:
        """Make the algorithm once, only to hear what it has to say about its arguments."""
        self._searching(workers=1)

    @abstractmethod
    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        """The pure algorithm behind this search."""

    # -- what users call

    def fit(
        self, dataset: Any = None, params: Any = None, *, replay: str | None = None, run_id: str | None = None
    ) -> Any:
        """Run the search on a DataFrame (Spark, pandas, dict of arrays) or a Dataset, and return its Result.

        `replay` trains a run of the same store again in its visit order: on a CPU the weights come out the same, bit
        for bit. A Dataset given beside it says in which store that run's data lies, if it has moved. `run_id` names the
        run; it gets a name of its own if not given. `params` is what Spark ML hands over: other values of
        `predictionCol`, `probabilityCol` and `rawPredictionCol`, or a list of such dicts, for as many runs. All else is
        an argument of the search.
        """
        if isinstance(params, list | tuple):
            return [self.fit(dataset, each, replay=replay, run_id=run_id) for each in params]
        if params:
            return self._with_params(params).fit(dataset, replay=replay, run_id=run_id)
        store = open_store(self._store)
        if run_id is not None:
            runs.check_free(store, run_id)
        backend = self._options.get("backend") or default_backend()
        with Tracking(self._options.get("trackers", ()), self.objective) as tracking:
            progress = self._options.get("progress")
            if replay is not None:
                data_store = dataset.store if isinstance(dataset, Dataset) else None
                run = runs.replay(store, replay, backend, run_id, [tracking], progress, data_store=data_store)
            else:
                recipe = self._recipe(dataset, store, backend)
                run = runs.execute(recipe, store, backend, run_id, [tracking], progress)
            result = self._handed_over(fitted(store, run))
            tracking.finish(result)
        return result

    def _fit(self, dataset: Any) -> Any:
        return self.fit(dataset)

    # -- from a DataFrame to a recipe

    def _recipe(self, data: Any, store: Store, backend: Backend) -> Recipe:
        options = self._options
        check_functions(self.hooks)
        arguments.check_replicas(options.get("replicas", 1), backend.num_workers)
        _check_shared(store, backend)
        self._check_data(data)
        dataset = data if isinstance(data, Dataset) else self._prepared(data, store, backend)
        return Recipe(
            self._searching(backend.num_workers),
            self.objective,
            dataset,
            self.hooks,
            seed=options.get("seed", 0),
            framework=self.framework,
            resources=options.get("resources") or Resources(),
            replicas=options.get("replicas", 1),
            max_kills=options.get("max_kills"),
            kind=options.get("kind"),
            unit_timeout=options.get("unit_timeout"),
        )

    def _prepared(self, data: Any, store: Store, backend: Backend) -> Dataset:
        options = self._options
        features, label = options.get("features"), options.get("label")
        assert features is not None
        assert label is not None
        runs.check_writable(store)
        return prepare(
            data,
            store=store,
            features=features,
            label=label,
            validation=options.get("validation"),
            partitions=options.get("partitions") or backend.num_workers,
            seed=options.get("seed", 0),
            weight=options.get("weight"),
            allow_nan=options.get("allow_nan", False),
        )

    def _check_data(self, data: Any) -> None:
        """What is wrong with the arguments for this data, before any of it is read."""
        wants_validation = self.objective.metric.startswith("val_")
        if isinstance(data, Dataset):
            if wants_validation and not data.validation:
                raise ConfigurationError(
                    f"`metric` is {self.objective.metric!r}, but the data set has no validation rows: prepare it with"
                    " validation=0.2, or choose a metric without 'val_'"
                )
            return
        if data is None:
            raise ConfigurationError("there is no data: give fit a DataFrame, or what cs.prepare returned")
        for name in ("features", "label"):
            if self._options.get(name) is None:
                raise ConfigurationError(
                    f"`{name}` is not given: name the columns, such as {name}="
                    + ("['age', 'income']" if name == "features" else "'churned'")
                )
        validation = self._options.get("validation")
        none = validation is None or (isinstance(validation, int | float) and validation == 0)
        if wants_validation and none:
            raise ConfigurationError(
                f"`metric` is {self.objective.metric!r}, but there is no validation: give validation=0.2, the name of a"
                " boolean column or a second DataFrame, or choose a metric without 'val_'"
            )

    def _searching(self, workers: int) -> Search:
        options = self._options
        algorithm = self._algorithm(options.get("max_concurrent"), workers)
        limits = {name: options.get(name) for name in ("patience", "time_budget", "target")}
        if all(limit is None for limit in limits.values()):
            return algorithm
        return Stopping(algorithm, self.objective, **limits)  # type: ignore[arg-type]


def resume(
    store: Store | str,
    run_id: str,
    *,
    backend: Backend | None = None,
    progress: bool | None = None,
    data_store: Store | str | None = None,
    take_over: bool = False,
) -> Result:
    """Go on with a run whose driver died, or that was stopped, and return its Result. A finished run stays as it is.

    A driver that was killed could not say so: its run is watched for up to 30 seconds, and refused with EventLogError
    if it turns out to live. `take_over=True` does not wait; a driver that lives ends with such an error then.

    `store` may have moved since, and may need other credentials than it did: the run, and its data if that lies in the
    same store, are read as it is opened now. Data in another store is looked for where it was, with the credentials of
    the environment; `data_store` says where it is, and is opened with the credentials that it needs.
    """
    place = open_store(store)
    runs.resume(
        place, run_id, backend or default_backend(), progress=progress, data_store=data_store, take_over=take_over
    )
    return fitted(place, run_id)


def fitted(store: Store, run_id: str) -> Result:
    """The result of a run; where pyspark is installed it is a `pyspark.ml.Model` too."""
    if importlib.util.find_spec("pyspark") is None:
        return Result(store, run_id)
    from cerebro_spark.tune.fitted import FittedSearch

    return FittedSearch(store, run_id)


def default_backend() -> Backend:
    """The cluster of the active Spark session, if there is one; else two processes of this machine."""
    if importlib.util.find_spec("pyspark") is not None:
        from pyspark.sql import SparkSession

        if SparkSession.getActiveSession() is not None:
            from cerebro_spark.backend.spark import SparkBackend

            return SparkBackend()
    from cerebro_spark.backend.local import LocalBackend

    return LocalBackend()


def _check_shared(store: Store, backend: Backend) -> None:
    """Workers are processes of their own: what is in the memory of this one they never see."""
    if isinstance(backend, RemoteBackend) and store.url.startswith("memory://"):
        raise ConfigurationError(
            f"{store.url} is in the memory of this process, which workers cannot reach: use a folder, hdfs:// or s3://"
        )


def _framework(model_fn: ModelFn, framework: Framework) -> Framework:
    if framework == "auto":
        return "keras" if framework_of(model_fn) == "keras" else "torch"
    if framework not in ("keras", "torch"):
        raise ConfigurationError(f"`framework` is {framework!r}, but must be 'auto', 'keras' or 'torch'")
    return framework
