"""What a backend has to tell, in the order in which it came. It does not look into what it passes on."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass

from cerebro_spark.backend.wire.messages import TrialRehearsed
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Event
from cerebro_spark.interruptible import LOOK_UP_S


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Nothing happened at a worker, but whoever waits is wanted elsewhere."""


News = Event | TrialRehearsed | WakeUp


class EventQueue:
    """Any thread puts; one takes. `failed` says whether an error was put, after which the run cannot go on.

    >>> from cerebro_spark.events import GatheringEnded
    >>> events = EventQueue()
    >>> events.put(GatheringEnded(1.0))
    >>> events.fail(BackendError("gone"))
    >>> events.take()
    [GatheringEnded(at=1.0)]
    >>> events.take()
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.BackendError: gone
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[News | BackendError] = queue.SimpleQueue()
        self._seen: list[News] = []
        self._late: BackendError | None = None
        self.failed = False

    def put(self, event: News) -> None:
        self._waiting.put(event)

    def fail(self, error: BackendError) -> None:
        """Have an error raised after all that was put before it was taken."""
        self.failed = True
        self._waiting.put(error)

    def take(self, timeout: float | None = None) -> list[News]:
        """Wait for events.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.

        Returns:
            All there are, at least one; none if none came in time.

        Raises:
            BackendError: The one that was put, once all that was put before it was taken.
        """
        events, self._seen = self._seen, []
        while not events or not self._waiting.empty():
            try:
                item = self._late or self._next(timeout)
            except queue.Empty:
                break
            self._late = None
            if not isinstance(item, BackendError):
                events.append(item)
            elif events:
                self._late = item
                break
            else:
                raise item
        return events

    def _next(self, timeout: float | None) -> News | BackendError:
        """Wait for the next item; raise queue.Empty if none comes in time."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return self._waiting.get(timeout=max(0.0, min(left, LOOK_UP_S)))
            except queue.Empty:
                if left <= LOOK_UP_S:
                    raise

    def peek(self, timeout: float | None = None) -> list[News]:
        """Wait, as `take` does, for events that were not seen before, and leave them to be taken."""
        seen, self._seen = self._seen, []
        news = self.take(timeout)
        self._seen = [*seen, *news]
        return news
