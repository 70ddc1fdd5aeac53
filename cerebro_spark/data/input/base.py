"""What `prepare` reads rows from: the protocol of Spark DataFrames, pandas DataFrames and dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import pandas as pd
import pyarrow as pa

from cerebro_spark.data.input.cells import Cells
from cerebro_spark.store.base import Store

T = TypeVar("T")
SplitTask = Callable[[int, Iterable[Mapping[str, Cells]]], T]
"""Takes the number of an input split and its rows, in batches of cells by column."""


class StagingFolder(NamedTuple):
    """Where rows lie between the two passes of `prepare`."""

    store: Store
    path: str


class InputFrame(Protocol):
    """Rows in numbered splits, and the processes that work on them.

    The driver calls it from one thread. A task raises DataError, StoreForbidden or StoreFull as it is; any other error
    may come wrapped in one of Spark's, after Spark has tried the task again.
    """

    @property
    def kind(self) -> str:
        """The name of this kind of input in manifests."""

    @property
    def slots(self) -> int:
        """The number of tasks that run at the same time."""

    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column, without reading a row."""

    def staging_folder(self, store: Store, folder: str) -> AbstractContextManager[StagingFolder]:
        """Make a place for staged rows that every task can reach, and delete it when the block ends."""

    def map_splits(self, task: SplitTask[T]) -> list[T]:
        """Run the task on every input split and return the results, in any order."""

    def starmap(self, task: Callable[..., T], items: Sequence[tuple[Any, ...]]) -> list[T]:
        """Run `task(*item)` for every item and return the results in the order of the items."""


def is_spark_frame(value: Any) -> bool:
    """Return whether this is a Spark DataFrame, without importing Spark."""
    return type(value).__module__.startswith("pyspark.sql")


def is_frame(value: Any) -> bool:
    """Return whether this can be the rows of a data set.

    >>> is_frame({"x": [1.0]}), is_frame(0.2)
    (True, False)
    """
    return is_spark_frame(value) or isinstance(value, pd.DataFrame | Mapping)
