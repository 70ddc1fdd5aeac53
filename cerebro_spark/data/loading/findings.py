"""What is found wrong with the numbers of a partition while it is read, counted to its end. It mends nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.cells import ALLOW_NAN, rounded_rows, rounding_problem
from cerebro_spark.data.input.columns import Column, Role
from cerebro_spark.errors import DataError
from cerebro_spark.types import Partition


class Findings:
    """Rows of a partition that cannot be trained on as they are, counted until the last is read."""

    def __init__(self, dataset: Dataset, partition: Partition) -> None:
        self.partition = partition
        # Data that was prepared, or opened, before this was asked is read as it was then.
        self.checks_features = not dataset.made.get("allow_nan", True)
        self.checks_rounding = "allow_nan" in dataset.made
        self._not_finite: Counter[tuple[str, Role]] = Counter()
        self._rounded: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._not_finite or self._rounded)

    def note_finite(self, source: str, column: Column, values: NDArray[Any]) -> None:
        """Count rows that hold a NaN or an infinite number where there must be none."""
        if values.dtype.kind != "f" or (column.role == "feature" and not self.checks_features):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum(dtype=np.float64)):
                return
        bad = int((~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))).sum())
        if bad:
            self._not_finite[source, column.role] += bad

    def note_rounded(self, source: str, values: NDArray[Any], target: NDArray[Any]) -> None:
        """Count rows with whole numbers that their place in a matrix of floats cannot hold."""
        if self.checks_rounding and target.dtype == np.float32:
            bad = rounded_rows(values)
            if bad:
                self._rounded[source] += bad

    def check(self) -> None:
        """Raise DataError with every column and its number of rows, if there are any."""
        problems = [f"{rounding_problem(source, bad)} ({self.partition.id})" for source, bad in self._rounded.items()]
        for (source, role), bad in self._not_finite.items():
            problems.append(
                f"column {source!r} is a {role} and has {bad} NaN or infinite rows in {self.partition.id}:"
                f" fill them or drop them{ALLOW_NAN if role == 'feature' else ''}"
            )
        if problems:
            raise DataError("; ".join(problems))
