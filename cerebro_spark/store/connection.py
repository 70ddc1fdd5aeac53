"""Connections that belong to one process. A forked child never uses its parent's: their threads were not forked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# A child cannot close what its parent opened: it would wait for threads that were not forked. So it keeps it for ever.
_INHERITED: list[object] = []


class PerProcess(Generic[T]):
    """A value that each process makes when it first needs it; a forked child makes a new one.

    Two threads that need it first at the same moment may make two; one of them is kept. There is no lock, because a
    lock that another thread holds during a fork stays locked for ever in the child.

    >>> counter = PerProcess(lambda: object())
    >>> counter.get() is counter.get()
    True
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[int, T] | None = None

    def get(self) -> T:
        """Return the value of this process."""
        held = self._held
        if held is not None and held[0] != os.getpid():
            _INHERITED.append(held)
            held = None
        if held is None:
            held = self._held = (os.getpid(), self._make())
        return held[1]
