"""Parents of workers as the driver knows them, and the worker that each has. They start and end nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from cerebro_spark.backend.driver.launcher import ProcessWatcher
from cerebro_spark.backend.driver.workers import WorkerHandle


@dataclass(slots=True, eq=False)
class Assignment:
    """A worker that a parent has started, or is to start.

    Attributes:
        number: Its number among the parent's workers.
        handle: The worker, as the run's pool knows it.
        watcher: Who is told what it does.
        since: When it was assigned, in seconds of the monotonic clock.
        killed: Whether the parent was told to end it.
        proven: Whether it has finished a unit, which the parent was told.
    """

    number: int
    handle: WorkerHandle
    watcher: ProcessWatcher
    since: float = field(default_factory=time.monotonic)
    killed: bool = False
    proven: bool = False


@dataclass(slots=True, eq=False)
class Parent:
    """A parent of workers, as the driver knows it.

    Attributes:
        handle: Its process, as its launcher knows it.
        kind: The kind of workers that it can start.
        stores: The stores that it was launched with, pickled.
        work: Its worker; None while it is idle.
        started: How many workers it was given.
        peer: The number of its connection; None before it has joined.
        leaving: Whether it was told to end, or was lost.
        timer: Ends it when it has been idle for too long.
    """

    handle: WorkerHandle
    kind: str
    stores: bytes
    work: Assignment | None = None
    started: int = 1
    peer: int | None = None
    leaving: bool = False
    timer: threading.Timer | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it can start a worker now."""
        return self.work is None and self.peer is not None and not self.leaving

    def stop_timer(self) -> None:
        """Let it live on, however long it is idle."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
