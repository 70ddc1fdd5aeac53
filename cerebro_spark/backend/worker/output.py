"""What a worker process prints, as lines for a log: of which trial, how loud, and no more than a log can bear.

It never keeps the process waiting: what is too much is left out, and a line says how much that was.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

from cerebro_spark.backend.wire.messages import OutputLine

MARK = "\x1etrial:"
"""Begins a line by which a worker says, within its output, of which trial the rest is."""
_MOST_CHARACTERS = 1000
_WARNING = re.compile(r"^(WARNING|ERROR|CRITICAL)\b|\w*(Warning|Error)\b: ")


OnLine = Callable[[OutputLine], None]


def mark_trial(trial: str) -> None:
    """Mark all that this process prints from now on as output of this trial; "" for none."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(Exception):  # the user's code may have put anything in their place, or closed them
            stream.flush()
            os.write(number, f"\n{MARK}{trial}\n".encode())


class LineQuota:
    """Lets so many lines pass at once, and so many a second after that. Several threads may take.

    >>> time = iter([0.0, 0.0, 0.0, 0.5]).__next__
    >>> quota = LineQuota(burst=1, rate=2.0, clock=time)
    >>> quota.take(), quota.take(), quota.take(), quota.left_out()
    (True, False, True, 1)
    """

    def __init__(self, burst: int = 200, rate: float = 20.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._rate, self._clock = float(burst), rate, clock
        self._left, self._since = float(burst), clock()
        self._lock = threading.Lock()
        self._left_out = 0

    def take(self) -> bool:
        """Return whether another line may pass now; if not, it is counted."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._since) * self._rate)
            self._since = now
            if self._left < 1.0:
                self._left_out += 1
                return False
            self._left -= 1.0
            return True

    def left_out(self) -> int:
        """Return how many lines could not pass since this was last asked."""
        with self._lock:
            count, self._left_out = self._left_out, 0
            return count


def read_lines(
    stream: IO[bytes], is_error: bool, quota: LineQuota, on_line: OnLine, keep: Callable[[str], None]
) -> None:
    """Read a stream to its end and pass on its lines; `keep` gets the text of all of them, but for the marks."""
    trial = ""
    for text in _lines(stream):
        if text.startswith(MARK):
            trial = text[len(MARK) :]
            continue
        keep(text)
        if quota.take():
            _tell_left_out(quota, trial, on_line)
            on_line(OutputLine(text, trial, is_error and _WARNING.search(text) is not None))
    _tell_left_out(quota, trial, on_line)


def _tell_left_out(quota: LineQuota, trial: str, on_line: OnLine) -> None:
    if count := quota.left_out():
        on_line(OutputLine(f"({count} lines left out: it prints more than a log can bear)", trial, loud=True))


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield the lines that are not empty; a long one in pieces, of a progress bar its last state."""
    while raw := stream.readline(_MOST_CHARACTERS):
        text = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
        if text:
            yield text
