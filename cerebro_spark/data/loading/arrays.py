"""Fill a partition's arrays from its Parquet files, and check the numbers. It never decides where the arrays lie."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.formats import arrow, petastorm
from cerebro_spark.data.input.checks import (
    ALLOW_NAN,
    count_overflows,
    count_rounded,
    describe_overflow,
    describe_rounding,
)
from cerebro_spark.data.input.columns import Column, Role
from cerebro_spark.data.input.encoded import decode
from cerebro_spark.errors import CerebroError, DataError
from cerebro_spark.store.base import Store
from cerebro_spark.types import Partition

ReaderName = Literal["auto", "petastorm", "arrow"]
Reader = Callable[[Sequence[Path], Sequence[str]], Iterator[dict[str, Any]]]


def fill(
    dataset: Dataset,
    partition: Partition,
    arrays: Mapping[str, NDArray[Any]],
    *,
    staging: Path | None = None,
    reader: ReaderName = "auto",
) -> None:
    """Read the partition into `arrays` (one for each column, `partition.rows` long)."""
    names = list(dict.fromkeys(source for column in dataset.columns for source in column.sources))
    with ExitStack() as stack:
        paths = [_fetch(dataset.store, name, staging, stack) for name in partition.files]
        read = _choose_reader(reader, paths[0], names)
        at = 0
        check = NumberCheck(dataset, partition)
        for batch in _explain_damage(read(paths, names), dataset, partition):
            rows = len(batch[names[0]])
            if at + rows > partition.rows:
                raise _wrong_rows(dataset, partition, f"more than {partition.rows}")
            for column in dataset.columns:
                try:
                    _fill_column(column, check, at, batch, arrays[column.name][at : at + rows])
                except ValueError as error:
                    if isinstance(error, CerebroError):
                        raise
                    raise DataError(
                        f"column {column.name!r} of {partition.id} does not hold {rows} rows of shape {column.shape}:"
                        f" {error}; pad or crop them to one shape"
                    ) from error
            at += rows
            # Let go of the batch before the next one is made.
            del batch
    if at != partition.rows:
        raise _wrong_rows(dataset, partition, str(at))
    check.raise_problems()


def load_arrays(dataset: Dataset, partition: Partition, *, reader: ReaderName = "auto") -> dict[str, NDArray[Any]]:
    """Return the partition's arrays in ordinary memory of this process.

    >>> import tempfile
    >>> from cerebro_spark.data.prepare import prepare
    >>> data = {"x": [1.0, 2.0], "y": [0, 1]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["x"], label="y", partitions=1)
    >>> load_arrays(dataset, dataset.train[0])["features"].shape
    (2, 1)
    """
    arrays = {
        column.name: np.empty((partition.rows, *column.shape), np.dtype(column.dtype)) for column in dataset.columns
    }
    fill(dataset, partition, arrays, reader=reader)
    return arrays


def first_rows(dataset: Dataset, partition: Partition, rows: int) -> dict[str, NDArray[Any]]:
    """Return at most `rows` rows from the beginning of a partition, without reading all of it.

    >>> import tempfile
    >>> from cerebro_spark.data.prepare import prepare
    >>> data = {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["x"], label="y", partitions=1)
    >>> first_rows(dataset, dataset.train[0], 2)["label"].shape
    (2,)
    """
    names = list(dict.fromkeys(source for column in dataset.columns for source in column.sources))
    with ExitStack() as stack:
        path = _fetch(dataset.store, partition.files[0], None, stack)
        batches = _explain_damage(arrow.read_batches([path], names), dataset, partition)
        batch = {name: values[:rows] for name, values in next(batches).items()}
        count = len(batch[names[0]])
        arrays = {column.name: np.empty((count, *column.shape), np.dtype(column.dtype)) for column in dataset.columns}
        check = NumberCheck(dataset, partition)
        for column in dataset.columns:
            _fill_column(column, check, 0, batch, arrays[column.name])
        batches.close()  # type: ignore[attr-defined]
    if check:
        load_arrays(dataset, partition)  # says how many there are in all
    return arrays


class NumberCheck:
    """Counts the rows of a partition with numbers that cannot be trained on; raises only after the last row."""

    def __init__(self, dataset: Dataset, partition: Partition) -> None:
        self.partition = partition
        # Data that was prepared or opened by a version without these rules is read as it was then.
        self.checks_features = not dataset.made.get("allow_nan", True)
        self.checks_rounding = "allow_nan" in dataset.made
        self._not_finite: Counter[tuple[str, Role]] = Counter()
        self._rounded: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether any row breaks a rule so far."""
        return bool(self._not_finite or self._rounded)

    def count_not_finite(self, source: str, column: Column, values: NDArray[Any]) -> None:
        """Count the rows with a NaN or infinite number in a column that must be finite."""
        if values.dtype.kind != "f" or (column.role == "feature" and not self.checks_features):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum(dtype=np.float64)):
                return
        bad = int((~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))).sum())
        if bad:
            self._not_finite[source, column.role] += bad

    def count_rounded(self, source: str, values: NDArray[Any], target: NDArray[Any]) -> None:
        """Count the rows with whole numbers that would be rounded in a matrix of floats."""
        if self.checks_rounding and target.dtype == np.float32:
            bad = count_rounded(values)
            if bad:
                self._rounded[source] += bad

    def raise_problems(self) -> None:
        """Raise DataError with every column and its number of bad rows, if there are any."""
        problems = [f"{describe_rounding(source, bad)} ({self.partition.id})" for source, bad in self._rounded.items()]
        for (source, role), bad in self._not_finite.items():
            problems.append(
                f"column {source!r} is a {role} and has {bad} NaN or infinite rows in {self.partition.id}:"
                f" fill them or drop them{ALLOW_NAN if role == 'feature' else ''}"
            )
        if problems:
            raise DataError("; ".join(problems))


