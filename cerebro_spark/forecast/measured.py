"""What a run has measured so far, and what is under way in it: read off its events as a scheduler takes them in. PURE.

Times are the driver's: a unit lasts from when its worker could begin it (it was told, and had reported what came
before) until its end is known. What of that is not the unit's own `seconds` is the overhead of its order: waiting,
fetching and saving checkpoints, messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cerebro_spark.command_views import CommandView, is_paused, with_event
from cerebro_spark.events import (
    Action,
    CommandAnswered,
    CommandReceived,
    Event,
    GatheringBegan,
    LoadPartition,
    PartitionLoaded,
    RetireWorker,
    RunStarted,
    RunUnit,
    TellSearch,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.scheduling.records import OrderRecord
from cerebro_spark.types import Metrics, PartitionId, Steps, TrialId, UnitKind, WorkerId


class UnitSample(NamedTuple):
    """A unit that was done: its own seconds, or its share of those of `width` units that were computed at once.

    `first` says that it was among the first that its worker ever did, with all that is done once in a process, and
    `steps` how its steps were taken.
    """

    kind: UnitKind
    trial: TrialId
    kin: str
    worker: WorkerId
    partition: PartitionId
    width: int
    seconds: float
    first: bool
    steps: Steps = ""


class OrderSample(NamedTuple):
    """An order whose units were all done: how long it lasted beyond the seconds of its units, and until when."""

    kind: UnitKind
    overhead: float
    ended: float
    first: bool


@dataclass(slots=True)
class Measurements:
    """All that was measured. Only `Watch` changes it.

    Attributes:
        units: The units that were done, in the order of their ends.
        orders: The orders that were done without a failure, in the same order.
        loads: The seconds that partitions took to load.
        params: The params of each trial.
        curves: By trial and epoch, what was reported.
        begun: How many orders were given.
        losses: How many workers died at work.
        repairs: The seconds from the loss of a worker to the next one that joined.
        failed: The trials that failed.
        shapes: By kind of unit, the metrics of the last one.
        given: By number of an order, when it was given.
        free_at: By worker, when it last reported something, or joined.
        loading: By worker and partition, when the load was ordered that is under way.
        lost: The workers that are gone and were not replaced yet, with the times at which they went.
        returning: By worker that was dismissed, when another takes its place.
        expected: How many workers the run counts on.
        starting: The seconds from the beginning, or from when workers were gathered, to the first worker.
        paused: Whether people have paused the run, and not ended it since.
        now: When the last event happened.
    """

    units: list[UnitSample] = field(default_factory=list)
    orders: list[OrderSample] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    params: dict[TrialId, Mapping[str, Any]] = field(default_factory=dict)
    curves: dict[TrialId, dict[int, Mapping[str, float]]] = field(default_factory=dict)
    begun: int = 0
    losses: int = 0
    repairs: list[float] = field(default_factory=list)
    failed: set[TrialId] = field(default_factory=set)
    shapes: dict[UnitKind, Metrics] = field(default_factory=dict)
    given: dict[int, float] = field(default_factory=dict)
    free_at: dict[WorkerId, float] = field(default_factory=dict)
    loading: dict[tuple[WorkerId, PartitionId], float] = field(default_factory=dict)
    lost: dict[WorkerId, float] = field(default_factory=dict)
    returning: dict[WorkerId, float] = field(default_factory=dict)
    expected: int = 0
    starting: float | None = None
    paused: bool = False
    now: float = 0.0

    def kin(self, trial: TrialId) -> str:
        """Return the structure of a trial, by its params."""
        return kin_of(self.params[trial])


@dataclass(slots=True)
class _Progress:
    """An order that is under way: when it began, and its units that are done. It is spoilt if one of them failed."""

    began: float
    results: list[UnitFinished] = field(default_factory=list)
    spoilt: bool = False


class Watch:
    """Stands between an engine and its scheduler, and takes notice of what goes by.

    Args:
        scheduler: The scheduler. From now on its `handle` is this object.
        check: Called with every event: it may raise to end what goes on.
    """

    def __init__(self, scheduler: MopScheduler, check: Callable[[], None] = lambda: None) -> None:
        self.seen = Measurements()
        self._scheduler = scheduler
        self._handle = scheduler.handle
        self._check = check
        self._gathering = 0.0
        self._commands: Mapping[str, CommandView] = {}
        self._known: set[WorkerId] = set()
        """The workers that have done a unit in their present life."""
        self._open: dict[int, _Progress] = {}
        """By number, the orders of which some units are over and others are not."""
        scheduler.handle = self  # type: ignore[method-assign]

    def __call__(self, event: Event) -> list[Action]:
        """Take in an event as the scheduler does."""
        self._check()
        seen = self.seen
        seen.now = max(seen.now, event.at)
        record = self._order_of(event)
        self._note_event(event)
        actions = self._handle(event)
        if record is not None and isinstance(event, (UnitFinished, UnitFailed)):
            self._note_end(event, record)
        for action in actions:
            self._note_action(action)
        return actions

    def leave(self) -> None:
        """Take notice of nothing any more."""
        self._scheduler.handle = self._handle  # type: ignore[method-assign]

    def _order_of(self, event: Event) -> OrderRecord | None:
        """Return the order of a unit that has ended, if its result counts."""
        if not isinstance(event, (UnitFinished, UnitFailed)) or not self._scheduler.expects(event):
            return None
        return self._scheduler.state.orders[event.attempt]

    # -- events

    def _note_event(self, event: Event) -> None:
        seen = self.seen
        match event:
            case RunStarted():
                seen.expected = event.settings.workers
            case WorkAdded():
                seen.params[event.work.trial] = event.work.params
            case WorkerJoined():
                self._note_join(event)
            case WorkerLost():
                self._note_loss(event)
            case GatheringBegan():
                seen.expected, self._gathering = event.workers, event.at
            case CommandReceived() | CommandAnswered():
                self._commands = with_event(self._commands, event, None)
                seen.paused = is_paused(self._commands)
            case PartitionLoaded():
                ordered = seen.loading.pop((event.worker, event.partition), None)
                if ordered is not None:
                    seen.loads.append(event.at - ordered)

    def _note_join(self, event: WorkerJoined) -> None:
        seen = self.seen
        seen.free_at[event.worker] = event.at
        self._known.discard(event.worker)
        if seen.starting is None:
            seen.starting = event.at - self._gathering
        replaced = event.worker if event.worker in seen.lost else next(iter(seen.lost), None)
        if replaced is not None:
            seen.repairs.append(event.at - seen.lost.pop(replaced))
        elif seen.returning:
            seen.returning.pop(next(iter(seen.returning)))
        live = sum(worker.live for worker in self._scheduler.state.workers.values())
        seen.expected = max(seen.expected, live + 1 - self._is_live(event.worker))

    def _note_loss(self, event: WorkerLost) -> None:
        seen = self.seen
        if not self._is_live(event.worker):
            return
        if not self._scheduler.state.workers[event.worker].retiring:
            seen.lost[event.worker] = event.at
        if event.blames_unit:
            seen.losses += 1
        else:
            # With its driver every worker is lost at once: how long that lasts says nothing of later losses.
            seen.lost.pop(event.worker, None)
        seen.loading = {key: at for key, at in seen.loading.items() if key[0] != event.worker}

    def _is_live(self, worker: WorkerId) -> bool:
        record = self._scheduler.state.workers.get(worker)
        return record is not None and record.live

    def _note_end(self, event: UnitFinished | UnitFailed, record: OrderRecord) -> None:
        """A unit is over, and perhaps its order with it."""
        seen, number = self.seen, record.number
        if number not in self._open:
            given = seen.given.get(number, event.at)
            self._open[number] = _Progress(max(given, seen.free_at.get(event.worker, given)))
        progress = self._open[number]
        if isinstance(event, UnitFinished):
            progress.results.append(event)
            seen.shapes[event.unit.kind] = event.metrics
        else:
            progress.spoilt = True
        seen.free_at[event.worker] = event.at
        if not record.open:
            seen.given.pop(number, None)
            self._note_order(event.worker, event.at, self._open.pop(number))

    def _note_order(self, worker: WorkerId, at: float, progress: _Progress) -> None:
        """An order is over."""
        seen, results = self.seen, progress.results
        if not results:
            return
        first = worker not in self._known
        self._known.add(worker)
        for done in results:
            kind, trial, partition = done.unit.kind, done.unit.trial, done.unit.partition
            # What a group took is told as what it would have taken one of its workers for his partition.
            seconds = done.seconds * self._scheduler.efficiency_of(trial, len(done.workers))
            seen.units.append(
                UnitSample(kind, trial, seen.kin(trial), worker, partition, done.width, seconds, first, done.steps)
            )
        if not progress.spoilt:
            overhead = at - progress.began - sum(done.seconds for done in results)
            seen.orders.append(OrderSample(results[0].unit.kind, _clean(overhead, at), at, first))

    # -- actions

    def _note_action(self, action: Action) -> None:
        seen = self.seen
        match action:
            case RunUnit():
                seen.begun += 1
                seen.given[action.attempt] = seen.now
            case LoadPartition():
                seen.loading[action.worker, action.partition] = seen.now
            case RetireWorker(back_after=None):
                seen.expected -= 1
            case RetireWorker(worker=worker, back_after=float(seconds)):
                seen.returning[worker] = seen.now + seconds
            case TellSearch(report=report) if report.failed:
                if self._scheduler.state.trials[report.trial].status == "failed":  # and was not ended by a person
                    seen.failed.add(report.trial)
            case TellSearch(report=report):
                seen.curves.setdefault(report.trial, {})[report.epoch] = report.metrics


def _clean(seconds: float, at: float) -> float:
    """Return a difference of times without the rounding errors of clocks that show large numbers.

    >>> _clean(1e-13, 50.0), _clean(0.2, 50.0)
    (0.0, 0.2)
    """
    return 0.0 if abs(seconds) < 1e-9 * max(1.0, at) else seconds
