"""Pickles that are kept in a store: a Store in them is a reference to its address, without credentials.

The process that reads such a pickle opens the stores with its own credentials.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cerebro_spark import pickling
from cerebro_spark.store import moved
from cerebro_spark.store.addresses import path_below, server_of, without_secrets
from cerebro_spark.store.base import Store
from cerebro_spark.store.file_systems import check_no_credentials, file_system_classes

_MARK = "cerebro_spark store"


@dataclass(frozen=True, slots=True)
class Reference:
    """A store in a pickle.

    Args:
        number: Its number among the stores of the pickle, from 0; -1 in pickles of older versions.
        url: Its address, without secrets.
        below: Its path below the store that keeps the pickle, "" for that store itself. Defaults to None: it is
            elsewhere.
    """

    number: int
    url: str
    below: str | None = None


Resolve = Callable[[Reference], Store]


def dumps(value: Any, home: Store | None = None) -> tuple[bytes, list[Store]]:
    """Pickle a value with references in place of stores.

    Args:
        value: What to pickle; functions are pickled by value.
        home: The store that will keep the bytes. A store below it is found there even if `home` moves.

    Returns:
        The bytes, and the stores by the numbers of their references.

    Raises:
        ConfigurationError: A function holds an fsspec file system that was opened with credentials.
    """
    sink = io.BytesIO()
    pickler = _Pickler(sink, home)
    pickler.dump(value)
    return sink.getvalue(), pickler.stores


def loads(data: bytes, resolve: Resolve) -> Any:
    """Unpickle what `dumps` returned.

    Args:
        data: The bytes. Unpickling them runs code: trust their source.
        resolve: Returns the store for a reference.

    Returns:
        The value.
    """
    return _Unpickler(io.BytesIO(data), resolve).load()


def resolver_from(home: Store) -> Resolve:
    """Return a function that finds the stores of a pickle that is kept in `home`.

    A store below the one that kept the pickle is now below `home`. Another one on the server of `home` is opened with
    the options of `home`. The rest is opened by its address, with credentials from the environment.
    """

    def resolve(reference: Reference) -> Store:
        inside = path_below(reference.url, home.url) if reference.below is None else reference.below
        if inside is not None:
            return home.below(inside) if inside else home
        if server_of(reference.url) == server_of(home.url):
            return home.beside(reference.url)
        return by_address(reference)

    return resolve


def by_address(reference: Reference) -> Store:
    """Return the store at the address of a reference, with credentials from the environment."""
    from cerebro_spark.store.opening import reopen

    return reopen(reference.url)


class _Pickler(pickling.Pickler):
    def __init__(self, sink: io.BytesIO, home: Store | None) -> None:
        super().__init__(sink)
        self.stores: list[Store] = []
        self._home = home
        self._file_systems = file_system_classes()

    def persistent_id(self, obj: Any) -> tuple[str, int, str, str | None] | None:
        if not isinstance(obj, Store):
            if isinstance(obj, self._file_systems):
                check_no_credentials(obj)
            return None
        number = next((n for n, store in enumerate(self.stores) if store is obj), len(self.stores))
        if number == len(self.stores):
            self.stores.append(obj)
        return _MARK, number, obj.url, None if self._home is None else path_below(obj.url, self._home.url)


class _Unpickler(moved.Unpickler):
    def __init__(self, source: io.BytesIO, resolve: Resolve) -> None:
        super().__init__(source)
        self._resolve = resolve
        self._found: dict[int, Store] = {}

    def persistent_load(self, pid: Any) -> Store:
        mark, number, url, below = pid
        if mark != _MARK:
            raise pickle.UnpicklingError(f"it refers to {mark!r}, which is no store of cerebro_spark")
        if number not in self._found:
            self._found[number] = self._resolve(Reference(number, url, below))
        return self._found[number]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("cerebro_spark.store.fsspec", "_reopened"):
            # A pickle of a version without references. Its credentials are old and not used.
            return lambda url, options: self._resolve(Reference(-1, without_secrets(url)))
        return super().find_class(module, name)
