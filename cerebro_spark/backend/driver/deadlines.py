"""What workers were ordered to do, since when, and which of them take too long for it. It kills no worker.

An order's time runs from when its worker says that it began until it says how it ended; writing a checkpoint to the
store is part of that. A worker that begins nothing at all is overdue too, only later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cerebro_spark.backend.wire.messages import FromWorker, GroupStalled, LoadStarted, ToWorker, UnitStarted
from cerebro_spark.events import (
    AbandonUnit,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
)
from cerebro_spark.types import PartitionId, Unit

if TYPE_CHECKING:
    from cerebro_spark.backend.driver.workers import WorkerHandle

_NEVER = float("inf")


@dataclass(slots=True)
class PendingOrder:
    """A unit or a load that a worker is to end within `limit` seconds; `began` is None while it has not begun.

    `key` is the attempt of a unit, or the partition of a load. An order may have units of several trials: `open` are
    the attempts of those that have not ended, and `key` is that of the first. The order of a group is one for each of
    its workers: one that has waited for others since `stalled`, and what its `unit` is.
    """

    what: str
    key: int | PartitionId
    limit: float
    began: float | None = None
    open: set[int] = field(default_factory=set)
    unit: Unit | None = None
    stalled: float | None = None

    @property
    def waits_for_others(self) -> bool:
        """Whether its worker can do nothing but wait for other members of its group."""
        return self.stalled is not None


class Deadlines:
    """The deadlines of one run. Its caller holds the pool's lock.

    Args:
        grace: Seconds that a worker may take to begin an order.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._look_at = _NEVER

    def wait(self, now: float) -> float | None:
        """Return the seconds after which a worker may be overdue; None if none can be."""
        return None if self._look_at == _NEVER else max(0.0, self._look_at - now)

    def note_order(self, handle: WorkerHandle, order: ToWorker, now: float) -> None:
        """Start to watch an order, if it is one that takes time."""
        key: int | PartitionId
        attempts: set[int] = set()
        unit: Unit | None = None
        match order:
            case RunUnit(attempt=key, unit=unit):
                what = f"unit {order.unit}"
                attempts = {member.attempt for member in order.members}
                what += f" with {len(order.others)} more trials" if order.others else ""
                what += f" in a group of {len(order.workers)} workers" if order.partners else ""
            case LoadPartition(partition=key):
                what = f"loading partition {key}"
            case AbandonUnit(attempt=key):
                self.note_end(handle, key, now)
                return
            case _:
                return
        limit = _NEVER if order.limit is None else order.limit
        handle.orders[key] = PendingOrder(what, key, limit, open=attempts, unit=unit)
        if len(handle.orders) == 1:
            handle.since = now
        self._look_at = min(self._look_at, now + limit)

    def set_limit(self, handle: WorkerHandle, action: LimitOrder, now: float) -> None:
        """Give a limit to something that was ordered without one."""
        key = action.partition if action.attempt is None else action.attempt
        order = None if key is None else handle.orders.get(key)
        if order is not None:
            order.limit = action.limit
            self._look_at = min(self._look_at, (now if order.began is None else order.began) + order.limit)

    def note_stall(self, handle: WorkerHandle, message: GroupStalled, now: float) -> None:
        """Take notice that a worker has waited for others of its group for long, or does so no longer.

        Such a wait is none of its time: a member that was late had something else to do.
        """
        order = handle.orders.get(message.attempt)
        if order is None or order.waits_for_others != message.over:
            return
        if order.stalled is None:
            order.stalled = now
            return
        if order.began is not None:
            order.began += now - order.stalled
            self._look_at = min(self._look_at, order.began + order.limit)
        order.stalled = None

    def note_end(self, handle: WorkerHandle, attempt: int, now: float) -> None:
        """Take notice that the unit of a group is over for a worker, which says nothing of that itself."""
        if handle.orders.pop(attempt, None) is not None:
            handle.since = now

    def note_report(self, handle: WorkerHandle, message: FromWorker, now: float) -> None:
        """Take notice of a message that may be the beginning or the end of an order."""
        match message:
            case UnitStarted(attempt=key) | LoadStarted(partition=key):
                for order in handle.orders.values():
                    # An order whose first unit was withdrawn begins with another one.
                    if order.key == key or (order.began is None and key in order.open):
                        order.began = handle.since = now
            case UnitFinished(attempt=attempt) | UnitFailed(attempt=attempt) | UnitWithdrawn(attempt=attempt):
                handle.since = now
                for order in [order for order in handle.orders.values() if attempt in order.open]:
                    order.open.discard(attempt)
                    if not order.open:
                        del handle.orders[order.key]
            case PartitionLoaded(partition=key) | PartitionLost(partition=key):
                handle.orders.pop(key, None)
                handle.since = now

    def overdue(self, handles: Iterable[WorkerHandle], now: float) -> list[tuple[WorkerHandle, PendingOrder]]:
        """Return the workers that are stuck, each with what; looks only when there may be one.

        Members of a group that wait for one that does not are none of them. If all wait, all of them are.
        """
        if now < self._look_at:
            return []
        late: dict[int, tuple[WorkerHandle, PendingOrder]] = {}
        self._look_at = _NEVER
        pending = [(handle, order) for handle in handles for order in handle.orders.values()]
        busy = {order.key for _, order in pending if not order.waits_for_others}
        for handle, order in pending:
            due = self._due(handle, order)
            if due <= now and order.waits_for_others and order.key in busy:
                continue  # the one that it waits for is stuck
            if due <= now:
                late.setdefault(id(handle), (handle, order))
            else:
                # What has not begun may begin at once.
                soonest = due if order.began is not None else min(due, now + order.limit)
                self._look_at = min(self._look_at, soonest)
        return list(late.values())

    def _due(self, handle: WorkerHandle, order: PendingOrder) -> float:
        if order.began is not None:
            return order.began + order.limit
        busy = any(other.began is not None for other in handle.orders.values())
        return _NEVER if busy else handle.since + self._grace + order.limit
