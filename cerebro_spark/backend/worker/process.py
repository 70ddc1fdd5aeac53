"""A worker process as its parent sees it: on the driver's machine, or inside a Spark task. It never talks to a driver.

The worker's spec goes in through standard input, which stays open as long as the parent lives: when it closes, the
worker ends too. What the worker prints is passed on line by line; `relay` sends a line back into it, for a parent that
has no connection to the driver.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from io import BufferedReader
from typing import IO, cast

from cerebro_spark.backend.wire.messages import OutputLine, pack
from cerebro_spark.backend.worker.output import LineQuota, OnLine, read_lines

_log = logging.getLogger(__name__)
HOST = "CEREBRO_SPARK_HOST"  # the name of a worker's machine, if its parent knows it
LAST_WORDS = 40
_SECONDS_FORLAST_WORDS = 5.0


class WorkerProcess:
    """A running worker process.

    Args:
        name: The worker's name, for the names of threads.
        on_end: Called once, from a thread of its own, when nothing is left of the process.
        words: Gets the last lines of standard error, all of them before `on_end` is called. Default: a new deque.
        environment: Variables that the process has besides those of this one.
        on_line: Called with every line that the process prints. Default: the lines go to the log.

    Raises:
        OSError: If the process cannot be started.
    """

    def __init__(
        self,
        name: str,
        on_end: Callable[[], None],
        words: deque[str] | None = None,
        environment: dict[str, str] | None = None,
        on_line: OnLine = lambda line: _log.info("%s", line.text),
    ) -> None:
        self.words: deque[str] = deque(maxlen=LAST_WORDS) if words is None else words
        self._on_end = on_end
        self._on_line = on_line
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cerebro_spark.backend.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C is for the driver, which then stops its workers
            env={
                "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow greets, and complains of the GPU that is not there
                "PYTHONUNBUFFERED": "1",  # what it prints is wanted now, not when a buffer is full
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **(environment or {}),
            },
        )
        self._given = False
        quota = LineQuota()
        streams = (self._process.stdout, False), (self._process.stderr, True)
        self._pumps = [
            threading.Thread(target=self._listen, args=(*stream, quota), name=f"words-{name}", daemon=True)
            for stream in streams
        ]
        for pump in self._pumps:
            pump.start()
        threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True).start()

    def give(self, spec: bytes) -> None:
        """Hand over the pickled WorkerSpec; may block until the process has started up and reads.

        A process that died at once cannot take it; `on_end` tells that.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(spec)
            self._process.stdin.flush()
            os.set_blocking(self._process.stdin.fileno(), False)
            self._given = True
        except (BrokenPipeError, ValueError):
            _log.debug("process %d was gone before it had its spec", self._process.pid)

    def relay(self, line: OutputLine) -> None:
        """Hand a line back to the process, which can send it on; if it does not read just now, the line is lost."""
        raw = pack(line) + b"\n"
        if not self._given or len(raw) > select.PIPE_BUF:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), raw)  # not longer than what a pipe takes whole or not at all

    def kill(self) -> None:
        self._process.kill()

    def _listen(self, stream: IO[bytes], is_error: bool, quota: LineQuota) -> None:
        keep = self.words.append if is_error else lambda text: None
        with stream:
            read_lines(cast(BufferedReader, stream), is_error, quota, self._on_line, keep)

    def _watch(self) -> None:
        code = self._process.wait()
        # Processes that it started may hold its standard error open for as long as they like.
        for pump in self._pumps:
            pump.join(timeout=_SECONDS_FORLAST_WORDS)
        if code:
            self.words.append(f"(its process ended with code {code})")
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            _log.debug("process %d left a part of its spec unread", self._process.pid)
        self._on_end()
