"""A run taken up where its log ends, and brought to its end in virtual time by the engine itself. It trains nothing.

Search and scheduler are brought into the state in which the driver's are, by repeating the log as `resume` does. Then
workers go on with what they are at, on a backend in virtual time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cerebro_spark.codec import encode
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.errors import CerebroError, EventLogError
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import CommandAnswered, CommandReceived, Event, RunStarted, RunUnit, WorkAdded
from cerebro_spark.forecast.backend import Future, RemainingBackend, WorkerStanding
from cerebro_spark.forecast.curves import Curves, DrawnCurves
from cerebro_spark.forecast.measured import Measurements, Watch
from cerebro_spark.forecast.pace import Pace, pace_of
from cerebro_spark.scheduling.records import WorkerRecord
from cerebro_spark.search import Search
from cerebro_spark.turns import Turn

# A lost worker that has not been replaced after so many times the usual time does not come any more.
_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """One way in which the run may go on.

    Args:
        seed: The seed of what is drawn: what epochs measure, and how times vary.
        noisy: Whether times vary and things fail as they did so far. Defaults to False: all is as expected.
        command: What a person tells the run now. Defaults to None: nothing.
    """

    seed: int = 0
    noisy: bool = False
    command: Command | None = None


@dataclass(frozen=True, slots=True)
class SimulatedEnd:
    """How a simulation ended.

    Attributes:
        at: When the run was done, in seconds of the run; None if it could not go on, for the `reason`.
        asked: A digest of what the search asked for on the way.
        guessed: Whether the times of some units are guesses: nothing like them was ever measured.
        reason: Why it could not go on.
    """

    at: float | None
    asked: str = ""
    guessed: bool = False
    reason: str = ""


class Continuation(Engine):
    """A run where its log ends. It can be brought to its end once.

    Args:
        events: All events of the log so far.
        search: The search of the run as it was before it was asked anything.
        now: The present, in seconds of the run: not before the last event. Defaults to None: that of the last event.
        check: Called now and then; it may raise to end what goes on.

    Raises:
        EventLogError: If the log does not begin with the start of a run, or the search is not the one of the run.
    """

    def __init__(
        self,
        events: Sequence[Event],
        search: Search,
        now: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        start = events[0] if events else None
        if not isinstance(start, RunStarted):
            raise EventLogError("the log does not begin with the start of a run: nothing can be said about it")
        nobody = RemainingBackend.__new__(RemainingBackend)  # `finish` brings the workers
        asked = _Asked()
        super().__init__(search, start.settings, nobody, DiscardingLog(), start.run, [asked], clock=lambda: 0.0)
        self._asked = asked
        watch = Watch(self.scheduler, check)
        self._unlogged = self._repeat(list(events))
        watch.leave()
        self.seen: Measurements = watch.seen
        self.now = max(self.seen.now, now or 0.0)
        self._check = check
        self._pace: Pace | None = None

    @property
    def pace(self) -> Pace:
        """How fast the run goes. There must be a unit that is done."""
        if self._pace is None:
            self._pace = pace_of(self.seen, self._settings.partitions)
        return self._pace

    @property
    def decided(self) -> bool:
        """Whether the search will ask for no more, so that nothing depends on what epochs measure."""
        return self.scheduler.state.search_ended

    def unknown(self) -> str:
        """Return why nothing can be said about the rest of the run; "" if something can."""
        if not self.seen.units:
            return "no unit has ended"
        if not self._workers():
            return "no worker is left"
        return ""

    def likely_questions(self, most: int) -> list[Command]:
        """Return what people may want to know: what if the run was ended now, or one of the trials stopped that train.

        Args:
            most: How many trials. Those with most epochs left come first.
        """
        training = [trial for trial in self.scheduler.state.trials.values() if trial.status == "training"]
        training.sort(key=lambda trial: trial.epoch - trial.until)
        return [Command("end"), *(Command("stop_trial", trial=trial.id) for trial in training[:most])]

    def watch_with(self, check: Callable[[], None]) -> None:
        """Have something else called now and then from here on."""
        self._check = check

    def finish(self, plan: Simulation) -> SimulatedEnd:
        """Bring the run to its end.

        Args:
            plan: How it goes on.

        Returns:
            How it ended. Afterwards this object is of no use.
        """
        if self.scheduler.finished:
            return SimulatedEnd(self.seen.now)
        try:
            self._backend = backend = RemainingBackend(self._workers(), self._future(plan), self.now)
            said = [] if plan.command is None else [CommandReceived(self.now, plan.command)]
            self._go([*(replace(event, at=self.now) for event in self._unlogged), *said], self.now)
        except CerebroError as error:
            return SimulatedEnd(None, reason=str(error))
        if self._asked.refused:
            return SimulatedEnd(None, reason=self._asked.refused)
        return SimulatedEnd(backend.now(), self._asked.digest(), backend.guessed)

    def _check_that_something_can_come(self) -> None:
        self._check()
        super()._check_that_something_can_come()

    def _future(self, plan: Simulation) -> Future:
        seen, objective = self.seen, self._settings.objective
        return Future(
            self.pace,
            DrawnCurves(Curves(seen.curves, objective), plan.seed),
            objective,
            seen.shapes,
            frozenset(sample.trial for sample in seen.units),
            seen.starting or 0.0,
            plan.noisy,
            plan.seed,
            self.scheduler.efficiency_of,
        )

    # -- who is there

    def _workers(self) -> list[WorkerStanding]:
        """Return the workers that are there, and those that will come."""
        there = [self._standing(worker) for worker in self.scheduler.state.workers.values() if worker.live]
        return [*there, *self._coming(len(there))]

    def _standing(self, worker: WorkerRecord) -> WorkerStanding:
        seen, state = self.seen, self.scheduler.state
        orders = self._orders_of(worker)
        ended = state.orders[orders[0].attempt].results if orders else []
        known = {sample.worker for sample in seen.units}
        return WorkerStanding(
            worker.id,
            worker.host,
            orders,
            self._began(worker, orders[0]) if orders else 0.0,
            any(width > 1 for _, _, width in ended),
            {partition: at for (name, partition), at in seen.loading.items() if name == worker.id},
            worker.id not in known,
        )

    def _orders_of(self, worker: WorkerRecord) -> tuple[RunUnit, ...]:
        """Return what a worker was told and has not reported, with units of one order together."""
        state = self.scheduler.state
        members: dict[int, list[RunUnit]] = {}
        for attempt in worker.queue:
            members.setdefault(state.orders[attempt].number, []).append(state.assignments[attempt])
        return tuple(replace(first, others=tuple(others)) for first, *others in members.values())

    def _began(self, worker: WorkerRecord, order: RunUnit) -> float:
        number = self.scheduler.state.orders[order.attempt].number
        return max(self.seen.given.get(number, self.now), self.seen.free_at.get(worker.id, 0.0))

    def _coming(self, there: int) -> list[WorkerStanding]:
        """Return the workers that are missed, if they can be expected to come."""
        seen, repair = self.seen, self._repair()
        dismissed = [WorkerStanding(name, joins_at=max(at, self.now)) for name, at in seen.returning.items()]
        missed = max(0, seen.expected - there - len(dismissed))
        gone = [name for name, worker in self.scheduler.state.workers.items() if not worker.live]
        gone = [name for name in gone if name not in seen.returning]
        names = [*seen.lost, *(name for name in gone if name not in seen.lost)]
        names += [f"expected-{number}" for number in range(missed - len(names))]
        coming = []
        for name in names[:missed]:
            lost_at = seen.lost.get(name, seen.now)
            if repair is not None and self.now - lost_at <= _PATIENCE * repair:
                coming.append(WorkerStanding(name, joins_at=max(self.now, lost_at + repair)))
        return [*dismissed, *coming]

    def _repair(self) -> float | None:
        return self.pace.repair if self.seen.units else None


class _Asked:
    """An observer that takes notice of what a search asks for, and of commands that are `refused`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.refused = ""

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            if isinstance(event, WorkAdded):
                work = replace(event.work, warm_start=None)
                self._hash.update(encode(WorkAdded(0.0, work)).encode())
            elif isinstance(event, CommandAnswered) and not event.done:
                self.refused = event.reason

    def digest(self) -> str:
        return self._hash.hexdigest()
