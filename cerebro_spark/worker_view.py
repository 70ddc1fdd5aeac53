"""A worker as people see it: what it has to do, and since when. PURE; a part of every RunView."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cerebro_spark.types import Unit, WorkerId


class AssignedUnit(NamedTuple):
    """A unit that a worker has to do, and the params with which it trains.

    `bundle` is the attempt of the first unit of the same order, where an order has units of several trials. `workers`
    are those that run it, more than one if they are a group.
    """

    attempt: int
    unit: Unit
    params: Mapping[str, Any]
    bundle: int | None = None
    workers: tuple[WorkerId, ...] = ()

    @property
    def order(self) -> int:
        """The number of its order, by itself or with others."""
        return self.attempt if self.bundle is None else self.bundle


class WorkerView(NamedTuple):
    """A worker: the first unit of `queue` is the one that it runs, perhaps together with those of other trials.

    Without any it may be `loading` partitions.

    It does what it does since `since`, in seconds of the run, which was at `since_clock` by the wall clock, in seconds
    since 1970, where that is known.
    """

    id: WorkerId
    host: str = ""
    up: bool = True
    queue: tuple[AssignedUnit, ...] = ()
    loading: tuple[str, ...] = ()
    since: float = 0.0
    since_clock: float | None = None

    @property
    def unit(self) -> Unit | None:
        """The unit that it runs now, the first one of those that run together."""
        return self.queue[0].unit if self.queue else None

    @property
    def together(self) -> int:
        """How many units it was told to run together now, as far as they have not ended."""
        return sum(assigned.order == self.queue[0].order for assigned in self.queue)

    @property
    def orders(self) -> list[str]:
        """What it has to do, in words: the first unit of each order, and how many trials go with it.

        >>> bundle = [AssignedUnit(n, Unit(f"t{n}", 1, "p0"), {}, bundle=1) for n in (1, 2, 3)]
        >>> WorkerView("w0", queue=(*bundle, AssignedUnit(4, Unit("t4", 1, "p1"), {}))).orders
        ['t1/1/p0 and 2 more trials', 't4/1/p1']
        """
        units: dict[int, list[Unit]] = {}
        for assigned in self.queue:
            units.setdefault(assigned.order, []).append(assigned.unit)
        return [f"{first}{f' and {len(more)} more trials' if more else ''}" for first, *more in units.values()]

    @property
    def activity(self) -> str:
        """What it does now, in words.

        >>> WorkerView("w0", queue=(AssignedUnit(1, Unit("t0", 1, "p0"), {}),)).activity, WorkerView("w1").activity
        ('t0/1/p0', 'idle')
        """
        if not self.up:
            return "gone"
        if self.queue:
            return self.orders[0]
        return f"loading {', '.join(self.loading)}" if self.loading else "idle"


def activity_key(worker: WorkerView) -> tuple[bool, int | None, bool]:
    """What makes one activity another."""
    queue = worker.queue
    return worker.up, queue[0].order if queue else None, not queue and bool(worker.loading)
