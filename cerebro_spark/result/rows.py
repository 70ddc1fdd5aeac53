"""Turns new rows into the arrays that a model was trained on, as `prepare` does. It never guesses at bad cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.cells import Cells, read_cells
from cerebro_spark.data.input.checks import ColumnCheck, list_problems, raise_problems
from cerebro_spark.data.input.columns import Column, SourceType
from cerebro_spark.data.input.encoded import decode
from cerebro_spark.errors import DataError
from cerebro_spark.trainer.feed import Batch

_CHUNK_BYTES = 1 << 28


def source_columns(dataset: Dataset) -> tuple[Column, ...]:
    """Return the columns of a data set, each with the names of its sources in the user's DataFrame."""
    named: Mapping[str, Sequence[str]] = dataset.made.get("columns", {})
    return tuple(replace(column, sources=tuple(named.get(column.name, column.sources))) for column in dataset.columns)


def list_sources(columns: Sequence[Column]) -> list[str]:
    """Return every source once, in the order of first use.

    >>> list_sources([Column("x", "feature", "float32", (2,), ("a", "b")), Column("y", "label", "int64", (), ("a",))])
    ['a', 'b']
    """
    return list(dict.fromkeys(source for column in columns for source in column.sources))


def chunk_size(columns: Sequence[Column]) -> int:
    """Return how many rows to read at a time: encoded images are small until they are decoded.

    >>> chunk_size([Column("photo", "feature", "float32", (512, 512, 3), ("photo",), "image")])
    85
    """
    return max(1, _CHUNK_BYTES // max(1, sum(column.row_bytes for column in columns)))


def read_rows(columns: Sequence[Column], cells: Mapping[str, Cells]) -> Batch:
    """Return the arrays of these columns. Raises DataError with what is wrong in which column, and in how many rows.

    >>> read_rows([Column("features", "feature", "float32", (2,), ("a", "b"))], {"a": np.ones(3), "b": np.arange(3)})
    {'features': array([[1., 0.], [1., 1.], [1., 2.]], dtype=float32)}
    """
    roles = {source: column.role for column in columns for source in column.sources}
    checks = {source: ColumnCheck(roles[source]) for source in list_sources(columns)}
    values = {source: read_cells(source, cells[source], check) for source, check in checks.items()}
    raise_problems(list_problems(checks))
    found = {source: next(iter(check.types), None) for source, check in checks.items()}
    return {column.name: _array(column, values, found) for column in columns}


def _array(column: Column, values: Mapping[str, Any], found: Mapping[str, SourceType | None]) -> NDArray[Any]:
    rows = len(values[column.sources[0]])
    target = np.empty((rows, *column.shape), np.dtype(column.dtype))
    if not rows:
        return target
    if column.codec is not None:
        for row, data in enumerate(_check_encoded(column, values[column.sources[0]])):
            decode(data, column.codec, target[row])
        return target
    blocks = [_check_numbers(column, source, values[source]) for source in column.sources]
    parts, flat = [block.reshape(rows, -1) for block in blocks], target.reshape(rows, -1)
    joins_arrays = len(blocks) > 1 and any(array.ndim > 2 for array in (target, *blocks))
    if joins_arrays or sum(part.shape[1] for part in parts) != flat.shape[1]:
        raise _misshapen(column, found)
    at = 0
    for source, part in zip(column.sources, parts, strict=True):
        _assign(source, part, flat[:, at : at + part.shape[1]])
        at += part.shape[1]
    return target


def _check_encoded(column: Column, cells: Any) -> list[bytes]:
    if isinstance(cells, list):
        return cells
    raise DataError(
        f"column {column.sources[0]!r} holds numbers, but the model was trained on encoded cells ({column.codec}):"
        " give the bytes as they were"
    )


def _check_numbers(column: Column, source: str, values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    raise DataError(f"column {source!r} holds bytes, but the model was trained on {column.dtype}: decode them first")


def _assign(source: str, values: NDArray[Any], target: NDArray[Any]) -> None:
    """Whole numbers may have another width than in training, but must fit; a float is no class number."""
    kept, kind = target.dtype, values.dtype.kind
    if kept.kind in "iub" and not np.can_cast(values.dtype, kept, "safe"):
        if kept.kind == "b" or kind not in "iu":
            raise DataError(
                f"column {source!r} is {values.dtype}, but the model was trained with {kept} there: cast it to {kept}"
            )
        limits = np.iinfo(kept)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise DataError(
                f"column {source!r} has numbers from {values.min()} to {values.max()}, but the model was trained with"
                f" {kept}, which ends at {limits.max}: take out the rows beyond"
            )
    target[...] = values


def _misshapen(column: Column, found: Mapping[str, SourceType | None]) -> DataError:
    shapes = {source: kind.shape for source in column.sources if (kind := found[source]) is not None}
    return DataError(
        f"the input {column.name!r} of the model has shape {column.shape} in each row, but the columns it is made of"
        f" have {shapes} here: pad or crop them to what the model was trained on"
    )
