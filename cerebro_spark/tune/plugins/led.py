"""Runs that another library leads, Hyperopt or Optuna. It trains what they propose, and proposes nothing itself.

The leader is asked in the engine's thread, one trial at a time. So it decides with all that is known by then, and an
interrupt or a dead backend ends its run like any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark import runs
from cerebro_spark.checks import check_at_least
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.engine import Observer
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.outcomes import with_outcomes
from cerebro_spark.recipe import Recipe, check_functions
from cerebro_spark.result import Result
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.store import paths
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.tune.objective import value_of
from cerebro_spark.tune.options import ModelFn, TrainingOptions
from cerebro_spark.tune.plugins.recall import Proposals, Recollection
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
        timeout: The seconds of the run after which `timed_out` is true. They stand still while a person pauses the run.
            Defaults to None: never.
    """

    unforeseeable = "another library leads this run, and what it will propose is not known"

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
        self._now = 0.0
        self._began: float | None = None
        """When the leader was first asked: of a run that goes on, the timeout counts from there."""
        self._due: list[TrialProgress] = []
        self._past: Recollection | None = None
        self._settled: set[TrialId] = set()
        """Trials of which the leader knows the outcome from before the run was interrupted."""
        self.proposals: Proposals | None = None
        self.run_id = ""
        self.under_way: dict[TrialId, TrialProgress] = {}

    def recall(self, past: Recollection) -> None:
        """Go on with a run: say what its log says, as long as it says something. `proposals` must be set by then.

        Args:
            past: What the search said before.

        Raises:
            ConfigurationError: The trials were to be trained for another number of epochs.
        """
        assert self.proposals is not None
        if past.first is not None:
            about = self.proposals.read(past.first.trial, past.first.params)
            if about.get("epochs") != self.epochs:
                raise ConfigurationError(
                    f"`epochs` is {self.epochs}, but run {self.run_id} trains its trials for {about.get('epochs')}:"
                    " give the same number, or leave the id of the run out"
                )
            self._sliced = bool(about.get("sliced"))
        self._past = past

    # -- what the leader decides

    @abstractmethod
    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        """Return the next trial and its params; None if there are no more."""

    def described(self, trial: TrialId) -> Mapping[str, Any]:
        """Return what `remember` needs of a trial that was just proposed: numbers, strings, lists and dicts."""
        return {}

    def remember(self, progress: TrialProgress, about: Mapping[str, Any]) -> bool:
        """Take in a trial that was proposed before the run was interrupted; return whether its outcome is known."""
        return False

    def remember_epoch(self, progress: TrialProgress, report: Report, value: float, goes_on: bool) -> None:
        """Take note of an epoch from before the run was interrupted, after which the trial went on or did not."""

    @abstractmethod
    def enough(self) -> bool:
        """Return whether the run should end; trials that are being trained end with their present epoch."""

    def epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        """Take note of an epoch that reached `value`; return whether the trial goes on: after its last one, True."""
        return True

    @abstractmethod
    def finished(self, progress: TrialProgress) -> None:
        """Take note of a trial that was trained to its end, with a finite value in one of its epochs."""

    @abstractmethod
    def failed(self, progress: TrialProgress, error: str) -> None:
        """Take note of a trial that failed."""

    def ended(self, progress: TrialProgress) -> None:
        """Take note of a trial that a person ended: by default it counts by what it reached, if that is anything."""
        if progress.best == progress.best:
            self.finished(progress)
        else:
            self.failed(progress, "it was ended by a person before an epoch of it was measured")

    def timed_out(self) -> bool:
        """Return whether the timeout has passed by the last report, counted from when the leader was first asked."""
        began = self._now if self._began is None else self._began
        return self._timeout is not None and self._now - began >= self._timeout

    # -- the protocol

    def ask(self) -> Work | Wait | Done:
        if self._past is not None:
            said = self._past.ask()
            if said is not None:
                return self._say_again(said)
            self._past = None
        if self._began is None:
            self._began = self._now
        if self.enough():
            return Done()
        if not self._due and len(self.under_way) < self._at_once and (proposed := self.propose()) is not None:
            progress = TrialProgress(*proposed)
            self._keep(progress)
            self.under_way[progress.trial] = progress
            self._due.append(progress)
        if not self._due:
            return Wait() if self.under_way else Done()
        progress = self._due.pop(0)
        return Work(progress.trial, progress.params, progress.reported + 1 if self._sliced else self.epochs)

    def tell(self, report: Report) -> None:
        self._now = report.at
        if self._past is not None:
            self._past.tell(report)
        progress = self.under_way.get(report.trial)
        if progress is None:
            return
        if report.error is not None:
            self._end(progress, report)
            return
        value = value_of(report, self.objective)
        progress.reported += 1
        if self.objective.better(value, than=progress.best):
            progress.best, progress.best_epoch, progress.metrics = value, report.epoch, dict(report.metrics)
        goes_on, past = self._goes_on(progress, report, value)
        # Epochs are counted, because they may be evaluated out of order.
        if goes_on and progress.reported < self.epochs:
            if self._sliced and not past:
                self._due.append(progress)
            return
        del self.under_way[progress.trial]
        if not goes_on or progress.trial in self._settled:
            return
        if progress.best != progress.best:
            self.failed(progress, f"{self.objective.metric} was no finite number in any of its epochs")
        else:
            self.finished(progress)

    # -- its parts

    def _keep(self, progress: TrialProgress) -> None:
        if self.proposals is not None:
            about = {"epochs": self.epochs, "sliced": self._sliced, "leader": self.described(progress.trial)}
            self.proposals.keep(progress.trial, progress.params, about)

    def _say_again(self, said: Work | Wait | Done) -> Work | Wait | Done:
        """Repeat an answer; a trial that is new in it is one that the leader must know again."""
        if isinstance(said, Work) and said.trial not in self.under_way:
            assert self.proposals is not None
            progress = self.under_way[said.trial] = TrialProgress(said.trial, said.params)
            if self.remember(progress, self.proposals.read(said.trial, said.params)["leader"]):
                self._settled.add(said.trial)
        return said

    def _goes_on(self, progress: TrialProgress, report: Report, value: float) -> tuple[bool, bool]:
        """Return whether a trial goes on after an epoch, and whether that was decided in the past."""
        went_on = None if self._past is None else self._past.went_on(report)
        if went_on is None:
            return progress.trial in self._settled or self.epoch(progress, report, value), False
        goes_on = went_on or not self._sliced or progress.reported >= self.epochs
        if progress.trial not in self._settled:
            self.remember_epoch(progress, report, value, goes_on)
        return goes_on, True

    def _end(self, progress: TrialProgress, report: Report) -> None:
        del self.under_way[progress.trial]
        self._due = [due for due in self._due if due is not progress]
        if progress.trial in self._settled:
            return
        if report.ended:
            self.ended(progress)
        else:
            assert report.error is not None
            self.failed(progress, report.error)


