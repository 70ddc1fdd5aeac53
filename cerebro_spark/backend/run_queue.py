"""Runs that wait for each other, in the order in which they came. It begins none, and knows of no backend."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from cerebro_spark.errors import BackendError
from cerebro_spark.interruptible import LOOK_UP_S

_log = logging.getLogger(__name__)
_WITHIN_ITSELF = (
    "this backend is running already: this thread drives a run on it, and another one would wait for its end; begin it"
    " once that run is over, or use another backend"
)


class RunQueue:
    """The threads whose runs follow one another. Any thread may call any method.

    >>> queue = RunQueue()
    >>> with queue.turn():
    ...     print("no other run goes on")
    no other run goes on
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: deque[threading.Thread] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until those that came before have left, and let nobody else in until the block is left.

        Raises:
            BackendError: At once, if this thread is inside already: it would wait for itself.
        """
        thread = threading.current_thread()
        with self._changed:
            if thread in self._threads:
                raise BackendError(_WITHIN_ITSELF)
        try:
            self._wait(thread)
            yield
        finally:
            self._leave(thread)

    def _wait(self, thread: threading.Thread) -> None:
        with self._changed:
            self._threads.append(thread)
            if self._threads[0] is not thread:
                _log.info("the run of thread %s waits for that of thread %s", thread.name, self._threads[0].name)
            while self._threads[0] is not thread:
                self._changed.wait(LOOK_UP_S)  # so that Ctrl-C is heard

    def _leave(self, thread: threading.Thread) -> None:
        with self._changed:
            if thread in self._threads:  # Ctrl-C may have come before it was
                self._threads.remove(thread)
            self._changed.notify_all()
