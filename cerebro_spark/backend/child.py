"""A worker process, started from here: on the driver's machine, or inside a Spark task. It knows nothing of drivers.

The posting goes in through standard input, which stays open as long as the parent lives: when it closes, the worker
knows that its parent is gone, and goes too. What the worker prints is passed on line by line; `relay` sends a line back
into it, for a parent that has no other way to the driver.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

from cerebro_spark.backend.speech import Ration, Said, Say, pass_on

_log = logging.getLogger(__name__)
HOST = "CEREBRO_SPARK_HOST"  # what a worker's machine is called, where whoever starts the worker knows it
_LAST_WORDS = 40
_SECONDS_FOR_LAST_WORDS = 5.0


class Child:
    """A running worker process. `on_end` is called once, from a thread of the child's own, when nothing is left of it.

    What the process says goes into `words`, all of it before `on_end` is called. Raises OSError if the process cannot
    be started. `post` may block until the process has started up and reads.
    """

    def __init__(
        self,
        name: str,
        on_end: Callable[[], None],
        words: deque[str] | None = None,
        environment: dict[str, str] | None = None,
        say: Say = lambda said: _log.info("%s", said.text),
    ) -> None:
        self.words: deque[str] = deque(maxlen=_LAST_WORDS) if words is None else words
        self._on_end = on_end
        self._say = say
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
        self._posted = False
        ration = Ration()
        streams = (self._process.stdout, False), (self._process.stderr, True)
        self._pumps = [
            threading.Thread(target=self._listen, args=(*stream, ration), name=f"words-{name}", daemon=True)
            for stream in streams
        ]
        for pump in self._pumps:
            pump.start()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def post(self, posting: bytes) -> None:
        """Hand over the posting. A process that died at once cannot take it; its watcher tells the rest."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(posting)
            self._process.stdin.flush()
            os.set_blocking(self._process.stdin.fileno(), False)
            self._posted = True
        except (BrokenPipeError, ValueError):
            _log.debug("process %d was gone before it had its posting", self.pid)

    def relay(self, said: Said) -> None:
        """Hand a line back to the process, which can pass it on; if it has no ear for it now, the line is lost."""
        line = json.dumps(said, ensure_ascii=False).encode() + b"\n"
        if not self._posted or len(line) > select.PIPE_BUF:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), line)  # not longer than what a pipe takes whole or not at all

    def kill(self) -> None:
        self._process.kill()

    def _listen(self, stream: IO[bytes], is_error: bool, ration: Ration) -> None:
        with stream:
            pass_on(stream, is_error, ration, self._say, self.words.append if is_error else lambda text: None)

    def _watch(self) -> None:
        code = self._process.wait()
        # Processes that it started may hold its standard error open for as long as they like.
        for pump in self._pumps:
            pump.join(timeout=_SECONDS_FOR_LAST_WORDS)
        if code:
            self.words.append(f"(its process ended with code {code})")
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            _log.debug("process %d left a part of its posting unread", self.pid)
        self._on_end()
