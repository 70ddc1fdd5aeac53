"""What makes a run cheaper; without slow tests also temporary folders in memory, and fewer examples of each property.

What is tested stays the same, and `make test` does all of it on a disk.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30
EXAMPLES = 10

_quick = False


def quicken(config: pytest.Config) -> None:
    """Let no property fail for a busy machine; prepare a run that leaves slow tests out for that."""
    too_slow = hypothesis.HealthCheck.too_slow
    hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[too_slow])
    hypothesis.settings.load_profile("patient")
    if "not slow" not in config.getoption("markexpr"):
        return
    global _quick
    _quick = True
    hypothesis.settings.register_profile("fast", max_examples=EXAMPLES)
    hypothesis.settings.load_profile("fast")
    # Collections, of which most find nothing, take a thirtieth of the time with Python's own threshold.
    gc.set_threshold(10_000)
    # Most of a store's time goes to fsync, which costs milliseconds on a disk and nothing here.
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def drawn(examples: int) -> int:
    """Return how many examples of a property are drawn: as many as are asked for, or fewer without slow tests."""
    return min(examples, EXAMPLES) if _quick else examples


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Import in the block what lives to the end: the garbage collector does not walk these million objects again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
