"""Connections that belong to one process. A forked child never uses its parent's: the threads behind it are gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# A child cannot close what its parent opened (it would wait for threads that were not forked), so it keeps it for ever.
_INHERITED: list[object] = []


class PerProcess(Generic[T]):
    """A value that is made when a process first asks for it, and made anew in a forked child.

    Two threads that ask first at the same moment may make two; one of them is kept. There is no lock, because a lock
    that another thread held during a fork stays held for ever in the child.

    >>> counter = PerProcess(lambda: object())
    >>> counter.get() is counter.get()
    True
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[int, T] | None = None

    def get(self) -> T:
        """The value of this process."""
        held = self._held
        if held is not None and held[0] != os.getpid():
            _INHERITED.append(held)
            held = None
        if held is None:
            held = self._held = (os.getpid(), self._make())
        return held[1]