def _explain_damage(
    batches: Iterator[dict[str, Any]], dataset: Dataset, partition: Partition
) -> Iterator[dict[str, Any]]:
    try:
        yield from batches
    except (pa.ArrowException, OSError, RuntimeError) as error:
        if isinstance(error, CerebroError):
            raise
        raise DataError(f"{partition.id} of {dataset.url} cannot be read: {error}; prepare the data again") from error


def _choose_reader(reader: ReaderName, path: Path, names: Sequence[str]) -> Reader:
    if reader == "arrow" or (reader == "auto" and not petastorm.is_installed()):
        return arrow.read_batches
    if reader == "auto" and not petastorm.can_read(pq.read_schema(path), names):
        return arrow.read_batches
    return petastorm.read_batches


def _fetch(store: Store, name: str, staging: Path | None, stack: ExitStack) -> Path:
    path = store.local_path(name)
    if path is not None:
        return path
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fetch-", dir=staging))
    return store.fetch(name, Path(folder) / "part.parquet")


def _fill_column(column: Column, check: NumberCheck, at: int, batch: Mapping[str, Any], target: NDArray[Any]) -> None:
    partition = check.partition
    if column.codec is not None:
        for row, data in enumerate(batch[column.sources[0]]):
            try:
                decode(bytes(data), column.codec, target[row])
            except DataError as error:
                raise DataError(
                    f"column {column.sources[0]!r}, row {at + row} of {partition.id}: {error}; drop or mend that row"
                ) from error
        check.count_not_finite(column.sources[0], column, target)
        return
    offset = 0
    for source in column.sources:
        values = np.asarray(batch[source])
        _check_nulls(source, column, partition, values)
        check.count_not_finite(source, column, values)
        check.count_rounded(source, values, target)
        if len(column.sources) == 1:
            _assign(source, partition, values, target)
            return
        width = values.shape[1] if values.ndim > 1 else 1
        _assign(source, partition, values, target[:, offset : offset + width])
        offset += width


def _assign(source: str, partition: Partition, values: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy values that may be of a wider type than the target; DataError if one would wrap or overflow."""
    if target.dtype.kind in "iub" and not np.can_cast(values.dtype, target.dtype, "safe"):
        if target.dtype.kind == "b" or values.dtype.kind not in "iu":
            raise DataError(
                f"column {source!r} is {values.dtype} in {partition.id} where {target.dtype} is expected: its file was"
                " changed after it was opened; open the data again"
            )
        # As Python numbers: NumPy would compare unsigned 64-bit numbers with signed ones as floats.
        limits = np.iinfo(target.dtype)
        low, high = int(values.min(initial=0)), int(values.max(initial=0))
        if low < limits.min or high > limits.max:
            kept = values.reshape(len(values), -1).astype(target.dtype)
            bad = int((kept != values.reshape(len(values), -1)).any(axis=1).sum())
            raise DataError(
                f"column {source!r} has {bad} rows in {partition.id} that {target.dtype} cannot hold (numbers from"
                f" {low} to {high}): its file was changed after it was opened; open the data again"
            )
    try:
        with np.errstate(over="raise"):
            target[...] = values.reshape(target.shape)
    except FloatingPointError as error:
        raise DataError(f"{describe_overflow(source, count_overflows(values))} ({partition.id})") from error


def _check_nulls(source: str, column: Column, partition: Partition, values: NDArray[Any]) -> None:
    """Raise DataError for nulls, which come as objects or as NaN among integers; `prepare` never writes any."""
    kept = np.dtype(column.dtype).kind
    if values.dtype.kind == "O" or (values.dtype.kind == "f" and kept != "f"):
        raise DataError(f"column {source!r} has null rows in {partition.id}: fill them (fillna) or drop them (dropna)")


def _wrong_rows(dataset: Dataset, partition: Partition, found: str) -> DataError:
    return DataError(
        f"{partition.id} of {dataset.url} should hold {partition.rows} rows but holds {found}:"
        " its files were changed after they were written; prepare the data again"
    )
