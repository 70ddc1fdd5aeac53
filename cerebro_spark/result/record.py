"""What became of a run, from its log alone: its events go through the scheduler once more. It never opens a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cerebro_spark.errors import EventLogError, NotFoundInStore
from cerebro_spark.eventlog import EventLog, taken_from_log
from cerebro_spark.events import Event, RunStarted, TellSearch, UnitFinished
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.timeline import Timeline
from cerebro_spark.types import Checkpoint, Objective, TrialId, UnitKind


class EpochRow(NamedTuple):
    """An epoch of a trial that was trained and evaluated, and the params that it was trained with."""

    trial: TrialId
    epoch: int
    at: float
    metrics: Mapping[str, float]
    params: Mapping[str, Any]


class UnitRow(NamedTuple):
    """A unit that counts: one that was given up, and reported too late, is none."""

    trial: TrialId
    epoch: int
    partition: str
    kind: UnitKind
    worker: str
    host: str
    start: float
    end: float
    seconds: float
    loss: float
    attempt: int


@dataclass(slots=True)
class Record:
    """A run so far. `epochs` are in the order in which they were reported, by (trial, epoch).

    `carrying` are the trials with a metric that can only be updated, row after row.
    """

    run: str
    recipe: str
    scheduler: MopScheduler
    events: list[Event]
    epochs: dict[tuple[TrialId, int], EpochRow] = field(default_factory=dict)
    units: list[UnitRow] = field(default_factory=list)
    errors: dict[TrialId, str] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    carrying: set[TrialId] = field(default_factory=set)
    _params: dict[tuple[TrialId, int], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def objective(self) -> Objective | None:
        return self.scheduler.settings.objective

    @property
    def trials(self) -> dict[TrialId, TrialRecord]:
        return self.scheduler.state.trials

    def status(self, trial: TrialId) -> str:
        """ "finished", "failed" or "stopped"; in a run that is not over also "running" or "paused"."""
        found = self.trials[trial].status
        if found == "training":
            return "running"
        return "finished" if found == "paused" and self.scheduler.state.search_ended else found

    def best_epoch(self, trial: TrialId) -> EpochRow | None:
        """The trial's best epoch, or None if it has none yet."""
        best = self.trials[trial].best
        return None if best is None else self.epochs[trial, best.epoch]

    def best_checkpoint(self, trial: TrialId) -> Checkpoint | None:
        return self.trials[trial].best

    def ranked(self) -> list[TrialId]:
        """The trials, best first: by their best epoch, then those without one, and last of all those that failed."""
        mode = self.objective.mode if self.objective else "min"

        def place(trial: TrialId) -> tuple[bool, bool, bool, float, int]:
            record = self.trials[trial]
            value = record.best_value
            none = not math.isfinite(value)
            return (
                record.status == "failed",
                record.best is None,
                none,
                0.0 if none else (-value if mode == "max" else value),
                record.row,
            )

        return sorted(self.trials, key=place)

    def take(self, event: Event) -> None:
        """One more event of the log."""
        self.scheduler.check_logged(event)
        if isinstance(event, UnitFinished):
            self._take_unit(event)
        else:
            self.timeline(event)
            self._hear(event)
        self.events.append(event)

    def _take_unit(self, event: UnitFinished) -> None:
        state = self.scheduler.state
        given = state.assignments.get(event.attempt)
        counts = given is not None and (given.worker, given.unit) == (event.worker, event.unit)
        if counts:
            self.timeline(event)
            self.units.append(_unit_row(event, state.workers[event.worker].host))
            if event.metrics.carries:
                self.carrying.add(event.unit.trial)
            if event.unit.kind == "train":
                # Those of the last unit of an epoch stand: params change between epochs only.
                self._params[event.unit.trial, event.unit.epoch] = self.trials[event.unit.trial].running_params
        self._hear(event)

    def _hear(self, event: Event) -> None:
        for action in self.scheduler.handle(event):
            if isinstance(action, TellSearch):
                report = action.report
                if report.error is not None:
                    self.errors.setdefault(report.trial, report.error)
                else:
                    key = report.trial, report.epoch
                    self.epochs[key] = EpochRow(*key, report.at, dict(report.metrics), self._params[key])


def replay(events: Iterable[Event]) -> Record:
    """What became of the run with these events, of which the first is its start.

    >>> from cerebro_spark.events import Settings, WorkAdded
    >>> from cerebro_spark.types import Partition, Work
    >>> start = RunStarted(0.0, "r1", Settings((Partition("p0", rows=10),), workers=1))
    >>> replay([start, WorkAdded(0.0, Work("t0", {"lr": 0.1}, until_epoch=1))]).status("t0")
    'running'
    """
    rest = iter(events)
    first = next(rest, None)
    if not isinstance(first, RunStarted):
        raise EventLogError(f"the log begins with {first}, but must begin with the start of a run: it is damaged")
    with taken_from_log(first):
        record = Record(first.run, first.recipe, MopScheduler(first.settings), [])
        record.take(first)
    for event in rest:
        with taken_from_log(event):
            record.take(event)
    return record


def read_record(store: Store, run: str) -> Record:
    """What became of this run of a store. Raises NotFoundInStore with the runs that there are."""
    if not store.list(paths.log_folder(run)):
        there = paths.run_ids(store.list(paths.RUNS))
        raise NotFoundInStore(f"{store.url} has no run {run!r}: it has {there or 'none at all'}")
    return replay(EventLog(store, run).read())


def _unit_row(event: UnitFinished, host: str) -> UnitRow:
    unit = event.unit
    loss = event.metrics.values().get("loss", float("nan"))
    start = event.at - event.seconds
    return UnitRow(*unit, event.worker, host, start, event.at, event.seconds, loss, event.attempt)
