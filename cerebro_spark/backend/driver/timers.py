"""What happens in a pool of workers after a while: places that are tried again, and an end to waiting for workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cerebro_spark.backend.driver.workers import WorkerHandle

_LONGEST = 3600.0


def start_timer(seconds: float, call: Callable[..., None], *arguments: Any) -> threading.Timer:
    """Call a function in so many seconds, from a thread that keeps no process alive."""
    timer = threading.Timer(seconds, call, arguments)
    timer.daemon = True
    timer.start()
    return timer


class Vacancies:
    """Places of one run that stay empty for a while, because too much failed there. It hires no worker itself.

    Args:
        fill: Called with the handle of the worker that left, and the seconds for which its place was empty.
    """

    def __init__(self, fill: Callable[[WorkerHandle, float], None]) -> None:
        self._fill = fill
        self._timers: list[threading.Timer] = []

    def open(self, handle: WorkerHandle, seconds: float) -> None:
        """Have the place of this worker filled in so many seconds."""
        waiting = [timer for timer in self._timers if timer.is_alive()]
        self._timers = [*waiting, start_timer(seconds, self._fill, handle, seconds)]

    def reopen(self, handle: WorkerHandle) -> bool:
        """Leave a place empty for twice as long if this worker came back to it and did nothing; return whether."""
        if handle.useful or not handle.kept_away:
            return False
        self.open(handle, min(2 * handle.kept_away, _LONGEST))
        return True

    def cancel(self) -> None:
        """Fill no more places."""
        for timer in self._timers:
            timer.cancel()


class Gathering:
    """The time that the first workers of a run have to come.

    Args:
        seconds: How long to wait for all of them.
        give_up: Called when the time is over; returns whether to wait for as long again.
    """

    def __init__(self, seconds: float, give_up: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._timer = start_timer(seconds, self._end)

    def _end(self) -> None:
        if self._give_up():
            self._timer = start_timer(self._seconds, self._end)

    def cancel(self) -> None:
        """Wait no longer, and say nothing."""
        self._timer.cancel()
