"""What ran when: finished units and absences of workers, for tables, charts and utilisation. It only watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro_spark.events import Event, UnitFinished, WorkerJoined, WorkerLost
from cerebro_spark.turns import Turn, UnitOrder
from cerebro_spark.types import PartitionId, Steps, TrialId, UnitKind, WorkerId


class UnitRow(NamedTuple):
    """A unit that counts: one that was given up, and reported too late, is none. Times are seconds of the run.

    `width` is how many units, each of another trial, were computed at once from `start` to `end`; `seconds` is this
    one's share of that time. `bundle` is equal for the units of one order: the attempt of the first of them. `steps`
    says how the steps of a training unit were taken. `group` is how many workers ran it together, each with another
    partition: there is a row for each of them, all with the same attempt, and `loss` is that of all their rows.
    """

    trial: TrialId
    epoch: int
    partition: str
    kind: UnitKind
    worker: WorkerId
    host: str
    start: float
    end: float
    seconds: float
    loss: float
    attempt: int
    width: int = 1
    bundle: int = 0
    steps: Steps = ""
    group: int = 1


class Absence(NamedTuple):
    """A time during which a worker was dead, or was let go (`retired`); `end` is None while it has not returned."""

    worker: WorkerId
    start: float
    end: float | None
    retired: bool = False


@dataclass(slots=True)
class Timeline:
    """An observer for an engine, and a part of every RunView.

    Attributes:
        keep_units: Whether to keep a row for each unit; without them it stays small.
        units: The units that count, in the order of their ends.
        absences: When workers were dead.
        joined: When each worker first came.
        hosts: Where each worker is, or was last.
        end: When the last unit ended.
        busy: Seconds that all workers together spent on units that count.
        epoch_ends: When the last unit of each epoch ended, of all trials.

    >>> from cerebro_spark.types import Unit
    >>> timeline = Timeline()
    >>> timeline.add(WorkerJoined(0.0, "w0"))
    >>> timeline.add(UnitFinished(2.0, "w0", Unit("t0", 1, "p0"), attempt=1, seconds=1.0))
    >>> timeline.end, timeline.utilisation()
    (2.0, 0.5)
    """

    keep_units: bool = True
    units: list[UnitRow] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    joined: dict[WorkerId, float] = field(default_factory=dict)
    hosts: dict[WorkerId, str] = field(default_factory=dict)
    end: float = 0.0
    busy: float = 0.0
    epoch_ends: dict[int, float] = field(default_factory=dict)
    _bundles: dict[int, int] = field(default_factory=dict)
    """Of units that were ordered together, by attempt, the attempt of the first of them."""

    def __call__(self, turn: Turn) -> None:
        """Take in what counted of a turn."""
        for event, outcome in turn:
            if outcome.counted:
                self.add(event)
            self.note_orders(outcome.orders)
            self.note_retired(outcome.retired, event.at)

    def note_retired(self, workers: Sequence[WorkerId], at: float) -> None:
        """Take notice of workers that were let go: they are no longer there, and nobody says that they are lost."""
        for worker in workers:
            self._leave(worker, at, retired=True)

    def note_orders(self, orders: Sequence[UnitOrder]) -> None:
        """Take notice of units that are to run together."""
        if self.keep_units:
            self._bundles.update({order.attempt: order.bundle for order in orders if order.bundle is not None})

    def add(self, event: Event) -> None:
        """Take in one event that counted."""
        if isinstance(event, UnitFinished):
            self._finished(event)
        elif isinstance(event, WorkerJoined):
            self._joined(event)
        elif isinstance(event, WorkerLost):
            self._leave(event.worker, event.at)

    def utilisation(self) -> float:
        """The share of the time of live workers that went into units that count."""
        present = sum(self.end - start for start in self.joined.values())
        absent = sum(
            (self.end if a.end is None else min(a.end, self.end)) - min(a.start, self.end) for a in self.absences
        )
        return self.busy / (present - absent) if present > absent else 0.0

    def _finished(self, event: UnitFinished) -> None:
        self.end = event.at
        self.busy += event.seconds * len(event.workers)
        self.epoch_ends[event.unit.epoch] = event.at
        if self.keep_units:
            bundle = self._bundles.pop(event.attempt, event.attempt)
            self.units += [
                self._row(event, bundle, worker, partition)
                for worker, partition in zip(event.workers, event.unit.partitions, strict=True)
            ]

    def _row(self, event: UnitFinished, bundle: int, worker: WorkerId, partition: PartitionId) -> UnitRow:
        """Return what one worker did of a unit."""
        trial, epoch, _, kind, _ = event.unit
        host, start = self.hosts.get(worker, ""), event.at - event.seconds * event.width
        loss = event.metrics.values().get("loss", float("nan"))
        done = (event.attempt, event.width, bundle, event.steps, len(event.workers))
        return UnitRow(trial, epoch, partition, kind, worker, host, start, event.at, event.seconds, loss, *done)

    def _leave(self, worker: WorkerId, at: float, retired: bool = False) -> None:
        if not any(absence.worker == worker and absence.end is None for absence in self.absences):
            self.absences.append(Absence(worker, at, None, retired))

    def _joined(self, event: WorkerJoined) -> None:
        self.joined.setdefault(event.worker, event.at)
        self.hosts[event.worker] = event.host
        for index, absence in reversed([*enumerate(self.absences)]):
            if absence.worker == event.worker and absence.end is None:
                self.absences[index] = absence._replace(end=event.at)
                return
