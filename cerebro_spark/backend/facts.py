"""What a backend has to tell, in the order it came, for whoever asks next. It looks into nothing it passes on."""

from __future__ import annotations

import queue

from cerebro_spark.errors import BackendError
from cerebro_spark.events import Event


class Facts:
    """Any thread puts; one takes.

    >>> from cerebro_spark.events import GatheringEnded
    >>> facts = Facts()
    >>> facts.put(GatheringEnded(1.0))
    >>> facts.put(BackendError("gone"))
    >>> facts.take()
    [GatheringEnded(at=1.0)]
    >>> facts.take()
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.BackendError: gone
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Event | BackendError] = queue.SimpleQueue()
        self._late: BackendError | None = None

    def put(self, fact: Event | BackendError) -> None:
        self._waiting.put(fact)

    def take(self, timeout: float | None = None) -> list[Event]:
        """All there is now, at least one; an error is raised after all that was known before it is told.

        Nothing, if nothing came for `timeout` seconds.
        """
        events: list[Event] = []
        while not events or not self._waiting.empty():
            try:
                item = self._late or self._waiting.get(timeout=timeout)
            except queue.Empty:
                break
            self._late = None
            if isinstance(item, Event):
                events.append(item)
            elif events:
                self._late = item
                break
            else:
                raise item
        return events
