"""Waits for what a thread says in the log. It changes no logger for longer than that."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def logged(logger: str, text: str) -> Iterator[threading.Event]:
    """An event that is set once a record of this logger, of any level, has this text in its message."""
    seen = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                seen.set()

    handler, watched = Handler(), logging.getLogger(logger)
    level = watched.level
    watched.addHandler(handler)
    watched.setLevel(logging.DEBUG)
    try:
        yield seen
    finally:
        watched.removeHandler(handler)
        watched.setLevel(level)
