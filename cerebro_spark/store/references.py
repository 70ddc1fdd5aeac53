"""Stores inside of pickles that are kept: by their address, never with what it takes to open them.

Credentials stay in the process that has them; whoever reads such a pickle says which stores there are now.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import cloudpickle

from cerebro_spark.store import moved
from cerebro_spark.store.base import Store
from cerebro_spark.store.secrets import without_secrets

_MARK = "cerebro_spark store"


@dataclass(frozen=True, slots=True)
class Reference:
    """A store that was pickled: the `number`-th of its pickle, its address without secrets, and where it lies below
    the store that keeps the pickle ("" for that store itself, None if it lies elsewhere).
    """

    number: int
    url: str
    below: str | None = None


Resolve = Callable[[Reference], Store]


def dumps(value: Any, home: Store | None = None) -> tuple[bytes, list[Store]]:
    """The value as bytes with references in the place of stores, and these stores by number.

    `home` is the store that will keep the bytes: what lies below it is found there, wherever it moves.
    """
    sink = io.BytesIO()
    pickler = _Pickler(sink, home)
    pickler.dump(value)
    return sink.getvalue(), pickler.stores


def loads(data: bytes, resolve: Resolve) -> Any:
    """The value of these bytes, with the stores that `resolve` finds for their references."""
    return _Unpickler(io.BytesIO(data), resolve).load()


def found_again(home: Store) -> Resolve:
    """Finds stores as they are now: what lay below the keeper's store lies below `home`; what else is on its server is
    opened as `home` was, and the rest by its address, with credentials from the environment alone.
    """

    def resolve(reference: Reference) -> Store:
        from cerebro_spark.store.opening import reopened

        if reference.below is not None:
            return home.below(reference.below) if reference.below else home
        if reference.url == home.url:
            return home
        inside = _below(reference.url, home.url)
        if inside is not None:
            return home.below(inside)
        return home.beside(reference.url) if _server(reference.url) == _server(home.url) else reopened(reference.url)

    return resolve


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, sink: io.BytesIO, home: Store | None) -> None:
        super().__init__(sink)
        self.stores: list[Store] = []
        self._home = home

    def persistent_id(self, obj: Any) -> tuple[str, int, str, str | None] | None:
        if not isinstance(obj, Store):
            return None
        number = next((n for n, store in enumerate(self.stores) if store is obj), len(self.stores))
        if number == len(self.stores):
            self.stores.append(obj)
        return _MARK, number, obj.url, None if self._home is None else _below(obj.url, self._home.url)


class _Unpickler(moved.Unpickler):
    def __init__(self, source: io.BytesIO, resolve: Resolve) -> None:
        super().__init__(source)
        self._resolve = resolve
        self._found: dict[int, Store] = {}

    def persistent_load(self, pid: Any) -> Store:
        mark, number, url, below = pid
        if mark != _MARK:
            raise pickle.UnpicklingError(f"it refers to {mark!r}, which nobody knows")
        if number not in self._found:
            self._found[number] = self._resolve(Reference(number, url, below))
        return self._found[number]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("cerebro_spark.store.fsspec", "_reopened"):
            # A pickle of before there were references: its credentials are of then, and not used.
            return lambda url, options: self._resolve(Reference(-1, without_secrets(url)))
        return super().find_class(module, name)


def _below(url: str, home: str) -> str | None:
    """The way from one address down to another."""
    if url == home:
        return ""
    root = home.rstrip("/") + "/"
    return url.removeprefix(root) if url.startswith(root) else None


def _server(url: str) -> tuple[str, str]:
    """The machine, bucket or name service of an address."""
    parts = urlsplit(without_secrets(url))
    return parts.scheme, parts.netloc
