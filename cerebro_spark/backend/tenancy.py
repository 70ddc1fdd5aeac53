"""Which run has a backend: one at a time, from its start until the thread that drives it ends it. It ends no worker."""

from __future__ import annotations

import threading
import time

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

    >>> tenancy = Tenancy()
    >>> tenancy.begin()
    >>> tenancy.is_of_another
    False
    >>> tenancy.end()
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tenant: threading.Thread | None = None
        self._revoked = False
        self._closing = False

    @property
    def is_of_another(self) -> bool:
        """Whether a run of another thread has the backend."""
        with self._changed:
            return self._holder() not in (None, threading.current_thread())

    def check_free(self) -> None:
        """Raise BackendError if a run has the backend. While another thread is about to close it, wait for that."""
        with self._changed:
            while self._closing and self.is_of_another:
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            holder = self._holder()
            if holder is not None:
                mine = holder is threading.current_thread()
                raise BackendError(_TAKEN.format("this thread" if mine else f"thread {holder.name}"))

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

    def _holder(self) -> threading.Thread | None:
        return self._tenant if self._tenant is not None and self._tenant.is_alive() else None
