"""What workers were told to do, since when, and who takes too long for it. It kills nobody.

An order's clock runs from when its worker says that it began until it says how it ended; a checkpoint that never
reaches its store is part of that. A worker that begins nothing at all is overdue too, only later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cerebro_spark.backend.hand import Hand
from cerebro_spark.backend.wire import Message
from cerebro_spark.events import Action, LimitOrder, LoadPartition, RunUnit

Key = tuple[str, int | str]


@dataclass(slots=True)
class Order:
    """Something a worker shall do within `limit` seconds of its own; `began` is None while it has not begun."""

    what: str
    limit: float
    began: float | None = None
    attempt: int | None = None
    partition: str | None = None


class Clocks:
    """Of one run. Whoever calls it holds the backend's lock. `grace` is how long a worker may take to begin."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._look_at = float("inf")

    def wait(self, now: float) -> float | None:
        """Seconds after which somebody may be overdue; None if that cannot be."""
        return None if self._look_at == float("inf") else max(0.0, self._look_at - now)

    def ordered(self, hand: Hand, action: Action, now: float) -> None:
        if isinstance(action, RunUnit):
            limit = _endless(action.limit)
            hand.orders["run", action.attempt] = Order(f"unit {action.unit}", limit, attempt=action.attempt)
        elif isinstance(action, LoadPartition):
            limit = _endless(action.limit)
            what = f"loading partition {action.partition}"
            hand.orders["load", action.partition] = Order(what, limit, partition=action.partition)
        else:
            return
        if len(hand.orders) == 1:
            hand.since = now
        self._look_at = min(self._look_at, now + limit)

    def limit(self, hand: Hand, action: LimitOrder, now: float) -> None:
        """Something that was ordered without a limit has one."""
        order = hand.orders.get(("load", action.partition) if action.attempt is None else ("run", action.attempt))
        if order is not None:
            order.limit = action.limit
            self._look_at = min(self._look_at, now + action.limit if order.began is None else order.began + order.limit)

    def heard(self, hand: Hand, message: Message, now: float) -> None:
        """Something that a worker said may be the beginning or the end of an order."""
        kind = message["type"]
        if kind in ("started", "loading"):
            order = hand.orders.get(_key(message, kind == "loading"))
            if order is not None:
                order.began = hand.since = now
        elif kind in ("finished", "failed", "loaded", "unloaded"):
            hand.orders.pop(_key(message, kind in ("loaded", "unloaded")), None)
            hand.since = now

    def overdue(self, hands: Iterable[Hand], now: float) -> list[tuple[Hand, Order]]:
        """Who is stuck with what; looks only when there may be somebody."""
        if now < self._look_at:
            return []
        late: dict[int, tuple[Hand, Order]] = {}
        self._look_at = float("inf")
        every = [(hand, order) for hand in hands for order in hand.orders.values()]
        for hand, order in every:
            due = self._due(hand, order)
            if due <= now:
                late.setdefault(id(hand), (hand, order))
            else:
                # What has not begun may begin at once.
                soonest = due if order.began is not None else min(due, now + order.limit)
                self._look_at = min(self._look_at, soonest)
        return list(late.values())

    def _due(self, hand: Hand, order: Order) -> float:
        if order.began is not None:
            return order.began + order.limit
        busy = any(other.began is not None for other in hand.orders.values())
        return float("inf") if busy else hand.since + self._grace + order.limit


def _endless(limit: float | None) -> float:
    return float("inf") if limit is None else limit


def _key(message: Message, load: bool) -> Key:
    return ("load", str(message.get("partition"))) if load else ("run", message.get("attempt", 0))
