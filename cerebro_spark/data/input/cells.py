"""Turn the cells of one source column into numbers and count the bad ones. It never raises for a bad cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cerebro_spark.data.input.columns import Role, SourceType, check_type, stored_dtype
from cerebro_spark.data.input.images import probe
from cerebro_spark.errors import DataError

# An Arrow array, or a NumPy array whose first axis is the rows.
Cells = Any
_SHAPES_KEPT = 16
_COUNTS = ("nulls", "nans", "infinities", "negatives", "broken", "overflows", "rounded")
EXACT = 1 << 24
"""float32 has all whole numbers up to this one"""


@dataclass
class Tally:
    """What was found in a source column: types with their row counts, and the rows that are in the way."""

    role: Role
    floats: bool = False
    """whole numbers of this column become float32 when it is stored, in a matrix of columns"""
    allow_nan: bool = True
    """of a feature; labels and weights are always finite"""
    nulls: int = 0
    nans: int = 0
    infinities: int = 0
    negatives: int = 0
    broken: int = 0
    overflows: int = 0
    rounded: int = 0
    reason: str = ""
    types: Counter[SourceType] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        return len(self.types) <= 1 and not (
            self.nulls
            or self.nans
            or self.infinities
            or self.negatives
            or self.broken
            or self.overflows
            or self.rounded
        )

    def add(self, other: Tally) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = self.reason or other.reason
        self.types += other.types

    def to_json(self) -> dict[str, Any]:
        types = [
            [kind.dtype, list(kind.shape), kind.codec, rows] for kind, rows in self.types.most_common(_SHAPES_KEPT)
        ]
        numbers = {name: getattr(self, name) for name in _COUNTS}
        return {"role": self.role, "reason": self.reason, "types": types, **numbers}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Tally:
        types = Counter({SourceType(dtype, tuple(shape), codec): rows for dtype, shape, codec, rows in value["types"]})
        return Tally(**{**value, "types": types})

    def problems(self, name: str) -> Iterable[str]:
        """One sentence for each thing that is wrong, with the column, the count and the remedy."""
        if self.nulls:
            yield f"column {name!r} has {self.nulls} null rows: fill them (fillna) or drop them (dropna)"
        if self.broken:
            yield f"column {name!r} has {self.broken} rows that are {self.reason}"
        if self.overflows:
            yield overflow_problem(name, self.overflows)
        if self.rounded:
            yield rounding_problem(name, self.rounded)
        if self.nans:
            yield (
                f"column {name!r} is a {self.role} and has {self.nans} NaN rows: fill them or drop them{self._way_out}"
            )
        if self.infinities:
            yield (
                f"column {name!r} is a {self.role} and has {self.infinities} infinite rows: clip them or drop"
                f" them{self._way_out}"
            )
        if self.negatives:
            yield f"column {name!r} is a weight and has {self.negatives} negative rows: use weights of zero or more"
        if len(self.types) > 1:
            (usual, _), *others = self.types.most_common()
            odd = sum(rows for _, rows in others)
            shown = ", ".join(f"{kind.dtype} {kind.shape}" for kind, _ in others[:5])
            yield (
                f"column {name!r} is ragged: most rows are {usual.dtype} of shape {usual.shape}, {odd} rows differ"
                f" ({shown}): pad or crop them to one shape"
            )

    @property
    def _way_out(self) -> str:
        return ALLOW_NAN if self.role == "feature" else ""


ALLOW_NAN = ", or say allow_nan=True if the model knows what to do with them"


def rounding_problem(name: str, rows: int) -> str:
    """What is said of whole numbers that would become others once stored."""
    return (
        f"column {name!r} has {rows} rows with whole numbers beyond 16777216 (2**24) that would be rounded to float32,"
        " as which a matrix of columns is stored: make it an input of its own, which keeps whole numbers, as in"
        f" features={{'x': [...], 'id': {name!r}}}, or cast it to double if it may be rounded"
    )


def rounded_rows(values: NDArray[Any]) -> int:
    """How many rows hold a whole number that float32 cannot.

    >>> rounded_rows(np.array([1 << 24, (1 << 24) + 1, -(1 << 24) - 1, 1 << 40]))
    2
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not values.size:
        return 0
    if int(values.min()) >= -EXACT and int(values.max()) <= EXACT:
        return 0
    bits = values.astype(np.uint64)
    size = np.where(values < 0, ~bits + np.uint64(1), bits)
    # A number is one of float32 if no more than 24 bits are between its first and its last one that is set.
    last = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
    lost = size // last >= np.uint64(EXACT)
    return int(lost.reshape(len(values), -1).any(axis=1).sum())


