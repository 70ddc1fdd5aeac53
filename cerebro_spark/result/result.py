"""What a search returns: one object over a run in a store. It reads the run when asked, and never changes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from cerebro_spark import recipe as recipes
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.partitioning.spec import is_spark
from cerebro_spark.data.prepare import as_store
from cerebro_spark.errors import CheckpointError, ConfigurationError, DataError, NotFoundInStore
from cerebro_spark.recipe import Recipe
from cerebro_spark.result import display, frames, plots, saving, tables
from cerebro_spark.result.blueprint import Blueprint, Scorer, blueprint
from cerebro_spark.result.listing import read_view
from cerebro_spark.run_view import RunView
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import Metrics, TrialId


class Result:
    """The outcome of a run, or of as much of it as there is: of one that was stopped, what it had come to.

    Who calls it: users, from one thread. A Result is a view of the run at the moment it was made. Models are built
    when they are asked for; `save` makes a copy that needs neither the run's store nor its data.

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
        self._store = as_store(store)
        self._view: RunView = read_view(self._store, run_id)
        self._scorers: dict[TrialId, Scorer] = {}
        self._shipments: dict[tuple[str, TrialId], Any] = {}

    @property
    def run_id(self) -> str:
        """The name of the run in its store."""
        return self._view.run

    @property
    def finished(self) -> bool:
        """Whether the run came to its end; one that did not can go on with `cs.resume`."""
        return self._view.finished

    # What came out

    @property
    def best_trial(self) -> tables.BestTrial:
        """The trial with the best epoch, of those that did not fail.

        Raises TrialFailed, with the first traceback, if all trials failed.
        """
        return tables.best_trial(self._view)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row a trial, best first: status, best epoch and its metrics, params as `param_...`, error if it failed."""
        return tables.trials_table(self._view)

    @cached_property
    def history(self) -> pd.DataFrame:
        """A row an (trial, epoch) with all metrics; `seconds` is when the epoch was known, from the run's start."""
        return tables.history_table(self._view)

    @cached_property
    def units(self) -> pd.DataFrame:
        """A row a unit that counts: trial, epoch, partition, kind, worker, host, start, end, seconds, loss."""
        return tables.units_table(self._view)

    def plot(self, kind: str | None = None) -> Any:
        """A matplotlib figure: "curves" (metric by epoch), "parallel" (params to metric), "gantt" (who ran what when).

        Without a kind, all three under each other. Save it with `figure.savefig("run.png")`.
        """
        return plots.plot(self._view, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled result is its address: whoever opens it reads the run again."""
        return type(self), (self._store, self.run_id)

    def __repr__(self) -> str:
        return display.as_text(self._view)

    def _repr_html_(self) -> str:
        return display.as_html(self._view)

    # Models

    def model(self, trial_id: TrialId | None = None) -> Any:
        """The Keras model or torch module of the best trial, or of another, as it was after its best epoch.

        It is built anew each time, so what is done to it changes nothing here. A torch module is on the CPU and in
        evaluation mode. Where the optimizer averages weights (Keras' `use_ema`), the model has the averages.
        """
        found = self._blueprint(self._chosen(trial_id))
        device = "auto" if self._is_keras(found) else "cpu"
        model = found.trainer(device=device).model()
        return model if self._is_keras(found) else model.module.eval()

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
        """`df` with what the model predicts in new columns; all its columns stay.

        - A classifier gives what Spark's own give: "prediction" is the number of the class (above 0.5 of two, the
          largest of several), "probability" its probabilities and "rawPrediction" its logits, a value a class.
        - A regression gives "prediction", a number; an array where the model puts out several values a row.
        - A model with several outputs gives each as it is, in a column "prediction_<output>".

        Which of them it is, the model's loss tells, or `kind`, here or as an argument of the search: "regression" (the
        output as it is), "binary", "multiclass"; with a loss of your own these two mean that the model puts out
        probabilities, and "binary_logits" and "multiclass_logits" that it puts out logits. With a loss of your own and
        no `kind` the output stays as it is.

        `column`, `probability` and `raw` are other names for the three columns; one named "" is left out. `params` is
        what Spark ML hands over: other values of `predictionCol`, `probabilityCol` and `rawPredictionCol`.

        A Spark DataFrame gives one, scored in batches on its executors when it is used, where "probability" and
        "rawPrediction" are vectors; a pandas DataFrame or a dict of arrays gives a pandas DataFrame. `input_fn` is
        applied as in evaluation, with zeros for the labels, which need not be there. Nulls in an input are an error.
        """
        if params:
            return self._with_params(params).transform(
                df, column=column, probability=probability, raw=raw, kind=kind, trial_id=trial_id
            )
        trial = self._chosen(trial_id)
        names = self._names(column, probability, raw)
        if is_spark(df):
            from cerebro_spark.result import spark

            return spark.score(self._shipment(df, trial), self._scorer(trial), df, names, kind)
        return frames.score_frame(self._scorer(trial), _frame(df), names, kind)

    def evaluate(self, df: Any, *, trial_id: TrialId | None = None) -> dict[str, float]:
        """The metrics of the model over all rows of `df`, exact, under the names that `model_fn` gives them ("loss").

        `df` is a Spark DataFrame (measured on its executors), a pandas DataFrame, a dict of arrays or a Dataset (all of
        its partitions); it has the labels, and the sample weights if there are any.
        """
        trial = self._chosen(trial_id)
        scorer = self._scorer(trial)
        if is_spark(df):
            from cerebro_spark.result import spark

            series = trial in self._view.carrying
            return scorer.trainer.finish(spark.measure(self._shipment(df, trial), scorer, df, series))
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
        """Copy everything that this result needs to `path`, a folder or the URL of a store, for `cs.load_result`.

        The models of all trials go with it, or only those of `trials`. The user's functions are in it as a pickle:
        whoever may write that folder may run code where it is loaded.
        """
        saving.save(self._view, self._store, path, trials, overwrite)

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
        if trial_id is None:
            return self.best_trial.id
        if trial_id not in self._view.trials:
            raise ConfigurationError(f"run {self.run_id} has no trial {trial_id!r}: it has {list(self._view.trials)}")
        return trial_id

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
        return blueprint(recipe, trial, best.epoch, best.params, (data, best.checkpoint.digest))

    def _scorer(self, trial: TrialId) -> Scorer:
        if trial not in self._scorers:
            self._scorers[trial] = Scorer(self._blueprint(trial))
        return self._scorers[trial]

    def _shipment(self, df: Any, trial: TrialId) -> Any:
        from cerebro_spark.result.spark import Shipment

        context = df.sparkSession.sparkContext
        key = context.applicationId, trial
        if key not in self._shipments:
            self._shipments[key] = Shipment(self._scorer(trial).blueprint.pack(), context)
        return self._shipments[key]

    @staticmethod
    def _is_keras(found: Blueprint) -> bool:
        return found.kind.framework.startswith("keras")


def load_result(path: str | os.PathLike[str] | Store) -> Result:
    """The result that `result.save(path)` left there. It unpickles the user's functions when a model is asked for.

    >>> load_result("memory://nothing-here")
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.NotFoundInStore: memory://nothing-here holds no saved result: give the path that result.save
    was given
    """
    return Result(*saving.open_saved(path))


def _frame(df: Any) -> pd.DataFrame | Mapping[str, Any]:
    if isinstance(df, pd.DataFrame | Mapping):
        return df
    raise ConfigurationError(
        f"df is a {type(df).__name__}, but must be a Spark DataFrame, a pandas DataFrame or a dict of arrays"
    )
