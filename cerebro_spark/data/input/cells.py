"""Turn the cells of one source column into numbers, and count those that break a rule. A bad cell raises nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cerebro_spark.data.input.checks import ColumnCheck, count_overflows, is_finite
from cerebro_spark.data.input.columns import SourceType, check_type, stored_dtype
from cerebro_spark.data.input.encoded import probe
from cerebro_spark.errors import DataError
from cerebro_spark.rounding import count_rounded, count_rows

# An Arrow array, or a NumPy array whose first axis is the rows.
Cells = Any


def read_cells(name: str, cells: Cells, check: ColumnCheck) -> NDArray[Any] | list[bytes] | None:
    """Return the values of cells as one array or as encoded bytes; None if some are unusable, which `check` counts.

    >>> read_cells("x", pa.array([[1.0, 2.0], [3.0, 4.0]]), ColumnCheck("feature")).shape
    (2, 2)
    """
    if isinstance(cells, np.ndarray):
        return _read_numpy(name, cells, check)
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    dtype = check_type(name, cells.type)
    if cells.null_count:
        check.bad["nulls"] += cells.null_count
        read_cells(name, cells.drop_null(), check)
        return None
    if dtype is None:
        return _read_encoded(cells.to_pylist(), check)
    values = _unnest(cells)
    if values is None:
        _count_ragged(cells, dtype, check)
        return None
    return _read_numpy(name, values, check)


def _read_numpy(name: str, values: NDArray[Any], check: ColumnCheck) -> NDArray[Any] | None:
    if values.dtype.kind not in "fiub":
        check_type(name, pa.from_numpy_dtype(values.dtype) if values.dtype.kind in "SUMm" else pa.null())
    if len(values):
        check.types[SourceType(stored_dtype(values.dtype), values.shape[1:])] += len(values)
    before = check.bad.total()
    values = _to_float32(values, check)
    if check.in_matrix and values.ndim <= 2:
        check.bad["rounded"] += count_rounded(values)
    if len(values) and not (check.role == "feature" and check.allow_nan):
        _count_not_allowed(values, check)
    return values if check.bad.total() == before else None


def _to_float32(values: NDArray[Any], check: ColumnCheck) -> NDArray[Any]:
    """Return floats as float32, in which they are stored; as they are if one is too large, which `check` counts."""
    if values.dtype.kind != "f" or values.dtype == np.float32:
        return values
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return values.astype(np.float32)
    except FloatingPointError:
        check.bad["overflows"] += count_overflows(values)
        return values


def _count_not_allowed(values: NDArray[Any], check: ColumnCheck) -> None:
    """Count rows with NaN and infinite numbers, and with negative weights."""
    if values.dtype.kind == "f" and not is_finite(values):
        check.bad["nans"] += count_rows(np.isnan(values))
        check.bad["infinities"] += count_rows(np.isinf(values))
    if check.role == "weight":
        check.bad["negatives"] += count_rows(values < 0)


def _read_encoded(cells: list[bytes], check: ColumnCheck) -> list[bytes] | None:
    bad = 0
    for data in cells:
        try:
            check.types[probe(data)] += 1
        except DataError as error:
            check.reason = check.reason or str(error)
            bad += 1
    check.bad["broken"] += bad
    return None if bad else cells


def _unnest(cells: pa.Array) -> NDArray[Any] | None:
    """Return lists of lists as one array, a dimension a level; None if lengths differ or an element is null."""
    shape = [len(cells)]
    while not (pa.types.is_primitive(cells.type)):
        if cells.null_count:
            return None
        if pa.types.is_fixed_size_list(cells.type):
            shape.append(cells.type.list_size)
        else:
            lengths = np.diff(np.asarray(cells.offsets))
            if len(lengths) and (lengths != lengths[0]).any():
                return None
            shape.append(int(lengths[0]) if len(lengths) else 0)
        cells = cells.flatten()
    if cells.null_count:
        return None
    values: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _count_ragged(cells: pa.Array, dtype: np.dtype[Any], check: ColumnCheck) -> None:
    for cell in cells.to_pylist():
        shape = _shape_of(cell)
        if shape is None:
            check.bad["nulls"] += 1
        elif -1 in shape:
            check.bad["broken"] += 1
            check.reason = check.reason or "ragged within themselves: pad or crop them to one shape"
        else:
            check.types[SourceType(stored_dtype(dtype), shape)] += 1


def _shape_of(cell: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, with -1 where lists of one level differ; None if an element is null."""
    if cell is None:
        return None
    if not isinstance(cell, list):
        return ()
    inner = [_shape_of(part) for part in cell]
    if None in inner:
        return None
    if len(set(inner)) > 1:
        return (len(cell), -1)
    return (len(cell), *(inner[0] or ())) if inner else (0,)