def overflow_problem(name: str, rows: int) -> str:
    """What is said of numbers that would become infinite once stored."""
    return (
        f"column {name!r} has {rows} rows with numbers beyond what float32 holds (3.4e38), which floats are stored as:"
        " scale or clip them"
    )


def overflowing(values: NDArray[Any]) -> int:
    """How many rows of floats hold a finite number that is none as float32.

    >>> overflowing(np.array([1.0, 1e300, np.inf]))
    1
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.isinf(values.astype(np.float32)) & np.isfinite(values)
    return int(lost.reshape(len(values), -1).any(axis=1).sum())


def raise_problems(tallies: Mapping[str, Tally]) -> None:
    """Raise DataError with everything that is wrong in any column, if anything is."""
    problems = [problem for name, tally in tallies.items() for problem in tally.problems(name)]
    if problems:
        raise DataError("; ".join(problems))


def read_cells(name: str, cells: Cells, tally: Tally) -> NDArray[Any] | list[bytes] | None:
    """The values of these cells as one array (or encoded bytes), or None if some cannot be used: then they are counted.

    >>> read_cells("x", pa.array([[1.0, 2.0], [3.0, 4.0]]), Tally("feature")).shape
    (2, 2)
    """
    if isinstance(cells, np.ndarray):
        return _read_numpy(name, cells, tally)
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    dtype = check_type(name, cells.type)
    if cells.null_count:
        tally.nulls += cells.null_count
        read_cells(name, cells.drop_null(), tally)
        return None
    if dtype is None:
        return _read_encoded(cells.to_pylist(), tally)
    values = _unnest(cells)
    if values is None:
        _count_ragged(cells, dtype, tally)
        return None
    return _read_numpy(name, values, tally)


def _read_numpy(name: str, values: NDArray[Any], tally: Tally) -> NDArray[Any] | None:
    if values.dtype.kind not in "fiub":
        check_type(name, pa.from_numpy_dtype(values.dtype) if values.dtype.kind in "SUMm" else pa.null())
    if len(values):
        tally.types[SourceType(stored_dtype(values.dtype), values.shape[1:])] += len(values)
    bad = 0
    if values.dtype.kind == "f" and values.dtype != np.float32:
        try:
            with np.errstate(over="raise", invalid="ignore"):
                values = values.astype(np.float32)
        except FloatingPointError:
            bad = overflowing(values)
            tally.overflows += bad
    if tally.floats and values.ndim <= 2:
        rounded = rounded_rows(values)
        tally.rounded += rounded
        bad += rounded
    if (tally.role == "feature" and tally.allow_nan) or not len(values):
        return None if bad else values
    rows = values.reshape(len(values), -1)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(rows.sum(dtype=np.float64))
        if not finite:
            nans, infinities = np.isnan(rows).any(axis=1), np.isinf(rows).any(axis=1)
            tally.nans += int(nans.sum())
            tally.infinities += int(infinities.sum())
            bad += int(nans.sum() + infinities.sum())
    if tally.role == "weight":
        negative = int((rows < 0).any(axis=1).sum())
        tally.negatives += negative
        bad += negative
    return None if bad else values


def _read_encoded(cells: list[bytes], tally: Tally) -> list[bytes] | None:
    bad = 0
    for data in cells:
        try:
            tally.types[probe(data)] += 1
        except DataError as error:
            tally.reason = tally.reason or str(error)
            bad += 1
    tally.broken += bad
    return None if bad else cells


def _unnest(cells: pa.Array) -> NDArray[Any] | None:
    """Lists of lists as one array with a dimension a level; None where lengths differ or an element is null."""
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


def _count_ragged(cells: pa.Array, dtype: np.dtype[Any], tally: Tally) -> None:
    for cell in cells.to_pylist():
        shape = _shape_of(cell)
        if shape is None:
            tally.nulls += 1
        elif -1 in shape:
            tally.broken += 1
            tally.reason = tally.reason or "ragged within themselves: pad or crop them to one shape"
        else:
            tally.types[SourceType(stored_dtype(dtype), shape)] += 1


def _shape_of(cell: Any) -> tuple[int, ...] | None:
    """The shape of nested lists, with -1 where the lists of one level differ; None if an element is null."""
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
