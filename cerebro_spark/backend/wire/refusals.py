"""Tells of refused connections without flooding the log: who knocks a thousand times a second is counted."""

from __future__ import annotations

import time
from collections.abc import Callable

_SECONDS = 60.0
_LINES = 10


class RefusalLog:
    """Writes the first few lines of a minute as they are, and of all others how many there were.

    The number is written with the next line of a later minute, or by `close`.

    Args:
        write: Takes a line, as a logger's method does.
        clock: Returns seconds.
    """

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._began = clock()
        self._written = 0
        self._counted = 0

    def add(self, line: str) -> None:
        """Write that line, or count it."""
        now = self._clock()
        if now - self._began >= _SECONDS:
            self.close()
            self._began, self._written = now, 0
        if self._written == _LINES:
            self._counted += 1
            return
        self._written += 1
        more = "; more of them in this minute will only be counted" if self._written == _LINES else ""
        self._write(line + more)

    def close(self) -> None:
        """Write how many lines were counted, if any."""
        if self._counted:
            self._write(f"connections that were refused and not told of one by one: {self._counted}")
        self._counted = 0
