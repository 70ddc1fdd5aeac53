"""Trains what another library proposes, as one run: from its beginning, or from where it was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_spark import runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.engine import Observer
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.outcomes import with_outcomes
from cerebro_spark.recipe import Recipe, check_functions
from cerebro_spark.result import Result
from cerebro_spark.store import paths
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.tune.options import ModelFn, TrainingOptions
from cerebro_spark.tune.plugins.led import Absent, LedSearch
from cerebro_spark.tune.plugins.recall import Proposals, Recollection
from cerebro_spark.tune.trackers.base import Tracking
from cerebro_spark.tune.training import Training, default_backend, open_result
from cerebro_spark.turns import Turn


class LedTraining:
    """Trains what a leader asks for, with the data and options of the user.

    Args:
        model_fn: Called as `model_fn(params)`; returns a compiled Keras model or a `cs.TorchModel`.
        options: The other arguments.
        absent: What stands for the leader in the recipe of the run.

    Raises:
        ConfigurationError: An argument can never be right, whatever the data.
    """

    def __init__(self, model_fn: ModelFn, options: TrainingOptions, absent: Absent) -> None:
        self._training = Training(model_fn, options)
        self._trackers = options.trackers
        self._absent = absent
        self.objective = self._training.objective
        self.backend = options.backend or default_backend()
        self.store = open_store(options.store)

    def dataset(self, data: Any) -> Dataset:
        """Return the data set to train on: `data` itself, or what is prepared from it."""
        self.check_data(data)
        check_functions(self._training.hooks)
        return self._training.dataset(data, self.store, self.backend)

    def check_data(self, data: Any) -> None:
        """Raise ConfigurationError if the options do not fit this data. None of it is read."""
        if data is None:
            raise ConfigurationError(
                "`data` is None, but must be a DataFrame, a dict of arrays, or what cs.prepare returned"
            )
        self._training.check_data(data)

    def has(self, run_id: str | None) -> bool:
        """Return whether the store has this run already, so that it can only be continued."""
        return run_id is not None and bool(self.store.list(paths.log_folder(run_id)))

    def lead(
        self, search: LedSearch, dataset: Dataset, progress: bool | None = None, run_id: str | None = None
    ) -> Result:
        """Train what `search` asks for, until it has no more.

        Args:
            search: Asks the leader.
            dataset: The data of a new run.
            progress: Whether to show a progress bar. Defaults to None: only where it can be seen.
            run_id: The id of the run. Defaults to None: one is made.

        Returns:
            The result of the run.
        """
        run, begun = run_id or runs.new_id(), False

        def note(turn: Turn) -> None:
            nonlocal begun
            begun = True

        recipe = self._training.recipe(self._absent, dataset, self.store, self.backend)
        self._prepare(search, run)
        try:
            with Tracking(self._trackers, self.objective) as tracking:
                way_on = self._absent.way_on(run)
                observers: list[Observer] = [note, tracking]
                runs.execute(recipe, self.store, self.backend, run, observers, progress, led_by=search, way_on=way_on)
                search.run_ended()
                result = open_result(self.store, run)
                tracking.finish(result)
        finally:
            search.run_id = run if begun else ""
        return result

    def go_on(self, search: LedSearch, run_id: str, progress: bool | None = None) -> Result:
        """Continue a run that was interrupted: no finished unit is trained again.

        Args:
            search: Asks the leader, once it is where the run was.
            run_id: The id of the run.
            progress: Whether to show a progress bar. Defaults to None: only where it can be seen.

        Returns:
            The result of the run.

        Raises:
            ConfigurationError: The run has another leader, objective or number of epochs.
        """
        recipe, _ = runs.read(self.store, run_id)
        self._check_same(recipe, run_id)
        self._recall(search, run_id, with_outcomes(EventLog(self.store, run_id).turns()))  # says at once what differs
        with Tracking(self._trackers, self.objective) as tracking:

            def recall(turns: Sequence[Turn]) -> None:
                """Its driver may have been alive, and have gone on until just now."""
                self._recall(search, run_id, turns)
                tracking.recall(turns)

            way_on = self._absent.way_on(run_id)
            runs.resume(
                self.store, run_id, self.backend, [tracking], progress, led_by=search, way_on=way_on, on_claim=recall
            )
            search.run_ended()
            result = open_result(self.store, run_id)
            tracking.finish(result)
        return result

    def _recall(self, search: LedSearch, run: str, turns: Sequence[Turn]) -> None:
        self._prepare(search, run)  # whoever reads proposals knows those that were there when it first looked
        search.recall(Recollection(turns))

    def _prepare(self, search: LedSearch, run: str) -> None:
        search.run_id = run
        search.proposals = Proposals(RetryingStore(self.store, seconds=runs.PATIENCE), run)

    def _check_same(self, recipe: Recipe, run: str) -> None:
        if not self._absent.leads_like(recipe.search):
            raise ConfigurationError(
                f"run {run} was not begun by this: continue it with cs.resume, or choose another id for a new run"
            )
        if recipe.objective != self.objective:
            raise ConfigurationError(
                f"`metric` is {self.objective.metric!r} ({self.objective.mode}), but run {run} is about"
                f" {recipe.objective.metric!r} ({recipe.objective.mode}): give the same, or another id for a new run"
            )
