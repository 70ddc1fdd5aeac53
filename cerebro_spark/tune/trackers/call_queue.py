"""Carries out calls in a thread of their own, so that the caller need not wait. It drops none silently."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Call = Callable[[], None]


class CallQueue:
    """Carries out calls in the order in which they were put.

    It is used from one thread. After a call that raised, no further one is carried out: the next `put`, `wait` or
    `close` raises the same, and that is the end. What is put after the end is not carried out.

    Args:
        name: What the calls are for: the name of the thread.

    >>> done = []
    >>> calls = CallQueue("example")
    >>> calls.put(lambda: done.append("one"))
    >>> calls.wait(10)
    >>> done
    ['one']
    >>> calls.close(10)
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call | threading.Event | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._over = False
        # A daemon: a server that never answers must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"{name} calls", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Have a call carried out; returns at once."""
        if not self._over:
            self._raise()
            self._calls.put(call)

    def wait(self, seconds: float) -> None:
        """Return when all calls so far are done. Raises TimeoutError, and is at its end, if that takes longer."""
        if self._over:
            return
        done = threading.Event()
        self._calls.put(done)
        finished = done.wait(seconds)
        self._raise()
        if not finished:
            self._end()
            raise TimeoutError(f"not all was done after {seconds:g} s; the rest may never be")

    def close(self, seconds: float) -> None:
        """Carry out what is left, if it takes no longer, and no more after that."""
        self.wait(seconds)
        self._end()

    def _raise(self) -> None:
        if self._error is not None:
            self._end()
            raise self._error

    def _end(self) -> None:
        """The thread ends when it comes to this."""
        self._over = True
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if isinstance(call, threading.Event):
                call.set()
            elif self._error is None:
                try:
                    call()
                except Exception as error:
                    self._error = error
