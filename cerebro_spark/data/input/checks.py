"""What is wrong with the cells of source columns, counted. Nothing is raised before all rows have been counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.columns import Role, SourceType
from cerebro_spark.errors import DataError
from cerebro_spark.rounding import count_rows

Rule = Literal["nulls", "broken", "overflows", "rounded", "nans", "infinities", "negatives", "unlisted"]

_TYPES_LISTED = 16
ALLOW_NAN = ", or say allow_nan=True if the model can handle them"
_SENTENCES: dict[Rule, str] = {
    "nulls": "column {name!r} has {rows} null rows: fill them (fillna) or drop them (dropna)",
    "broken": "column {name!r} has {rows} rows that are {reason}",
    "overflows": "column {name!r} has {rows} rows with numbers beyond what float32 holds (3.4e38), which floats are"
    " stored as: scale or clip them",
    "rounded": "column {name!r} has {rows} rows with whole numbers beyond 16777216 (2**24) that would be rounded to"
    " float32, as which a matrix of columns is stored: make it an input of its own, which keeps whole numbers, as in"
    " features={{'x': [...], 'id': {name!r}}}, or cast it to double if it may be rounded",
    "nans": "column {name!r} is a {role} and has {rows} NaN rows: fill them or drop them{way_out}",
    "infinities": "column {name!r} is a {role} and has {rows} infinite rows: clip them or drop them{way_out}",
    "negatives": "column {name!r} is a weight and has {rows} negative rows: use weights of zero or more",
}


def describe(rule: Rule, name: str, rows: int, role: Role = "feature", reason: str = "") -> str:
    """Return the sentence about the rows of a column that break a rule: how many they are, and the fix."""
    way_out = ALLOW_NAN if role == "feature" else ""
    return _SENTENCES[rule].format(name=name, rows=rows, role=role, reason=reason, way_out=way_out)


@dataclass
class ColumnCheck:
    """The rules for one source column, the types found in it, and the number of rows that break each rule."""

    role: Role
    in_matrix: bool = False
    """Its whole numbers become float32 when they are stored."""
    allow_nan: bool = True
    """Among features; labels and weights are always finite."""
    bad: Counter[Rule] = field(default_factory=Counter)
    """By rule, the rows that break it; "unlisted" are rows of types that are not in `types` any more."""
    reason: str = ""
    types: Counter[SourceType] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Whether all rows are of one type and break no rule."""
        return len(self.types) <= 1 and not self.bad.total()

    def add(self, other: ColumnCheck) -> None:
        """Add what was found in other rows of the same column."""
        self.bad += other.bad
        self.reason = self.reason or other.reason
        self.types += other.types

    def drop_rare_types(self) -> None:
        """Only count the rows of all but the commonest types: a check does not grow with its rows."""
        for kind, rows in self.types.most_common()[_TYPES_LISTED:]:
            self.bad["unlisted"] += rows
            del self.types[kind]

    def problems(self, name: str) -> Iterable[str]:
        """Yield a sentence for each broken rule, with the column, the number of rows and the fix."""
        for rule in _SENTENCES:
            if self.bad[rule]:
                yield describe(rule, name, self.bad[rule], self.role, self.reason)
        if len(self.types) > 1:
            (usual, _), *others = self.types.most_common()
            odd = sum(rows for _, rows in others) + self.bad["unlisted"]
            shown = ", ".join(f"{kind.dtype} {kind.shape}" for kind, _ in others[:5])
            yield (
                f"column {name!r} is ragged: most rows are {usual.dtype} of shape {usual.shape}, {odd} rows differ"
                f" ({shown}): pad or crop them to one shape"
            )


def list_problems(checks: Mapping[str, ColumnCheck]) -> list[str]:
    """Return a sentence for everything that is wrong in any column."""
    return [problem for name, check in checks.items() for problem in check.problems(name)]


def raise_problems(problems: Collection[str]) -> None:
    """Raise DataError with all of these sentences, if there are any."""
    if problems:
        raise DataError("; ".join(problems))


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether no number is NaN or infinite, by their sum: much faster than a look at each number.

    Numbers so large that their sum overflows make it False, too.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=np.float64)))


def count_overflows(values: NDArray[Any]) -> int:
    """Count the rows of floats with a finite number that is infinite as float32.

    >>> count_overflows(np.array([1.0, 1e300, np.inf]))
    1
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return count_rows(np.isinf(values.astype(np.float32)) & np.isfinite(values))
