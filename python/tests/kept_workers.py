"""Workers for tests that are not about how workers start: those of one module come from the same processes.

A process that loads PyTorch takes five seconds of a core, and a worker that is forked from one a tenth of a second.
Each test still has new workers, as every run inside a `with` block of a backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from cerebro_spark.backend.local import LocalBackend

FOREVER = 3600.0
MOST_RESTARTS = 100
_CURRENT_TEST = "PYTEST_CURRENT_TEST"


@contextmanager
def staying() -> Iterator[LocalBackend]:
    """A backend inside its `with` block."""
    # Not above: what `conftest.py` imports is imported before coverage is measured.
    from cerebro_spark.backend.local import LocalBackend

    with LocalBackend(2, threads=1, idle_timeout=FOREVER) as backend:
        yield backend


class KeptWorkers:
    """Hands out one backend, to one run at a time. A context manager around a test, at whose end no run goes on.

    Args:
        backend: A backend inside its `with` block, whose workers have one thread.
    """

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend

    def __call__(self, num_workers: int = 2, max_restarts: int = MOST_RESTARTS) -> LocalBackend:
        """Return the backend.

        Args:
            num_workers: How many workers its next runs have.
            max_restarts: How many of them may be replaced in a run.
        """
        self._backend.num_workers = num_workers
        self._backend.max_restarts = max_restarts
        return self._backend

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backend.close()


@contextmanager
def one_environment() -> Iterator[None]:
    """Run a test without the variable that names it: a worker comes from a process with its own environment only."""
    name = os.environ.pop(_CURRENT_TEST, None)
    try:
        yield
    finally:
        if name is not None:
            os.environ[_CURRENT_TEST] = name
