"""The search of a run that another library leads, Hyperopt or Optuna. It proposes nothing itself.

The leader is asked in the engine's thread, one trial at a time. So it decides with all that is known by then, and an
interrupt or a dead backend ends its run like any other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.checks import check_at_least
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.tune.objective import value_of
from cerebro_spark.tune.plugins.recall import Proposals, Recollection
from cerebro_spark.types import Objective, Report, TrialId, Work


@dataclass(slots=True)
class TrialProgress:
    """A trial that is being trained: how many epochs it reported, and the best of them.

    The metrics are those of the best epoch; as long as none has a finite value, those of the last.
    """

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
    prunes = False
    """Whether `epoch` may end a trial early. Such a search never has `enough` while trials are being trained: so in the
    log of an interrupted run, a trial that was not asked for again after an epoch was pruned, unless the log ends there
    and `epoch` must say."""

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
        self._said_done = False
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

    def settled_epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        """Return whether a trial whose outcome the leader knows already goes on after an epoch, as it did then."""
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
        elif progress.reported:
            self.failed(progress, self._nothing_finite())
        else:
            self.failed(progress, "it was ended by a person before an epoch of it was measured")

    def run_ended(self) -> None:
        """Take note that the run came to its end. If this search did not say so, a person did, as of all its trials.

        A trial of which no epoch is known stays under way: nothing came of it.
        """
        if self._said_done:
            return
        for progress in list(self.under_way.values()):
            if progress.reported and progress.trial not in self._settled:
                del self.under_way[progress.trial]
                self.ended(progress)

    def timed_out(self) -> bool:
        """Return whether the timeout has passed by the last report, counted from when the leader was first asked."""
        began = self._now if self._began is None else self._began
        return self._timeout is not None and self._now - began >= self._timeout

    # -- the protocol

    def ask(self) -> Work | Wait | Done:
        answer = self._answer()
        self._said_done = isinstance(answer, Done)
        return answer

    def _answer(self) -> Work | Wait | Done:
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
        elif progress.best != progress.best:
            progress.metrics = dict(report.metrics)
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
            self.failed(progress, self._nothing_finite())
        else:
            self.finished(progress)

    # -- its parts

    def _nothing_finite(self) -> str:
        return f"{self.objective.metric} was no finite number in any of its epochs"

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
        asked_again = None if self._past is None else self._past.asked_again(report)
        if asked_again is None:
            decide = self.epoch if progress.trial not in self._settled else self.settled_epoch
            return decide(progress, report, value), False
        goes_on = asked_again or not (self.prunes and self._sliced) or progress.reported >= self.epochs
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
