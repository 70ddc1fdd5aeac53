"""Rows of a pandas DataFrame or a dict of arrays, worked on in this process. It needs no Spark and changes no row."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from cerebro_spark.data.input.base import SplitTask, StagingFolder, T
from cerebro_spark.data.input.cells import Cells
from cerebro_spark.data.input.checks import describe
from cerebro_spark.errors import DataError
from cerebro_spark.rounding import count_rows
from cerebro_spark.store.base import Store
from cerebro_spark.store.local import LocalStore

_SPLIT_ROWS = 1 << 18
_BATCH_ROWS = 1 << 14


class LocalFrame:
    """Named columns of equal length in this process.

    >>> LocalFrame({"x": [1, 2, 3]}, ["x"]).rows
    3
    """

    kind = "arrays"

    def __init__(self, data: pd.DataFrame | Mapping[str, Any], names: Iterable[str]) -> None:
        self.columns: dict[str, Cells] = {name: _cells(name, data[name]) for name in names}
        lengths = {name: len(cells) for name, cells in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns must have as many rows as each other, not {lengths}")
        self.rows = next(iter(lengths.values()))

    @property
    def slots(self) -> int:
        """The cores of this machine."""
        return os.cpu_count() or 1

    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column."""
        return {name: _arrow_type(name, cells) for name, cells in self.columns.items()}

    @contextmanager
    def staging_folder(self, store: Store, folder: str) -> Iterator[StagingFolder]:
        """Stage on this machine's own disk, since all tasks run here."""
        with tempfile.TemporaryDirectory(prefix="cerebro-spark-") as path:
            yield StagingFolder(LocalStore(path), "staged")

    def map_splits(self, task: SplitTask[T]) -> list[T]:
        """Run the task on one split after the other."""
        starts = range(0, self.rows, _SPLIT_ROWS)
        return [task(number, self._batches(start, start + _SPLIT_ROWS)) for number, start in enumerate(starts)]

    def starmap(self, task: Callable[..., T], items: Sequence[tuple[Any, ...]]) -> list[T]:
        """Run the task on one item after the other."""
        return [task(*item) for item in items]

    def _batches(self, start: int, end: int) -> Iterator[dict[str, Cells]]:
        for at in range(start, min(end, self.rows), _BATCH_ROWS):
            rows = slice(at, min(end, at + _BATCH_ROWS))
            yield {name: cells[rows] for name, cells in self.columns.items()}


def column_names(data: pd.DataFrame | Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that can be asked for: those that are text."""
    return [name for name in (data.columns if isinstance(data, pd.DataFrame) else data) if isinstance(name, str)]


def _cells(name: str, values: Any) -> Cells:
    if isinstance(values, np.ndarray) and not values.ndim:
        raise DataError(f"column {name!r} is a ndarray without rows, just {values}: give one value for each row")
    if isinstance(values, np.ma.MaskedArray):
        masked = count_rows(np.broadcast_to(values.mask, values.shape))
        if masked:
            raise DataError(describe("nulls", name, masked))
        values = values.data
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise DataError(
            f"column {name!r} is a {type(values).__name__}, not a column of values: give a list or an array with one"
            " value for each row"
        )
    if isinstance(values, pd.Series) and isinstance(values.dtype, pd.SparseDtype):
        values = pd.Series(np.asarray(values))
    if isinstance(values, pd.Series):
        plain = isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub"
        values = values.to_numpy() if plain or values.dtype == object else pa.array(values, from_pandas=True)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values
    return _objects(name, values if isinstance(values, np.ndarray) else list(values))


def _objects(name: str, values: Sequence[Any] | NDArray[Any]) -> Cells:
    """Return cells that are lists, arrays or Python values in a form that Arrow takes."""
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        _element_type(name, values.dtype)
        return _arrow(name, values)
    values = [value.toArray() if hasattr(value, "toArray") else value for value in values]
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.ndarray) and all(
        isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype for value in values
    ):
        return np.stack(list(values))
    plain = [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]
    return _arrow(name, plain)


def _arrow(name: str, values: Any) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, OverflowError) as error:
        raise DataError(
            f"column {name!r} mixes kinds of values in its {len(values)} rows ({error}):"
            " make them all numbers of one type"
        ) from error


def _element_type(name: str, dtype: np.dtype[Any]) -> pa.DataType:
    try:
        return pa.from_numpy_dtype(dtype)
    except pa.ArrowNotImplementedError as error:
        remedy = "use .astype('float64')" if dtype.kind == "f" else "convert it to numbers of one of the usual types"
        raise DataError(
            f"column {name!r} is of type {dtype.name} in all its rows, which cannot be trained on: {remedy}"
        ) from error


def _arrow_type(name: str, cells: Cells) -> pa.DataType:
    if not isinstance(cells, np.ndarray):
        return cells.type
    kind = _element_type(name, cells.dtype)
    for _ in cells.shape[1:]:
        kind = pa.list_(kind)
    return kind
