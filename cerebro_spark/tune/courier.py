"""Carries out one call after another in a thread of its own, for those who must not wait. It drops none silently."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Errand = Callable[[], None]


class Courier:
    """Does errands in the order they were given.

    Who calls it: one thread. After an errand that raised, none is done any more: the next `send`, `wait` or `close`
    raises what it raised, and that is the end. What comes after the end is not done.

    >>> done = []
    >>> courier = Courier("example")
    >>> courier.send(lambda: done.append("one"))
    >>> courier.wait(10)
    >>> done
    ['one']
    >>> courier.close(10)
    """

    def __init__(self, name: str) -> None:
        self._errands: queue.SimpleQueue[Errand | threading.Event | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._over = False
        # A daemon: a server that never answers must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"{name} courier", daemon=True)
        self._thread.start()

    def send(self, errand: Errand) -> None:
        """Have it done; returns at once."""
        if not self._over:
            self._raise()
            self._errands.put(errand)

    def wait(self, seconds: float) -> None:
        """Return when all that was sent is done. Raises TimeoutError, and is at its end, if that takes longer."""
        if self._over:
            return
        done = threading.Event()
        self._errands.put(done)
        finished = done.wait(seconds)
        self._raise()
        if not finished:
            self._end()
            raise TimeoutError(f"not all was done after {seconds:g} s; the rest may never be")

    def close(self, seconds: float) -> None:
        """Do what is left, if it takes no longer, and no more after that."""
        self.wait(seconds)
        self._end()

    def _raise(self) -> None:
        if self._error is not None:
            self._end()
            raise self._error

    def _end(self) -> None:
        """The thread ends when it comes to this."""
        self._over = True
        self._errands.put(None)

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            if isinstance(errand, threading.Event):
                errand.set()
            elif self._error is None:
                try:
                    errand()
                except Exception as error:
                    self._error = error
