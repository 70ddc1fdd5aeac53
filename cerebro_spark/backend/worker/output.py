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
from collections.abc import Callable, Sequence
from io import BufferedIOBase

from cerebro_spark.backend.wire.messages import OutputLine

MARK = "\x1etrial:"
"""Begins a line by which a worker says, within its output, of which trials the rest is."""
_MOST_NAMED = 3
_MOST_CHARACTERS = 1000
_BYTES_AT_ONCE = 1 << 16
_WARNING = re.compile(r"^(WARNING|ERROR|CRITICAL)\b|\w*(Warning|Error)\b: ")
# What gloo says of every group, on standard output, and cannot be told not to.
_CHATTER = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.")

OnLine = Callable[[OutputLine], None]


def mark_trials(*trials: str) -> None:
    """Mark all that this process prints from now on as output of these trials, which it trains together; or of none."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(Exception):  # the user's code may have put anything in their place, or closed them
            stream.flush()
            os.write(number, f"\n{MARK}{name_trials(trials)}\n".encode())


def name_trials(trials: Sequence[str]) -> str:
    """Return trials in words, and of many the first.

    >>> name_trials(["t3"]), name_trials(["t3", "t4"]), name_trials([f"t{number}" for number in range(8)])
    ('trial t3', 'trials t3 and t4', 'trials t0, t1 and 6 more')
    """
    if len(trials) < 2:
        return "".join(f"trial {name}" for name in trials)
    named = list(trials) if len(trials) <= _MOST_NAMED else [*trials[:2], f"{len(trials) - 2} more"]
    return f"trials {', '.join(named[:-1])} and {named[-1]}"


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


class LineReader:
    """Makes lines of what one stream of a process says, piece by piece as it comes.

    Args:
        is_error: Whether the stream is standard error.
        quota: How many lines may pass.
        on_line: Called with every line that passes.
        keep: Called with the text of every line, but for the marks.

    >>> reader = LineReader(False, LineQuota(), lambda line: print(line.text), lambda text: None)
    >>> reader.feed(b"one\\ntw")
    one
    >>> reader.feed(b"o\\n")
    two
    """

    def __init__(self, is_error: bool, quota: LineQuota, on_line: OnLine, keep: Callable[[str], None]) -> None:
        self._is_error = is_error
        self._quota = quota
        self._on_line = on_line
        self._keep = keep
        self._about = ""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take in what came; a long line is cut into pieces, of a progress bar the last state is shown."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            self._pass_on(raw)
        while len(self._rest) >= _MOST_CHARACTERS:
            piece, self._rest = self._rest[:_MOST_CHARACTERS], self._rest[_MOST_CHARACTERS:]
            self._pass_on(piece)

    def end(self) -> None:
        """Take in that no more comes."""
        self._pass_on(self._rest)
        self._rest = b""
        self._tell_left_out()

    def _pass_on(self, raw: bytes) -> None:
        for start in range(0, len(raw), _MOST_CHARACTERS):
            text = raw[start : start + _MOST_CHARACTERS].decode(errors="replace").rstrip().rpartition("\r")[2]
            if text:
                self._take(text)

    def _take(self, text: str) -> None:
        if text.startswith(MARK):
            self._about = text[len(MARK) :]
            return
        if _CHATTER.match(text):
            return
        self._keep(text)
        if self._quota.take():
            self._tell_left_out()
            self._on_line(OutputLine(text, self._about, self._is_error and _WARNING.search(text) is not None))

    def _tell_left_out(self) -> None:
        if count := self._quota.left_out():
            text = f"({count} lines left out: it prints more than a log can bear)"
            self._on_line(OutputLine(text, self._about, loud=True))


def read_lines(
    stream: BufferedIOBase, is_error: bool, quota: LineQuota, on_line: OnLine, keep: Callable[[str], None]
) -> None:
    """Read a stream to its end and pass on its lines; `keep` gets the text of all of them, but for the marks."""
    reader = LineReader(is_error, quota, on_line, keep)
    while data := stream.read1(_BYTES_AT_ONCE):
        reader.feed(data)
    reader.end()
