"""Stores of partitions, checkpoints, event logs and results, behind one small interface.

A client library is imported when a store that needs it is opened, not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro_spark.store.base import Store
    from cerebro_spark.store.fsspec import FsspecStore
    from cerebro_spark.store.hdfs import HdfsStore
    from cerebro_spark.store.local import LocalStore
    from cerebro_spark.store.opening import open_store

_HOMES = {
    "FsspecStore": "fsspec",
    "HdfsStore": "hdfs",
    "LocalStore": "local",
    "Store": "base",
    "open_store": "opening",
}

__all__ = ["FsspecStore", "HdfsStore", "LocalStore", "Store", "open_store"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
