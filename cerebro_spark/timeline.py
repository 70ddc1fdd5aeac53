"""What happened when: bars and marks collected from events, for charts and utilisation. It only watches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro_spark.events import Event, UnitFinished, WorkerJoined, WorkerLost
from cerebro_spark.types import Unit, WorkerId


class Bar(NamedTuple):
    """A finished unit on its worker."""

    worker: WorkerId
    unit: Unit
    start: float
    end: float


class Absence(NamedTuple):
    """A time during which a worker was dead; `end` is None while it has not returned."""

    worker: WorkerId
    start: float
    end: float | None


@dataclass(slots=True)
class Timeline:
    """An observer for an engine.

    >>> timeline = Timeline()
    >>> timeline(WorkerJoined(0.0, "w0"))
    >>> timeline(UnitFinished(2.0, "w0", Unit("t0", 1, "p0"), attempt=1, seconds=1.0))
    >>> timeline.end, timeline.utilisation()
    (2.0, 0.5)
    """

    keep_bars: bool = True
    bars: list[Bar] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    joined: dict[WorkerId, float] = field(default_factory=dict)
    end: float = 0.0
    busy: float = 0.0
    epoch_ends: dict[int, float] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if isinstance(event, UnitFinished):
            self._finished(event)
        elif isinstance(event, WorkerJoined):
            self._joined(event)
        elif isinstance(event, WorkerLost):
            self.absences.append(Absence(event.worker, event.at, None))

    def utilisation(self) -> float:
        """The share of the time of live workers that went into units that count."""
        present = sum(self.end - start for start in self.joined.values())
        absent = sum(
            (self.end if a.end is None else min(a.end, self.end)) - min(a.start, self.end) for a in self.absences
        )
        return self.busy / (present - absent) if present > absent else 0.0

    def _finished(self, event: UnitFinished) -> None:
        self.end = event.at
        self.busy += event.seconds
        self.epoch_ends[event.unit.epoch] = event.at
        if self.keep_bars:
            self.bars.append(Bar(event.worker, event.unit, event.at - event.seconds, event.at))

    def _joined(self, event: WorkerJoined) -> None:
        self.joined.setdefault(event.worker, event.at)
        for index in range(len(self.absences) - 1, -1, -1):
            absence = self.absences[index]
            if absence.worker == event.worker and absence.end is None:
                self.absences[index] = absence._replace(end=event.at)
                return