class Absent(Search):
    """Stands for the leader in the recipe of a run. The leader lives in its own process, so it only explains that.

    Args:
        leader: What leads the run, for the message.
        fix: What goes on with the run, for the message; `{run}` stands for its id.
    """

    def __init__(self, leader: str, fix: str) -> None:
        self._leader, self._fix = leader, fix

    def leads_like(self, other: Search) -> bool:
        """Whether a run with this stand-in can be continued by what stands behind the other."""
        return isinstance(other, Absent) and other._leader == self._leader

    def way_on(self, run: str) -> str:
        """What to do to go on with a run, for people."""
        return self._fix.replace("{run}", run)

    def ask(self) -> Work | Wait | Done:
        raise EventLogError(
            f"this run is led by {self._leader}, without which it cannot be resumed. Its results are kept (cs.Result),"
            f" and it goes on with this: {self.way_on('the id of the run')}"
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
        self._prepare(search, run_id)
        search.recall(Recollection(with_outcomes(EventLog(self.store, run_id).turns())))
        with Tracking(self._trackers, self.objective) as tracking:
            way_on = self._absent.way_on(run_id)
            runs.resume(self.store, run_id, self.backend, [tracking], progress, led_by=search, way_on=way_on)
            result = open_result(self.store, run_id)
            tracking.finish(result)
        return result

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
