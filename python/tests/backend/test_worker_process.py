"""Worker processes as their parents see them."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from cerebro_spark.backend.worker.process import WorkerProcess

SECONDS = 30.0


def test_a_child_has_said_its_last_words_before_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that dies before its parent can do anything with it."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    words: deque[str] = deque()
    heard: list[list[str]] = []
    ended = threading.Event()

    def end() -> None:
        heard.append(list(words))
        ended.set()

    WorkerProcess("w0", end, words)
    assert ended.wait(SECONDS)
    assert heard == [["(its process ended with code 1)"]]
