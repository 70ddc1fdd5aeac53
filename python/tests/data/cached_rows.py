"""A data set to cache, and what its arrays must be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numbered_rows import numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache_root import CacheRoot
from cerebro_spark.data.prepare import prepare
from cerebro_spark.store.base import Store
from cerebro_spark.store.local import LocalStore

ROWS = 400


def cached_rows(store: Store) -> Dataset:
    return prepare(numbered(ROWS * 4, 16), store=store, features="x", label="y", partitions=4)


def size(dataset: Dataset) -> int:
    return dataset.train[0].bytes


def check(arrays: Any) -> None:
    assert len(arrays["label"]) == ROWS
    assert (arrays["features"] == arrays["label"][:, None]).all()


def clear(roots: Mapping[str, Path]) -> None:
    """Remove what no process holds, as `cerebro-spark clean` does."""
    for path in roots.values():
        root = CacheRoot(path)
        root.enter()
        with root.locked():
            root.evict(None)
        root.leave()


class DistantStore(LocalStore):
    """A store whose files lie on no local disk."""

    def local_path(self, name: str) -> Path | None:
        return None
