"""What is wrong with the cells of source columns, counted. Nothing is raised before all rows have been counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.columns import Role, SourceType
from cerebro_spark.errors import DataError

_TYPES_LISTED = 16
_COUNTS = ("nulls", "nans", "infinities", "negatives", "broken", "overflows", "rounded", "unlisted")
EXACT = 1 << 24
"""float32 has all whole numbers up to this one."""
ALLOW_NAN = ", or say allow_nan=True if the model can handle them"


@dataclass
class ColumnCheck:
    """The rules for one source column, the types found in it, and the number of rows that break each rule."""

    role: Role
    in_matrix: bool = False
    """Its whole numbers become float32 when they are stored."""
    allow_nan: bool = True
    """Among features; labels and weights are always finite."""
    nulls: int = 0
    nans: int = 0
    infinities: int = 0
    negatives: int = 0
    broken: int = 0
    overflows: int = 0
    rounded: int = 0
    reason: str = ""
    types: Counter[SourceType] = field(default_factory=Counter)
    unlisted: int = 0
    """Rows of types that are not in `types` any more."""

    @property
    def clean(self) -> bool:
        """Whether all rows are of one type and break no rule."""
        return len(self.types) <= 1 and not any(getattr(self, name) for name in _COUNTS)

    def add(self, other: ColumnCheck) -> None:
        """Add what was found in other rows of the same column."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = self.reason or other.reason
        self.types += other.types

    def drop_rare_types(self) -> None:
        """Only count the rows of all but the commonest types: a check does not grow with its rows."""
        for kind, rows in self.types.most_common()[_TYPES_LISTED:]:
            self.unlisted += rows
            del self.types[kind]

    def problems(self, name: str) -> Iterable[str]:
        """Yield a sentence for each broken rule, with the column, the number of rows and the fix."""
        if self.nulls:
            yield f"column {name!r} has {self.nulls} null rows: fill them (fillna) or drop them (dropna)"
        if self.broken:
            yield f"column {name!r} has {self.broken} rows that are {self.reason}"
        if self.overflows:
            yield describe_overflow(name, self.overflows)
        if self.rounded:
            yield describe_rounding(name, self.rounded)
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
            odd = sum(rows for _, rows in others) + self.unlisted
            shown = ", ".join(f"{kind.dtype} {kind.shape}" for kind, _ in others[:5])
            yield (
                f"column {name!r} is ragged: most rows are {usual.dtype} of shape {usual.shape}, {odd} rows differ"
                f" ({shown}): pad or crop them to one shape"
            )

    @property
    def _way_out(self) -> str:
        return ALLOW_NAN if self.role == "feature" else ""


def raise_problems(checks: Mapping[str, ColumnCheck]) -> None:
    """Raise DataError with everything that is wrong in any column, if anything is."""
    problems = [problem for name, check in checks.items() for problem in check.problems(name)]
    if problems:
        raise DataError("; ".join(problems))


def count_rounded(values: NDArray[Any]) -> int:
    """Count the rows with a whole number that float32 cannot hold.

    >>> count_rounded(np.array([1 << 24, (1 << 24) + 1, -(1 << 24) - 1, 1 << 40]))
    2
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not values.size:
        return 0
    if int(values.min()) >= -EXACT and int(values.max()) <= EXACT:
        return 0
    bits = values.astype(np.uint64)
    size = np.where(values < 0, ~bits + np.uint64(1), bits)
    # float32 holds a number if no more than 24 bits lie between its first and its last bit that is set.
    last = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
    lost = size // last >= np.uint64(EXACT)
    return int(lost.reshape(len(values), -1).any(axis=1).sum())


def describe_rounding(name: str, rows: int) -> str:
    """Return the sentence about whole numbers that would change once stored."""
    return (
        f"column {name!r} has {rows} rows with whole numbers beyond 16777216 (2**24) that would be rounded to float32,"
        " as which a matrix of columns is stored: make it an input of its own, which keeps whole numbers, as in"
        f" features={{'x': [...], 'id': {name!r}}}, or cast it to double if it may be rounded"
    )


def count_overflows(values: NDArray[Any]) -> int:
    """Count the rows of floats with a finite number that is infinite as float32.

    >>> count_overflows(np.array([1.0, 1e300, np.inf]))
    1
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.isinf(values.astype(np.float32)) & np.isfinite(values)
    return int(lost.reshape(len(values), -1).any(axis=1).sum())


def describe_overflow(name: str, rows: int) -> str:
    """Return the sentence about numbers that would become infinite once stored."""
    return (
        f"column {name!r} has {rows} rows with numbers beyond what float32 holds (3.4e38), which floats are stored as:"
        " scale or clip them"
    )
