"""What a worker process prints, as lines for a log: whose they are, how loud, and no more than a log can bear.

It never keeps the process waiting: what is too much is left out, and how much that was is said.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

MARK = "\x1etrial:"
"""Begins a line by which a worker says, in the midst of what it prints, of which trial the rest is."""
_MOST_CHARACTERS = 1000
_WARNING = re.compile(r"^(WARNING|ERROR|CRITICAL)\b|\w*(Warning|Error)\b: ")


class Said(NamedTuple):
    """A line of a worker; `loud` is one that is worth a warning."""

    text: str
    trial: str = ""
    loud: bool = False


Say = Callable[[Said], None]


def mark(trial: str) -> None:
    """Say of which trial all is that this process prints from now on; "" for none."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(Exception):  # the user's code may have put anything in their place, or closed them
            stream.flush()
            os.write(number, f"\n{MARK}{trial}\n".encode())


class Ration:
    """So many lines at once, and so many a second after that. Several threads may take.

    >>> time = iter([0.0, 0.0, 0.0, 0.5]).__next__
    >>> ration = Ration(burst=1, rate=2.0, clock=time)
    >>> ration.take(), ration.take(), ration.take()
    (0, None, 1)
    """

    def __init__(self, burst: int = 200, rate: float = 20.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._rate, self._clock = float(burst), rate, clock
        self._left, self._since = float(burst), clock()
        self._lock = threading.Lock()
        self._left_out = 0

    def take(self) -> int | None:
        """Whether one more line may pass: None if not, else how many were left out just before it."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + (now - self._since) * self._rate)
            self._since = now
            if self._left < 1.0:
                self._left_out += 1
                return None
            self._left -= 1.0
            return self._clear()

    def rest(self) -> int:
        """How many were left out at the end."""
        with self._lock:
            return self._clear()

    def _clear(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out


def pass_on(stream: IO[bytes], is_error: bool, ration: Ration, say: Say, keep: Callable[[str], None]) -> None:
    """Read a stream to its end and say its lines; `keep` gets all of them, but for the marks."""
    trial = ""
    for text in _lines(stream):
        if text.startswith(MARK):
            trial = text[len(MARK) :]
            continue
        keep(text)
        left_out = ration.take()
        if left_out is not None:
            _say_left_out(left_out, trial, say)
            say(Said(text, trial, is_error and _WARNING.search(text) is not None))
    _say_left_out(ration.rest(), trial, say)


def _say_left_out(count: int, trial: str, say: Say) -> None:
    if count:
        say(Said(f"({count} lines left out: it prints more than a log can bear)", trial, loud=True))


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Lines that are not empty; a long one in pieces, of a progress bar what it came to."""
    while raw := stream.readline(_MOST_CHARACTERS):
        text = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
        if text:
            yield text
