"""Which run has a backend: one at a time, until the thread that drives it ends it. It ends no worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from cerebro_spark.backend.run_queue import RunQueue
from cerebro_spark.errors import BackendError

_SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_NOTICE = 10.0
"""How long whoever closes a backend waits for the run of another thread to notice that."""
_TAKEN = (
    "this backend is running already: {} drives a run on it, and it has room for one at a time; wait for that run, or"
    " use another backend"
)
CLOSED = (
    "the backend was closed while a run went on: close it, or leave its `with` block by an exception, only once the run"
    " is over; a run that has begun goes on with cs.resume"
)


class Tenancy:
    """The thread whose run has a backend. Any thread may call any method.

    Args:
        queue: Where runs wait for their turn. Defaults to None: one that no other backend has.

    >>> tenancy = Tenancy()
    >>> tenancy.begin()
    >>> tenancy.is_of_another
    False
    >>> tenancy.end()
    """

    def __init__(self, queue: RunQueue | None = None) -> None:
        self._queue = queue or RunQueue()
        self._changed = threading.Condition()
        self._tenant: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._revoked = False
        self._closing = False

    @property
    def is_of_another(self) -> bool:
        """Whether a run of another thread has the backend."""
        with self._changed:
            return self._holder() not in (None, threading.current_thread())

    def check_free(self) -> None:
        """Raise BackendError if a run has the backend, or another thread keeps it for one.

        While another thread is about to close it, wait for that.
        """
        with self._changed:
            while self._closing and self.is_of_another:
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            keeper = _alive(self._keeper)
            holder = self._holder() or (None if keeper is threading.current_thread() else keeper)
            if holder is not None:
                raise BackendError(_taken_by(holder))

    @contextmanager
    def turn(self, wait: bool) -> Iterator[None]:
        """Keep the backend for a run of this thread: until the block is left, no other thread begins one.

        Args:
            wait: Whether to wait for the turns before, if they are waited for as well. Other runs are never waited for.

        Raises:
            BackendError: If a run has the backend, or another thread keeps it.
        """
        with self._queue.turn() if wait else nullcontext():
            self._keep()
            try:
                yield
            finally:
                with self._changed:
                    self._keeper = None

    def begin(self) -> None:
        """Take the backend for a run that this thread drives.

        Raises:
            BackendError: If a run has it.
        """
        with self._changed:
            self.check_free()
            self._tenant, self._revoked, self._closing = threading.current_thread(), False, False

    def end(self) -> None:
        """Give the backend back. Nothing happens if the run of another thread has it."""
        with self._changed:
            if not self.is_of_another:
                self._tenant, self._closing = None, False
                self._changed.notify_all()

    def revoke(self) -> bool:
        """Have `check` raise in the thread that has the backend, if that is another; return whether it is."""
        with self._changed:
            found = self.is_of_another
            self._revoked = self._revoked or found
            return found

    def check(self) -> None:
        """Raise BackendError if somebody has closed the backend under the run that has it."""
        with self._changed:
            if self._revoked:
                raise BackendError(CLOSED)

    def wait_until_free(self, timeout: float | None = None) -> None:
        """Wait until no other thread has the backend.

        Args:
            timeout: Seconds to wait at most. Defaults to None: as long as it takes.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self.is_of_another and (end is None or time.monotonic() < end):
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)  # a thread that is gone tells nobody

    def take_to_close(self) -> None:
        """Wait until no other thread has the backend, and have those that would begin a run wait until `end`."""
        with self._changed:
            self.wait_until_free()
            self._tenant, self._closing = threading.current_thread(), True

    def _keep(self) -> None:
        with self._changed:
            self.check_free()
            if _alive(self._keeper) is not None:  # by this thread: a run within a run
                raise BackendError(_taken_by(threading.current_thread()))
            self._keeper = threading.current_thread()

    def _holder(self) -> threading.Thread | None:
        return _alive(self._tenant)


def _alive(thread: threading.Thread | None) -> threading.Thread | None:
    return thread if thread is not None and thread.is_alive() else None


def _taken_by(thread: threading.Thread) -> str:
    return _TAKEN.format("this thread" if thread is threading.current_thread() else f"thread {thread.name}")
