"""Writes that may be sent twice: one that finds its own bytes under the name has succeeded.

Other bytes under the name belong to another writer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from cerebro_spark.errors import AlreadyInStore, NotFoundInStore

if TYPE_CHECKING:
    from cerebro_spark.store.base import Store

_log = logging.getLogger(__name__)
_CHUNK = 1 << 20


@contextmanager
def accept_own_bytes(store: Store, name: str, source: Callable[[], BinaryIO]) -> Iterator[None]:
    """Run a write; if it fails because the name holds the bytes of `source`, it has succeeded.

    A client of an object store, or the kernel for a network file system, repeats a request whose answer was lost. The
    answer to the second request is that the name is taken, or that the staged file is gone.
    """
    try:
        yield
    except (AlreadyInStore, NotFoundInStore):
        if not holds(store, name, source):
            raise
        store._make_durable(name)
        _log.info("%r is in the store %s: only the answer to an earlier request was lost", name, store.url)


def holds(store: Store, name: str, source: Callable[[], BinaryIO]) -> bool:
    """Return whether the name holds exactly the bytes of `source`."""
    try:
        with source() as ours, store.reader(name) as theirs:
            while wanted := ours.read(_CHUNK):
                if theirs.read(len(wanted)) != wanted:
                    return False
            return not theirs.read(1)
    except (NotFoundInStore, FileNotFoundError):  # the second: of a staged file that another process has swept
        return False
