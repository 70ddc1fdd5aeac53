"""What a run looks like from outside, from its turns alone: trials, epochs, units, workers, counts. PURE.

No I/O, no clock, no thread, no scheduler: `apply` is the only mutator, and live runs and logs go through it alike. What
counted and how trials stand is decided by the scheduler and said by the outcomes; nothing of that is decided here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cerebro_spark.command_views import CommandView, has_ended, is_kill, is_paused, with_event
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    GatheringBegan,
    GroupGaveUp,
    PartitionLoaded,
    PartitionLost,
    RunStarted,
    SearchEnded,
    Settings,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.timeline import Timeline, UnitRow
from cerebro_spark.traffic import Traffic
from cerebro_spark.turns import LoadOrder, Outcome, TrialState, TrialStatus, Turn, UnitOrder
from cerebro_spark.types import Checkpoint, Objective, Report, TrialId, WorkerId
from cerebro_spark.worker_view import AssignedUnit, WorkerView, activity_key

_NUMBER = re.compile(r"-?\d[\d.]*(e[-+]?\d+)?")

__all__ = ["AssignedUnit", "CommandView", "Counts", "EpochRow", "RunView", "TrialView", "WorkerView"]


class EpochRow(NamedTuple):
    """An epoch of a trial that was trained and evaluated, the params it was trained with, and what it left."""

    trial: TrialId
    epoch: int
    at: float
    metrics: Mapping[str, float]
    params: Mapping[str, Any]
    checkpoint: Checkpoint | None = None


class TrialView(NamedTuple):
    """A trial: its params now, how far it is to go, how far it is.

    `number` counts trials from 0, `units` those units of it that are done, `epochs` the epochs that were reported;
    `last` is the latest of these, `best` the best one, if there is any. `parent` is the trial that it was cloned from,
    or whose weights it took over last; `commanded` says that a person asked for it, and not the search.
    """

    id: TrialId
    number: int
    params: Mapping[str, Any]
    status: TrialStatus = "training"
    until: int = 0
    units: int = 0
    epochs: int = 0
    last: int = 0
    best: EpochRow | None = None
    parent: TrialId | None = None
    commanded: bool = False


class Counts(NamedTuple):
    """How much of a run is done, and how much was asked for so far: that grows when a search asks for more.

    Of a trial that failed or was stopped only those units are asked for that it did. Trials that are `done` have
    nothing left to do; a search may still let them go on.
    """

    units: int = 0
    all_units: int = 0
    epochs: int = 0
    all_epochs: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    workers: int = 0


@dataclass(slots=True)
class RunView:
    """A run so far. Its rows never change, they are replaced: what was read of it stays as it was read.

    Attributes:
        run: The id of the run; "" before its start.
        recipe: The digest of what the run is made from; "" if it has none.
        settings: What the run was started with; None before its start.
        trials: The trials, in the order in which they were asked for.
        epochs: The reported epochs by (trial, epoch), in the order of their reports.
        workers: All workers that ever came.
        timeline: The units that count, and when workers were there.
        traffic: The bytes of checkpoints that moved.
        errors: The first error of each trial that had one.
        carrying: The trials with a metric that can only be updated, row after row.
        ungrouped: The trials that no group of workers can train, with the reason.
        events: How many events it has taken in.
        now: When the last of them happened, in seconds of the run.
        wall_clock: When the last turn was logged, in seconds since 1970; None where that is not known.
        started: The same of the first turn of which it is known.
        search_ended: Whether the search will ask for no more.
        finished: Whether the run is over.
        commands: What people told the run, by the ids of the commands, in their order.
        killed: Whether a person killed the driver of the run, and no other has gone on with it since.

    >>> from cerebro_spark.types import Partition, Work
    >>> start = RunStarted(0.0, "r1", Settings((Partition("p0"),), workers=1))
    >>> view = RunView()
    >>> view.apply(Turn([start, WorkAdded(0.0, Work("t0", {}, 3))], [Outcome(), Outcome()], wall_clock=1.8e9))
    >>> view.apply(Turn([WorkerJoined(5.0, "w3")], [Outcome(loads=(LoadOrder("w3", "p0"),))], wall_clock=1.8e9 + 5))
    >>> view.workers["w3"].activity, view.workers["w3"].since_clock
    ('loading p0', 1800000005.0)
    """

    run: str = ""
    recipe: str = ""
    settings: Settings | None = None
    trials: dict[TrialId, TrialView] = field(default_factory=dict)
    epochs: dict[tuple[TrialId, int], EpochRow] = field(default_factory=dict)
    workers: dict[WorkerId, WorkerView] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    traffic: Traffic = field(default_factory=Traffic)
    errors: dict[TrialId, str] = field(default_factory=dict)
    carrying: set[TrialId] = field(default_factory=set)
    ungrouped: dict[TrialId, str] = field(default_factory=dict)
    events: int = 0
    now: float = 0.0
    wall_clock: float | None = None
    started: float | None = None
    search_ended: bool = False
    finished: bool = False
    commands: Mapping[str, CommandView] = field(default_factory=dict)
    killed: bool = False
    _works: dict[TrialId, list[Mapping[str, Any]]] = field(default_factory=dict)
    """The params of all Works of a trial; they take effect one after another."""
    _trained: dict[tuple[TrialId, int], Mapping[str, Any]] = field(default_factory=dict)
    """The params of the last training unit of an epoch that was not reported yet."""

    def apply(self, turn: Turn) -> None:
        """Take in one more turn of the run.

        Args:
            turn: The next turn, with its outcomes. How events are spread over turns does not matter.
        """
        self.wall_clock = turn.wall_clock
        self.started = turn.wall_clock if self.started is None else self.started
        for event, outcome in turn:
            self.events += 1
            self.now = max(self.now, event.at)
            if outcome.counted:
                self.timeline.add(event)
                self.traffic.add(event)
                self._take_event(event)
            self._take_outcome(outcome)

    # -- what can be asked

    @property
    def objective(self) -> Objective | None:
        """By what epochs are compared."""
        return self.settings.objective if self.settings else None

    @property
    def paused(self) -> bool:
        """Whether a person has paused the run."""
        return is_paused(self.commands) and not self.finished

    @property
    def units(self) -> list[UnitRow]:
        """The units that count, in the order of their ends."""
        return self.timeline.units

    def status(self, trial: TrialId) -> str:
        """ "finished", "failed" or "stopped"; in a run that is not over also "running" or "paused"."""
        found = self.trials[trial].status
        if found == "training":
            return "running"
        return "finished" if found == "paused" and self.search_ended else found

    def best_epoch(self, trial: TrialId) -> EpochRow | None:
        """The trial's best epoch, or None if it has none yet."""
        return self.trials[trial].best

    def refusals(self) -> list[str]:
        """Why groups of workers cannot train trials of this run, each reason once, with the first trial that had it.

        Reasons that differ in numbers only count as one: what was measured differs from trial to trial.
        """
        found: dict[str, str] = {}
        for trial, reason in self.ungrouped.items():
            found.setdefault(_NUMBER.sub("", reason.replace(trial, "", 1)), reason)
        return list(found.values())

    def ranked(self) -> list[TrialId]:
        """The trials, best first: by their best epoch, then those without one, and last of all those that failed."""
        return sorted(self.trials, key=self._rank)

    def best(self) -> EpochRow | None:
        """The best epoch of the trial that ranks first; None if it has none, or all trials failed."""
        first = min(self.trials, key=self._rank, default=None)
        return None if first is None or self.trials[first].status == "failed" else self.trials[first].best

    def counts(self) -> Counts:
        """How much is done, and how much was asked for."""
        trials = self.trials.values()
        per_epoch = len(self.settings.partitions) if self.settings else 0
        failed = sum(trial.status == "failed" for trial in trials)
        done = sum(t.status == "stopped" or (t.status != "failed" and t.last >= t.until) for t in trials)
        return Counts(
            units=sum(trial.units for trial in trials),
            all_units=sum(t.units if t.status in ("failed", "stopped") else t.until * per_epoch for t in trials),
            epochs=len(self.epochs),
            all_epochs=sum(trial.until for trial in trials),
            running=len(trials) - failed - done,
            done=done,
            failed=failed,
            workers=sum(worker.up for worker in self.workers.values()),
        )

    def _rank(self, trial: TrialId) -> tuple[bool, bool, bool, float, int]:
        shown, objective = self.trials[trial], self.objective
        best = shown.best
        value = best.metrics.get(objective.metric, math.nan) if best and objective else math.nan
        none = not math.isfinite(value)
        signed = 0.0 if none else -value if objective and objective.mode == "max" else value
        return shown.status == "failed", best is None, none, signed, shown.number

    # -- what an event says itself

    def _take_event(self, event: Event) -> None:
        match event:
            case UnitFinished():
                self._finish_unit(event)
            case UnitFailed() | UnitWithdrawn():
                self._end_unit(event.worker, event.attempt)
            case GroupGaveUp():
                self._end_unit(event.worker, event.attempt)
                if event.lasting:
                    self.ungrouped.setdefault(event.unit.trial, event.reason)
            case WorkAdded():
                self._add_work(event)
            case CommandReceived() | CommandAnswered():
                self._hear(event)
            case WorkerJoined():
                self.workers.setdefault(event.worker, WorkerView(event.worker, up=False))
                for assigned in self.workers[event.worker].queue:
                    self._end_unit(event.worker, assigned.attempt)
                self._set_worker(event.worker, host=event.host, up=True, loading=())
            case WorkerLost() if event.worker in self.workers:
                for assigned in self.workers[event.worker].queue:
                    self._end_unit(event.worker, assigned.attempt)
                self._set_worker(event.worker, up=False, loading=())
            case PartitionLoaded() | PartitionLost() if event.worker in self.workers:
                left = tuple(name for name in self.workers[event.worker].loading if name != event.partition)
                self._set_worker(event.worker, loading=left)
            case RunStarted():
                self.run, self.recipe, self.settings = event.run, event.recipe, event.settings
            case SearchEnded():
                self.search_ended = True
            case GatheringBegan():  # the first thing that another driver says
                self.killed = False

    def _add_work(self, event: WorkAdded) -> None:
        work, source = event.work, event.work.warm_start
        self._works.setdefault(work.trial, []).append(work.params)
        if work.trial not in self.trials:
            self.trials[work.trial] = TrialView(work.trial, len(self.trials), work.params, until=work.until_epoch)
        if source is not None and source.trial != work.trial:
            self.trials[work.trial] = self.trials[work.trial]._replace(parent=source.trial)
        if isinstance(event, WorkCommanded):
            self._hear(event)
            by = self.commands.get(event.command)
            parent = by.command.trial if by and by.command.verb == "clone" else self.trials[work.trial].parent
            self.trials[work.trial] = self.trials[work.trial]._replace(parent=parent, commanded=True)

    def _hear(self, event: Event) -> None:
        self.commands = with_event(self.commands, event, self.wall_clock)
        self.search_ended = self.search_ended or has_ended(self.commands)
        if isinstance(event, CommandAnswered) and is_kill(self.commands, event):
            self.killed = True

    def _finish_unit(self, event: UnitFinished) -> None:
        params = self._end_unit(event.worker, event.attempt)
        trial, unit = self.trials[event.unit.trial], event.unit
        self.trials[unit.trial] = trial._replace(units=trial.units + len(unit.partitions))
        if event.metrics.carries:
            self.carrying.add(unit.trial)
        if unit.kind == "train":
            # Those of the last unit of an epoch stand: params change between epochs only.
            self._trained[unit.trial, unit.epoch] = params

    def _end_unit(self, worker: WorkerId, attempt: int) -> Mapping[str, Any]:
        """A unit is no longer to be done, neither by this worker nor by others of its group.

        Returns:
            The params with which it ran.
        """
        (gone,) = (assigned for assigned in self.workers[worker].queue if assigned.attempt == attempt)
        for name in gone.workers:
            queue = self.workers[name].queue
            self._set_worker(name, queue=tuple(assigned for assigned in queue if assigned is not gone))
        return gone.params

    # -- what the scheduler made of it

    def _take_outcome(self, outcome: Outcome) -> None:
        for report in outcome.reports:
            self._take_report(report)
        for state in outcome.trials:
            self._set_trial(state)
        self.traffic.note_trials(outcome.trials)
        self.timeline.note_orders(outcome.orders)
        for order in outcome.orders:
            self._assign(order)
        for load in outcome.loads:
            self._start_load(load)
        self.timeline.note_retired(outcome.retired, self.now)
        for worker in outcome.retired:
            self._set_worker(worker, up=False, queue=(), loading=())
        self.finished = self.finished or outcome.finished

    def _set_trial(self, state: TrialState) -> None:
        name, status, until, works, best = state
        params = self._works[name][max(works, 1) - 1]
        row = None if best is None else self.epochs[name, best]
        self.trials[name] = self.trials[name]._replace(params=params, status=status, until=until, best=row)

    def _assign(self, order: UnitOrder) -> None:
        params = self.trials[order.unit.trial].params
        assigned = AssignedUnit(order.attempt, order.unit, params, order.bundle, order.workers)
        for name in order.workers:
            self._set_worker(name, queue=(*self.workers[name].queue, assigned))

    def _start_load(self, load: LoadOrder) -> None:
        loading = self.workers[load.worker].loading
        self._set_worker(load.worker, loading=tuple(dict.fromkeys([*loading, load.partition])))

    def _take_report(self, report: Report) -> None:
        if report.ended:
            return
        if report.error is not None:
            self.errors.setdefault(report.trial, report.error)
            return
        key, trial = (report.trial, report.epoch), self.trials[report.trial]
        self.epochs[key] = EpochRow(*key, report.at, report.metrics, self._trained.pop(key), report.checkpoint)
        last = max(trial.last, report.epoch)
        self.trials[report.trial] = trial._replace(epochs=trial.epochs + 1, last=last)

    def _set_worker(
        self,
        name: WorkerId,
        queue: tuple[AssignedUnit, ...] | None = None,
        loading: tuple[str, ...] | None = None,
        host: str | None = None,
        up: bool | None = None,
    ) -> None:
        """Replace the row of a worker; if it does something else now, it does so from now on."""
        before = self.workers[name]
        after = WorkerView(
            name,
            before.host if host is None else host,
            before.up if up is None else up,
            before.queue if queue is None else queue,
            before.loading if loading is None else loading,
            self.now,
            self.wall_clock,
        )
        if activity_key(after) == activity_key(before):
            after = after._replace(since=before.since, since_clock=before.since_clock)
        self.workers[name] = after
