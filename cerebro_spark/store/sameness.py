"""Writes that find their own bytes under the name: they have happened. Other bytes there are always somebody else's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO, Protocol

from cerebro_spark.errors import AlreadyInStore, NotFoundInStore

_log = logging.getLogger(__name__)
_CHUNK = 1 << 20


class Readable(Protocol):
    """What is asked of a store here."""

    @property
    def url(self) -> str:
        """Its address."""

    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open `name` for reading."""

    def _settle(self, name: str) -> None:
        """See that a blob which was found in its place lasts."""


@contextmanager
def own_bytes_pass(store: Readable, name: str, source: Callable[[], BinaryIO]) -> Iterator[None]:
    """Around a write of what `source` opens: a name that is taken by these very bytes is no failure.

    A request whose answer was lost is sent again, by the client of an object store or by the kernel for a network file
    system, and then hears that the name is taken, or that what it wanted to move there is gone.
    """
    try:
        yield
    except (AlreadyInStore, NotFoundInStore):
        if not holds(store, name, source):
            raise
        store._settle(name)
        _log.info("%r is in the store %s after all: only the answer was lost", name, store.url)


def holds(store: Readable, name: str, source: Callable[[], BinaryIO]) -> bool:
    """Whether the store holds exactly the bytes of `source` under the name."""
    try:
        with source() as ours, store.reader(name) as theirs:
            return _same(ours, theirs)
    except NotFoundInStore:
        return False


def _same(ours: BinaryIO, theirs: BinaryIO) -> bool:
    while True:
        wanted = ours.read(_CHUNK)
        if theirs.read(len(wanted) or 1) != wanted:
            return False
        if not wanted:
            return True
