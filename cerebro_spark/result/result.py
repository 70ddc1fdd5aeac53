"""What a search returns: a view of a run in a store. It reads the run and never changes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from cerebro_spark import recipe as recipes
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.base import is_spark_frame
from cerebro_spark.errors import CheckpointError, ConfigurationError, DataError, NotFoundInStore
from cerebro_spark.planning.comparison import Comparison
from cerebro_spark.recipe import Recipe
from cerebro_spark.result import display, frames, plots, saving, tables
from cerebro_spark.result.blueprint import Blueprint, Scorer, make_blueprint
from cerebro_spark.result.listing import read_view
from cerebro_spark.run_view import RunView
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.traffic import Traffic
from cerebro_spark.types import Metrics, TrialId


class Result:
    """The outcome of a run, finished or not.

    `search.fit`, `cs.resume` and `cs.load_result` return one. It is a view of the run at the moment it was made; call
    it from one thread. Models are built when they are asked for. `save` makes a copy that needs neither the run's store
    nor its data.

    Args:
        store: The store of the run: a path, a URL or a Store.
        run_id: The id of the run, as `cerebro-spark runs STORE` lists it.

    Raises:
        NotFoundInStore: If the store has no such run.

    Examples:
        >>> import tempfile
        >>> from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
        >>> from cerebro_spark.engine import Engine
        >>> from cerebro_spark.eventlog import EventLog
        >>> from cerebro_spark.events import Settings
        >>> from cerebro_spark.search import FixedSearch
        >>> from cerebro_spark.store.local import LocalStore
        >>> from cerebro_spark.types import Partition
        >>> store, settings = LocalStore(tempfile.mkdtemp()), Settings((Partition("p0"), Partition("p1")), workers=1)
        >>> backend = SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: 1.0))
        >>> Engine(FixedSearch([{"lr": 0.1}], epochs=1), settings, backend, EventLog(store, "r1"), run="r1").run()
        >>> result = Result(store, "r1")
        >>> result.best_trial.id, result.best_trial.params, result.best_trial.epoch
        ('t0', {'lr': 0.1}, 1)
        >>> result.units[["trial", "epoch", "partition", "worker", "seconds"]].values.tolist()
        [['t0', 1, 'p0', 'w0', 1.0], ['t0', 1, 'p1', 'w0', 1.0]]
    """

    def __init__(self, store: Store | str, run_id: str) -> None:
        self._store = open_store(store)
        self._view: RunView = read_view(self._store, run_id)
        self._scorers: dict[TrialId, Scorer] = {}
        self._broadcasts: dict[tuple[str, TrialId], Any] = {}

    @property
    def run_id(self) -> str:
        """The id of the run in its store."""
        return self._view.run

    @property
    def finished(self) -> bool:
        """Whether the run is over, by itself or by `run.end()`. One that is not can be resumed with `cs.resume`."""
        return self._view.finished

    @cached_property
    def planned(self) -> Comparison | None:
        """What was planned for the run, and what it took; None if no plan was followed: see `search.plan`."""
        try:
            return Comparison.from_json(self._store.read(paths.plan(self.run_id)))
        except NotFoundInStore:
            return None

    # What came out

    @property
    def best_trial(self) -> tables.BestTrial:
        """The trial with the best epoch, of those that did not fail.

        Raises:
            TrialFailed: If all trials failed; the message has the first traceback.
            CerebroError: If no trial has an epoch that was trained and evaluated yet, or none in which the metric was a
                finite number.
        """
        return tables.best_trial(self._view)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row for each trial, best first.

        The columns are trial, status, epoch (the best one), epochs (how many there were), the metrics of the best
        epoch, the params as `param_<name>`, and the error of a trial that failed.
        """
        return tables.trials_table(self._view)

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row for each epoch of each trial, with all metrics; `seconds` is when it was evaluated, from the start."""
        return tables.history_table(self._view)

    @cached_property
    def units(self) -> pd.DataFrame:
        """A row for each unit that counts, in the order in which they ended.

        The columns are trial, epoch, partition, kind, worker, host, start, end, seconds (start and end in seconds
        from the start of the run), loss, attempt, width (how many trials were computed at once), bundle, steps, and
        group: how many workers trained the unit together. Then each of them has a row, with its own partition and the
        loss of all.
        """
        return tables.units_table(self._view)

    @property
    def traffic(self) -> Traffic:
        """The bytes that the run moved.

        Those of checkpoints are `written`, `trained_from`, `evaluated_from` and `hopped`; `exchanged` is what workers
        that trained a trial together told each other.
        """
        return self._view.traffic

    def plot(self, kind: str | None = None) -> Any:
        """Draw the run.

        Args:
            kind: "curves" (the metric by epoch), "parallel" (the params and the metric they reached) or "gantt" (which
                worker ran which unit when). None, the default, draws all three, one above the other.

        Returns:
            A matplotlib figure. Save it with `figure.savefig("run.png")`.

        Raises:
            ConfigurationError: If `kind` is none of these.
            MissingDependency: If matplotlib is not installed.
        """
        return plots.plot(self._view, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address only; unpickling reads the run again."""
        return type(self), (self._store, self.run_id)

    def __repr__(self) -> str:
        return display.as_text(self._view)

    def _repr_html_(self) -> str:
        return display.as_html(self._view)

    # Models

    def model(self, trial_id: TrialId | None = None) -> Any:
        """Return the model of a trial as it was after its best epoch.

        Args:
            trial_id: The id of the trial, as in `result.trials`. None, the default, means the best trial.

        Returns:
            A Keras model, or a torch module on the CPU in evaluation mode. Each call builds a new one, so changing it
            changes nothing here. If the optimizer averages weights (Keras' `use_ema`), the model has the averages.

        Raises:
            ConfigurationError: If the run has no such trial, or no functions (a simulated run).
            CheckpointError: If the trial has no model: no epoch of it was evaluated, or its checkpoint is gone.
        """
        found = self._blueprint(self._chosen(trial_id))
        is_keras = found.spec.trainer_class.framework.startswith("keras")
        model = found.trainer(device="auto" if is_keras else "cpu").model()
        return model if is_keras else model.module.eval()

    def transform(
        self,
        df: Any,
        params: Any = None,
        *,
        column: str | None = None,
        probability: str | None = None,
        raw: str | None = None,
        kind: str | None = None,
        trial_id: TrialId | None = None,
    ) -> Any:
        """Add the predictions of a model to the rows of `df`.

        - A classifier adds what Spark's own classifiers add: "prediction" is the number of the class (the larger
          probability of two, the largest of several), "probability" has the probabilities and "rawPrediction" the
          logits, one value for each class.
        - A regression adds "prediction", a number, or an array if the model has several values per row.
        - A model with several outputs adds each as it is, in a column `prediction_<output>`.

        `input_fn` is applied as in evaluation, with zeros for labels that are not there.

        Args:
            df: The rows: a Spark DataFrame, a pandas DataFrame or a dict of arrays, with the feature columns. It needs
                no labels.
            params: What Spark ML passes on: other values of `predictionCol`, `probabilityCol` and `rawPredictionCol`.
                Defaults to None.
            column: The name of the prediction column; "" leaves it out. None, the default, means "prediction".
            probability: The name of the column of probabilities; "" leaves it out. None, the default, means
                "probability".
            raw: The name of the column of logits; "" leaves it out. None, the default, means "rawPrediction".
            kind: What the output is: "regression" (the output as it is), "binary" or "multiclass"; with a loss of your
                own these two mean that the model puts out probabilities, and "binary_logits" and "multiclass_logits"
                that it puts out logits. None, the default, takes what the search was given, else what the loss shows;
                with a loss of your own the output then stays as it is.
            trial_id: The id of the trial whose model is used. None, the default, means the best trial.

        Returns:
            `df` with the new columns. A Spark DataFrame gives a Spark DataFrame, which its executors score in batches
            when it is used; there "probability" and "rawPrediction" are vectors. Anything else gives a pandas
            DataFrame.

        Raises:
            ConfigurationError: If an argument is none of those above, or a feature column is missing.
            DataError: If a feature is null.
            CheckpointError: If the trial has no model.
        """
        if params:
            return self._with_params(params).transform(
                df, column=column, probability=probability, raw=raw, kind=kind, trial_id=trial_id
            )
        trial = self._chosen(trial_id)
        names = self._names(column, probability, raw)
        if is_spark_frame(df):
            from cerebro_spark.result import spark

            return spark.score(self._broadcast(df, trial), self._scorer(trial), df, names, kind)
        return frames.score_frame(self._scorer(trial), _frame(df), names, kind)

    def evaluate(self, df: Any, *, trial_id: TrialId | None = None) -> dict[str, float]:
        """Compute the metrics of a model over all rows of `df`, exactly.

        Args:
            df: The rows, with labels, and with the sample weights if there are any: a Spark DataFrame (its executors
                do the work), a pandas DataFrame, a dict of arrays, or a Dataset (all of its partitions).
            trial_id: The id of the trial whose model is used. None, the default, means the best trial.

        Returns:
            The metrics under the names that `model_fn` gives them, and "loss".

        Raises:
            ConfigurationError: If a column is missing.
            DataError: If there are no rows, or values that cannot be used.
            CheckpointError: If the trial has no model.
        """
        trial = self._chosen(trial_id)
        scorer = self._scorer(trial)
        if is_spark_frame(df):
            from cerebro_spark.result import spark

            series = trial in self._view.carrying
            return scorer.trainer.finish(spark.measure(self._broadcast(df, trial), scorer, df, series))
        if isinstance(df, Dataset):
            chunks = frames.dataset_chunks(df, scorer.blueprint.sources)
        else:
            chunks = frames.frame_chunks(_frame(df), scorer.blueprint.sources)
        parts = list(scorer.measure(chunks))
        if not parts:
            raise DataError("there are no rows, so there is nothing to measure: give at least one")
        return scorer.trainer.finish(Metrics.merge(parts))

    # A copy to keep

    def save(
        self,
        path: str | os.PathLike[str] | Store,
        *,
        trials: Iterable[TrialId] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Copy everything that this result needs, for `cs.load_result`.

        Your functions are part of it as a pickle. Who can write to the copy can run code where it is loaded.

        Args:
            path: Where to write: a folder, the URL of a store, or a Store; not the store of the run itself.
            trials: The ids of the trials whose models are copied. None, the default, means all trials.
            overwrite: Replace a result that was saved there before. Defaults to False.

        Raises:
            AlreadyInStore: If `path` holds a saved result and `overwrite` is False, or holds a run of this id.
            ConfigurationError: If `path` is the store of the run, or a trial does not exist.
        """
        saving.save_result(self._view, self._store, path, trials, overwrite)

    # The steps in between

    def _names(self, column: str | None, probability: str | None, raw: str | None) -> frames.OutputNames:
        """What new columns are called: as it is said, else by their usual names."""
        given = {"prediction": column, "probability": probability, "raw": raw}
        return replace(self._usual_names, **{name: value for name, value in given.items() if value is not None})

    @property
    def _usual_names(self) -> frames.OutputNames:
        return frames.OutputNames()

    def _with_params(self, params: Any) -> Result:
        raise ConfigurationError(
            f"`params` is {params!r}, but only the result of a search has Spark's params, where pyspark is installed:"
            " give names as transform(df, column=...)"
        )

    def _chosen(self, trial_id: TrialId | None) -> TrialId:
        return self.best_trial.id if trial_id is None else tables.check_trial(self._view, trial_id)

    @cached_property
    def _recipe(self) -> Recipe:
        if not self._view.recipe:
            raise ConfigurationError(
                f"run {self.run_id} has no functions beside its log, as simulated runs have none: there is no model"
            )
        return recipes.read(self._store, self.run_id, self._view.recipe)

    def _blueprint(self, trial: TrialId) -> Blueprint:
        best = self._view.best_epoch(trial)
        if best is None or best.checkpoint is None:
            why = self._view.errors.get(trial, "no epoch of it was trained and evaluated yet")
            raise CheckpointError(f"trial {trial} of run {self.run_id} has no model: {why}")
        recipe = self._recipe
        try:
            data = self._store.read(paths.checkpoint(self.run_id, best.checkpoint))
        except NotFoundInStore as error:
            raise CheckpointError(
                f"the model of trial {trial} is not in {self._store.url}: it was saved without it, or deleted; save the"
                f" result with trials=[{trial!r}], or with all of them"
            ) from error
        return make_blueprint(recipe, trial, best.epoch, best.params, (data, best.checkpoint.digest))

    def _scorer(self, trial: TrialId) -> Scorer:
        if trial not in self._scorers:
            self._scorers[trial] = Scorer(self._blueprint(trial))
        return self._scorers[trial]

    def _broadcast(self, df: Any, trial: TrialId) -> Any:
        from cerebro_spark.result.spark import BroadcastModel

        context = df.sparkSession.sparkContext
        key = context.applicationId, trial
        if key not in self._broadcasts:
            self._broadcasts[key] = BroadcastModel(self._scorer(trial).blueprint, context)
        return self._broadcasts[key]


def load_result(path: str | os.PathLike[str] | Store) -> Result:
    """Open a result that `result.save` wrote.

    The user's functions are unpickled, which runs code, when a model is asked for: load only what you trust.

    Args:
        path: The folder, URL or Store that was given to `save`.

    Returns:
        The result. It needs neither the store nor the data of the run.

    Raises:
        NotFoundInStore: If there is no saved result.

    Examples:
        >>> load_result("memory://nothing-here")
        Traceback (most recent call last):
        ...
        cerebro_spark.errors.NotFoundInStore: memory://nothing-here holds no saved result: give the path that
        result.save was given
    """
    return Result(*saving.open_saved(path))


def _frame(df: Any) -> pd.DataFrame | Mapping[str, Any]:
    if isinstance(df, pd.DataFrame | Mapping):
        return df
    raise ConfigurationError(
        f"df is a {type(df).__name__}, but must be a Spark DataFrame, a pandas DataFrame or a dict of arrays"
    )
