"""Runs that another library leads, Hyperopt or Optuna. It trains what they propose, and proposes nothing itself.

The leader is asked in the engine's thread, one trial at a time. So it decides with all that is known by then, and an
interrupt or a dead backend ends its run like any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from cerebro_spark import runs
from cerebro_spark.checks import check_at_least
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.events import RunStarted
from cerebro_spark.recipe import check_functions
from cerebro_spark.result import Result
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.objective import value_of
from cerebro_spark.tune.options import ModelFn, TrainingOptions
from cerebro_spark.tune.trackers.base import Tracking
from cerebro_spark.tune.training import Training, default_backend, open_result
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Report, TrialId, Work


@dataclass(slots=True)
class TrialProgress:
    """A trial that is being trained: how many epochs it reported, and the best of them."""

    trial: TrialId
    params: Mapping[str, Any]
    reported: int = 0
    best: float = float("nan")
    best_epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class LedSearch(Search):
    """Asks a leader for trials, and tells it the outcome of each. A trial counts by its best epoch.

    Args:
        objective: What counts as better.
        epochs: How many epochs each trial is trained for.
        at_once: How many trials are trained at a time.
        sliced: Whether trials are asked for one epoch at a time, so that the leader can end them early: an epoch that
            has begun cannot be cancelled.
        timeout: The seconds after which `timed_out` is true. Defaults to None: never.
    """

    def __init__(
        self, objective: Objective, epochs: int, at_once: int, sliced: bool, timeout: float | None = None
    ) -> None:
        check_at_least("epochs", epochs, 1)
        check_at_least("at_once", at_once, 1)
        self.objective = objective
        self.epochs = epochs
        self._at_once = at_once
        self._sliced = sliced
        self._timeout = timeout
        self._began: float | None = None
        self._due: list[TrialProgress] = []
        self.run_id = ""
        self.under_way: dict[TrialId, TrialProgress] = {}

    # -- what the leader decides

    @abstractmethod
    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        """Return the next trial and its params; None if there are no more."""

    @abstractmethod
    def enough(self) -> bool:
        """Return whether the run should end; trials that are being trained end with their present epoch."""

    def epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        """Take note of an epoch that reached `value`; return whether the trial goes on."""
        return True

    @abstractmethod
    def finished(self, progress: TrialProgress) -> None:
        """Take note of a trial that was trained to its end, with a finite value in one of its epochs."""

    @abstractmethod
    def failed(self, progress: TrialProgress, error: str) -> None:
        """Take note of a trial that failed."""

    def timed_out(self) -> bool:
        """Return whether the timeout has passed, counted from the first call of this method."""
        now = monotonic()
        self._began = now if self._began is None else self._began
        return self._timeout is not None and now - self._began >= self._timeout

    # -- the protocol

    def ask(self) -> Work | Wait | Done:
        if self.enough():
            return Done()
        if not self._due and len(self.under_way) < self._at_once and (proposed := self.propose()) is not None:
            progress = TrialProgress(*proposed)
            self.under_way[progress.trial] = progress
            self._due.append(progress)
        if not self._due:
            return Wait() if self.under_way else Done()
        progress = self._due.pop(0)
        return Work(progress.trial, progress.params, progress.reported + 1 if self._sliced else self.epochs)

    def tell(self, report: Report) -> None:
        progress = self.under_way.get(report.trial)
        if progress is None:
            return
        if report.error is not None:
            del self.under_way[progress.trial]
            self.failed(progress, report.error)
            return
        value = value_of(report, self.objective)
        progress.reported += 1
        if self.objective.better(value, than=progress.best):
            progress.best, progress.best_epoch, progress.metrics = value, report.epoch, dict(report.metrics)
        goes_on = self.epoch(progress, report, value)
        # Epochs are counted, because they may be evaluated out of order.
        if goes_on and progress.reported < self.epochs:
            if self._sliced:
                self._due.append(progress)
            return
        del self.under_way[progress.trial]
        if goes_on and progress.best != progress.best:
            self.failed(progress, f"{self.objective.metric} was no finite number in any of its epochs")
        elif goes_on:
            self.finished(progress)


class Absent(Search):
    """Stands for the leader in the recipe of a run. The leader lived in the driver alone, so it only explains that.

    Args:
        leader: What led the run, for the message.
        fix: What to do instead of resuming it, for the message.
    """

    def __init__(self, leader: str, fix: str) -> None:
        self._leader, self._fix = leader, fix

    def ask(self) -> Work | Wait | Done:
        raise EventLogError(
            f"this run was led by {self._leader}, which ended with its process, so it cannot be resumed. Its results"
            f" are kept (cs.Result), and {self._fix}"
        )

    def tell(self, report: Report) -> None:
        """Do nothing: there is no leader to tell."""


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

    def lead(self, search: LedSearch, dataset: Dataset, progress: bool | None = None) -> Result:
        """Train what `search` asks for, until it has no more. `search.run_id` is set as soon as the run has begun."""

        def note(turn: Turn) -> None:
            for event in turn.events:
                if isinstance(event, RunStarted):
                    search.run_id = event.run

        recipe = self._training.recipe(self._absent, dataset, self.store, self.backend)
        with Tracking(self._trackers, self.objective) as tracking:
            runs.execute(recipe, self.store, self.backend, None, [note, tracking], progress, led_by=search)
            result = open_result(self.store, search.run_id)
            tracking.finish(result)
        return result
