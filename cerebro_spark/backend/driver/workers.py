"""Workers as the driver knows them: their handles, and the names of their replacements. It starts no process."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.backend.driver.deadlines import PendingOrder
from cerebro_spark.errors import BackendError
from cerebro_spark.types import PartitionId, WorkerId

_MOST_USELESS = 3


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """One worker, as the driver knows it. Only code that holds the pool's lock may change it.

    Attributes:
        name: The worker's name, which no other worker of the run ever has.
        host: The machine it runs on; "" before it has joined.
        pid: The number of its process there.
        peer: The number of its connection; None before it has joined.
        running: The attempt of the unit that it is at, or was at last.
        leaving: Whether it is to go after its running unit.
        dismissed: Whether it was told to go.
        tried: Whether it was given a trial to rehearse.
        useful: Whether it has finished a unit or loaded a partition.
        extra: Whether it was added while the run went on, or replaces one that was.
        kept_away: Seconds for which its place was left empty before, because too much had failed there.
        cause: What it died of, if that was not its unit.
        launched: What its launcher needs to find it again.
        launched_at: When its start began, in seconds of the monotonic clock.
        orders: What it was ordered and has not reported the end of, by attempt or partition.
        since: When it was last seen to begin or to end an order, in seconds of the backend's clock.
        ended: Set when nothing is left of its process.
        words: The last lines that it printed.
    """

    name: WorkerId
    host: str = ""
    pid: int | None = None
    peer: int | None = None
    running: int | None = None
    leaving: bool = False
    dismissed: bool = False
    tried: bool = False
    useful: bool = False
    extra: bool = False
    kept_away: float = 0.0
    cause: str = ""
    launched: Any = None
    launched_at: float = field(default_factory=time.monotonic)
    orders: dict[int | PartitionId, PendingOrder] = field(default_factory=dict)
    since: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)
    words: deque[str] = field(default_factory=lambda: deque(maxlen=40))


class WorkerNames:
    """The names of one run's workers, and how many restarts are left. Its caller holds the pool's lock.

    Args:
        max_restarts: How many workers may be replaced in the run.

    >>> names = WorkerNames(max_restarts=9)
    >>> names.new(), names.new()
    ('w0', 'w1')
    >>> names.replacement_of(WorkerHandle("w1")), names.replacement_of(WorkerHandle("w1.1"))
    ('w1.1', 'w1.2')
    """

    def __init__(self, max_restarts: int) -> None:
        self._restarts_left = max_restarts
        self._numbers = itertools.count()
        self._useless: dict[str, int] = {}

    def new(self) -> WorkerId:
        """Return a name for a worker in a place of its own."""
        return f"w{next(self._numbers)}"

    def replacement_of(self, handle: WorkerHandle) -> WorkerId:
        """Return the name of the worker that replaces one that died.

        A worker that died of a trial it rehearsed does not count against its place.

        Raises:
            BackendError: If no restart is left, or several workers in this place have done nothing but die.
        """
        place = handle.name.partition(".")[0]
        self._useless[place] = 0 if handle.useful or handle.tried else self._useless.get(place, 0) + 1
        if self._restarts_left == 0 or self._useless[place] >= _MOST_USELESS:
            why = "no restart is left" if self._restarts_left == 0 else "so did those before it, having done nothing"
            words = "\n".join(handle.words)
            raise BackendError(f"worker {handle.name} died, and {why}; its last words:\n{words}")
        return self._next(handle)

    def return_of(self, handle: WorkerHandle) -> WorkerId | None:
        """Return the name of the worker that tries again where this one had to leave; None if no restart is left.

        The run can do without that worker, so nothing that happens to it may end the run.
        """
        return self._next(handle) if self._restarts_left else None

    def _next(self, handle: WorkerHandle) -> WorkerId:
        place, _, life = handle.name.partition(".")
        self._restarts_left -= 1
        return f"{place}.{int(life or 0) + 1}"
