"""What the searches that users call have in common: `search.fit(df)`, `search.start(df)`. It checks and hands over.

Where pyspark is installed a search is a `pyspark.ml.Estimator`; where it is not, a plain class that does the same on a
LocalBackend.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, overload

from cerebro_spark import runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.engine import Observer
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.live.run import Run
from cerebro_spark.planning.plan import Plan
from cerebro_spark.relay import Relay
from cerebro_spark.result import Result
from cerebro_spark.search import Search
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.tune.arguments import check_batch_sizes, check_progress, concurrent_trials
from cerebro_spark.tune.options import ModelFn, TrainingOptions
from cerebro_spark.tune.past_runs import replay as replay_run
from cerebro_spark.tune.planned import PlanArguments, follow, hold_against, plan_search
from cerebro_spark.tune.signatures import explained
from cerebro_spark.tune.spaces.space import Space
from cerebro_spark.tune.trackers.base import Tracking
from cerebro_spark.tune.training import Training, default_backend, driving_thread, open_result
from cerebro_spark.types import Objective

if TYPE_CHECKING or importlib.util.find_spec("pyspark") is not None:
    from cerebro_spark.tune.estimator_stage import SearchStage as _Stage
else:
    from cerebro_spark.tune.stage import PlainStage as _Stage


@dataclass(eq=False, repr=False)
class _ModelArgument:
    """The one argument that may be given without its name; in a class of its own it comes first in every signature."""

    model_fn: ModelFn


@explained()
@dataclass(kw_only=True, eq=False, repr=False)
class ModelSearch(TrainingOptions, _ModelArgument, _Stage):
    """What all searches have in common: their shared arguments, and `fit`.

    Args:
        model_fn: Called as `model_fn(params)` with the params of a trial, a dict; returns a compiled Keras model or a
            `cs.TorchModel`.
        space: The hyperparameters: a dict from names to values, `hp.choice([...])`, `hp.uniform(low, high)` and the
            like. "batch_size" is reserved for the number of rows in a batch, 32 if it is not there.
        max_concurrent: How many trials are trained at a time. Defaults to None: as many as the search allows.
        time_budget: The seconds after which no further epoch begins. Defaults to None: no limit. Trials train side by
            side, so all of them may be in the middle of an epoch then, which they finish; with `max_concurrent` fewer.
        patience: After how many epochs in a row without a new best value a trial ends. Defaults to None: it never ends
            early.
        target: The value of `metric` at which the search ends, once a trial reaches it. Defaults to None: none.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen, in a terminal or
            notebook.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.
    """

    _algorithm: ClassVar[type[Algorithm]]

    space: Mapping[str, Any] | Space
    max_concurrent: int | None = None
    time_budget: float | None = None
    patience: int | None = None
    target: float | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        _Stage.__init__(self)
        self._training()
        self.space = self.space if isinstance(self.space, Space) else Space(self.space)
        check_batch_sizes(self.space)
        check_progress(self.progress)
        # The algorithm checks its own arguments when it is made.
        self._stopping_algorithm(workers=1)

    @property
    def objective(self) -> Objective:
        """The metric that decides, with its direction."""
        return self._training().objective

    # -- what users call

    @overload
    def fit(
        self,
        dataset: Any = ...,
        params: Mapping[Any, Any] | None = ...,
        *,
        run_id: str | None = ...,
        replay: str | None = ...,
        dashboard: bool = ...,
        plan: Plan | None = ...,
    ) -> Result: ...

    @overload
    def fit(
        self,
        dataset: Any,
        params: list[Any] | tuple[Any, ...],
        *,
        run_id: str | None = ...,
        replay: str | None = ...,
        dashboard: bool = ...,
        plan: Plan | None = ...,
    ) -> list[Result]: ...

    def fit(
        self,
        dataset: Any = None,
        params: Any = None,
        *,
        run_id: str | None = None,
        replay: str | None = None,
        dashboard: bool = False,
        plan: Plan | None = None,
    ) -> Result | list[Result]:
        """Run the search to its end.

        Other calls of `fit` on the same backend are waited for, before data is prepared. A run that was begun by
        `start` is not: while it goes on, this raises a BackendError at once.

        Args:
            dataset: A DataFrame (of Spark or pandas), a dict of arrays, or a Dataset from `cs.prepare` or
                `cs.open_dataset`.
            params: What Spark ML passes: a dict with other values of `predictionCol`, `probabilityCol` or
                `rawPredictionCol`, or a list of such dicts, for as many runs. Defaults to None: the values of this
                search.
            run_id: The id of the run. Defaults to None: one is made of the time and a random part.
            replay: The id of a run to train again. Deprecated, and removed in version 0.2.0: use `cs.replay`.
            dashboard: Whether to start a dashboard of the store, and to print its link. Defaults to False.
            plan: What `plan` returned: the run has the workers, threads and partitions of its best option. Defaults to
                None: those of the backend.

        Returns:
            The result of the run; a list of results if `params` is a list.

        Raises:
            ConfigurationError: An argument does not fit the data, the store or the backend. No worker was started then.
            CerebroError: The run could not be finished; the message says how to resume it.
        """
        options: dict[str, Any] = {"run_id": run_id, "replay": replay, "dashboard": dashboard, "plan": plan}
        if isinstance(params, list | tuple):
            return [self.fit(dataset, each, **options) for each in params]
        if params:
            fitted: Result = self._with_params(params).fit(dataset, **options)
            return fitted
        if replay is not None:
            if plan is not None:
                raise ConfigurationError("`plan` and `replay` are both given, but a replay runs as its run did")
            return self._replay(replay, dataset, run_id)
        search = self if plan is None else follow(self, plan, dataset, self.backend or default_backend(dataset))
        # In this thread: Ctrl-C and what belongs to a thread (a job group of Spark) are as they ever were.
        run = search._new_run(dataset, run_id, open_store(self.store), self.progress, plan=plan)
        if dashboard:
            run.dashboard()
        return run.drive()

    def plan(
        self,
        dataset: Any,
        *,
        deadline: datetime | float | None = None,
        budget: float | None = None,
        price: float | None = None,
        rows: int | None = None,
        hosts: int | None = None,
        cores: int | None = None,
        memory: str | int | None = None,
        network: str | float | None = None,
        failure_rate: float = 0.0,
        seconds: float = 60.0,
    ) -> Plan:
        """Find out how many workers the search needs, how long it will take and what it will cost.

        For about a minute real workers train a few batches of a few configurations; then the search is run dry, in
        virtual time, with each number of workers and threads that makes sense. Nothing of it stays in the store.

        Args:
            dataset: What the search will be fitted to, or a sample of it: a DataFrame (of Spark or pandas), a dict of
                arrays, or a Dataset.
            deadline: When it must be done: a datetime, or seconds from its start. Defaults to None: as soon as
                possible.
            budget: How much money it may cost. It needs `price`. Defaults to None: any.
            price: Money for one worker and hour. Defaults to None: not known.
            rows: How many rows there will be, where `dataset` is a sample. Defaults to None: as many as it has.
            hosts: How many hosts the cluster has, if it is another than the backend's. Defaults to None: the backend's.
            cores: The cores of each host. Defaults to None: as many as the backend's hosts have.
            memory: The memory of each host, such as "64g". Defaults to None: that of the backend's hosts, if known.
            network: The speed between hosts, such as "10Gb" for bits a second. Defaults to None: as was measured.
            failure_rate: The probability that a worker dies during a unit. Defaults to 0.0.
            seconds: How long planning may take. Defaults to 60.

        Returns:
            The plan. It shows itself in a terminal and in a notebook; `fit(dataset, plan=plan)` follows it.

        Raises:
            ConfigurationError: An argument can never be right, or every configuration that was tried failed.
        """
        asked = PlanArguments(deadline, budget, price, rows, hosts, cores, memory, network, failure_rate, seconds)
        return plan_search(self, dataset, self.backend or default_backend(dataset), asked)

    def start(
        self,
        dataset: Any = None,
        params: Mapping[Any, Any] | None = None,
        *,
        run_id: str | None = None,
        dashboard: bool = False,
        plan: Plan | None = None,
    ) -> Run:
        """Begin the search, and return at once: a thread of this process drives it.

        What can be seen to be wrong before data is read and workers are started is raised here; all other errors are
        in `run.error`, and raised by `run.wait()`. A program that comes to its end waits for its runs. Ctrl-C in
        `run.wait()` stops the run, which can be resumed. There is a progress bar only with `progress=True`.

        Args:
            dataset: A DataFrame (of Spark or pandas), a dict of arrays, or a Dataset from `cs.prepare` or
                `cs.open_dataset`.
            params: What Spark ML passes: a dict with other values of `predictionCol`, `probabilityCol` or
                `rawPredictionCol`. Defaults to None: the values of this search.
            run_id: The id of the run. Defaults to None: one is made of the time and a random part.
            dashboard: Whether to start a dashboard of the store, and to print its link. Defaults to False.
            plan: What `plan` returned: the run has the workers, threads and partitions of its best option. Defaults to
                None: those of the backend.

        Returns:
            A handle of the run, with which it can be watched and commanded.

        Raises:
            ConfigurationError: An argument does not fit the data, the store or the backend. Nothing was started then.
            StoreError: The store cannot be written.
        """
        if isinstance(params, list | tuple):
            raise ConfigurationError("`params` is a list, but a handle is of one run: call start for each of them")
        if params:
            started: Run = self._with_params(params).start(dataset, run_id=run_id, dashboard=dashboard, plan=plan)
            return started
        store = open_store(self.store)
        search = self if plan is None else follow(self, plan, dataset, self.backend or default_backend(dataset))
        run = search._new_run(dataset, run_id, store, bool(self.progress), in_thread=True, plan=plan)
        runs.check_writable(store)
        if dashboard:
            run.dashboard()
        return run.start(driving_thread)

    def _new_run(
        self,
        dataset: Any,
        run_id: str | None,
        store: Store,
        progress: bool | None,
        in_thread: bool = False,
        plan: Plan | None = None,
    ) -> Run:
        """Return a run that has not begun. All that is read of this search is read now: it may be changed later.

        One that will be driven in a thread of its own is checked now, and never waits for its turn. One that follows a
        plan is held against it.
        """
        if run_id is not None:
            runs.check_free(store, run_id)
        name = run_id or runs.new_id()
        backend = self.backend or default_backend(dataset)
        training = self._training()
        algorithm = self._stopping_algorithm(backend.num_workers)
        tracking = Tracking(self.trackers, training.objective)
        if in_thread:
            training.check(dataset, store, backend)

        def drive(relay: Relay, observer: Observer) -> Result:
            # Trackers come second: copies of a search share them, and the next run may begin once the turn is over.
            with backend.turn(wait=not in_thread), tracking:
                recipe = training.recipe(algorithm, dataset, store, backend)
                observers: list[Observer] = [tracking, observer]
                if plan is None:
                    runs.execute(recipe, store, backend, name, observers, progress, relay=relay)
                else:
                    observers.append(plan.watch())
                    expected = plan.unit_seconds
                    runs.execute(recipe, store, backend, name, observers, progress, relay=relay, expected=expected)
                    hold_against(plan, store, name)
                result: Result = self._handed_over(open_result(store, name))
                tracking.finish(result)
            return result

        return Run(store, name, drive)

    def _fit(self, dataset: Any) -> Any:
        return self.fit(dataset)

    def _replay(self, run_id: str, dataset: Any, new_run_id: str | None) -> Result:
        warnings.warn(
            "`search.fit(replay=run_id)` uses little of the search it is called on, and will be removed in version"
            " 0.2.0: call `cs.replay(store, run_id, backend=...)` instead",
            DeprecationWarning,
            stacklevel=3,
        )
        result = replay_run(
            self.store,
            run_id,
            backend=self.backend,
            new_run_id=new_run_id,
            progress=self.progress,
            data_store=dataset.store if isinstance(dataset, Dataset) else None,
            trackers=self.trackers,
        )
        handed: Result = self._handed_over(result)
        return handed

    # -- its parts

    def _training(self) -> Training:
        """Return the checked options. They are read anew each time, as they may have been assigned to."""
        return Training(self.model_fn, self)

    def _stopping_algorithm(self, workers: int, timed: bool = True) -> Search:
        """Return the algorithm, made of the arguments that have the same names, with what stops it early.

        With `timed=False` it may take as long as it needs.
        """
        names = inspect.signature(self._algorithm).parameters
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name in names}
        algorithm = self._algorithm(objective=self.objective, **given)
        if self.max_concurrent is None and self._algorithm.default_concurrent is not None:
            algorithm.max_concurrent = concurrent_trials(self.fuse, workers, 2, given["num_trials"])
        time_budget = self.time_budget if timed else None
        if self.patience is time_budget is self.target is None:
            return algorithm
        return Stopping(algorithm, self.objective, self.patience, time_budget, self.target)
