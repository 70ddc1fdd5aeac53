"""Fill a partition's arrays from its Parquet files, and check the numbers. It never decides where the arrays lie."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
    describe,
    is_finite,
    raise_problems,
)
from cerebro_spark.data.input.columns import Codec, Column, Role
from cerebro_spark.data.input.encoded import decode
from cerebro_spark.data.input.inputs import list_sources
from cerebro_spark.errors import CerebroError, DataError
from cerebro_spark.rounding import count_rounded, count_rows
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
    names = list_sources(dataset.columns)
    check = NumberCheck(dataset, partition)
    at = 0
    with ExitStack() as stack:
        paths = [_fetch(dataset.store, name, staging, stack) for name in partition.files]
        read = _choose_reader(reader, paths[0], names)
        for batch in _explain_damage(read(paths, names), dataset, partition):
            end = at + len(batch[names[0]])
            if end > partition.rows:
                raise _wrong_rows(dataset, partition, f"more than {partition.rows}")
            for column in dataset.columns:
                _fill_column(column, check, at, batch, arrays[column.name][at:end])
            at = end
            # Let go of the batch before the next one is made.
            del batch
    if at != partition.rows:
        raise _wrong_rows(dataset, partition, str(at))
    raise_problems(check.problems())


def load_arrays(dataset: Dataset, partition: Partition, *, reader: ReaderName = "auto") -> dict[str, NDArray[Any]]:
    """Return the partition's arrays in ordinary memory of this process.

    >>> import tempfile
    >>> from cerebro_spark.data.prepare import prepare
    >>> data = {"x": [1.0, 2.0], "y": [0, 1]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["x"], label="y", partitions=1)
    >>> load_arrays(dataset, dataset.train[0])["features"].shape
    (2, 1)
    """
    arrays = _empty_arrays(dataset, partition.rows)
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
    names = list_sources(dataset.columns)
    check = NumberCheck(dataset, partition)
    with ExitStack() as stack:
        path = _fetch(dataset.store, partition.files[0], None, stack)
        batches = _explain_damage(arrow.read_batches([path], names), dataset, partition)
        batch = {name: values[:rows] for name, values in next(batches).items()}
        arrays = _empty_arrays(dataset, len(batch[names[0]]))
        for column in dataset.columns:
            _fill_column(column, check, 0, batch, arrays[column.name])
        batches.close()
    if check.problems():
        load_arrays(dataset, partition)  # says how many there are in all
    return arrays


class NumberCheck:
    """Counts the rows of a partition with numbers that cannot be trained on."""

    def __init__(self, dataset: Dataset, partition: Partition) -> None:
        self.partition = partition
        # Data that was prepared or opened by a version without these rules is read as it was then.
        self.checks_features = not dataset.made.get("allow_nan", True)
        self.checks_rounding = "allow_nan" in dataset.made
        self._rounded: Counter[str] = Counter()
        self._not_finite: Counter[tuple[str, Role]] = Counter()

    def count(self, source: str, column: Column, values: NDArray[Any]) -> None:
        """Count the rows with whole numbers that a float32 matrix would round, and NaN or infinite ones."""
        if self.checks_rounding and column.dtype == "float32":
            self._rounded[source] += count_rounded(values)
        checked = self.checks_features or column.role != "feature"
        if checked and values.dtype.kind == "f" and not is_finite(values):
            self._not_finite[source, column.role] += count_rows(~np.isfinite(values))

    def problems(self) -> list[str]:
        """Return a sentence for every column that has bad rows."""
        place = self.partition.id
        rounded = [f"{describe('rounded', source, bad)} ({place})" for source, bad in self._rounded.items() if bad]
        return rounded + [
            f"column {source!r} is a {role} and has {bad} NaN or infinite rows in {place}: fill them or drop"
            f" them{ALLOW_NAN if role == 'feature' else ''}"
            for (source, role), bad in self._not_finite.items()
            if bad
        ]


def _empty_arrays(dataset: Dataset, rows: int) -> dict[str, NDArray[Any]]:
    return {column.name: np.empty((rows, *column.shape), np.dtype(column.dtype)) for column in dataset.columns}


def _explain_damage(
    batches: Iterator[dict[str, Any]], dataset: Dataset, partition: Partition
) -> Generator[dict[str, Any], None, None]:
    try:
        yield from batches
    except CerebroError:
        raise
    except (pa.ArrowException, OSError, RuntimeError) as error:
        raise DataError(f"{partition.id} of {dataset.url} cannot be read: {error}; prepare the data again") from error


def _choose_reader(reader: ReaderName, path: Path, names: Sequence[str]) -> Reader:
    can_read = reader == "auto" and petastorm.is_installed() and petastorm.can_read(pq.read_schema(path), names)
    return petastorm.read_batches if can_read or reader == "petastorm" else arrow.read_batches


def _fetch(store: Store, name: str, staging: Path | None, stack: ExitStack) -> Path:
    path = store.local_path(name)
    if path is not None:
        return path
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fetch-", dir=staging))
    return store.fetch(name, Path(folder) / "part.parquet")


def _fill_column(column: Column, check: NumberCheck, at: int, batch: Mapping[str, Any], target: NDArray[Any]) -> None:
    """Copy one column of a batch, whose first row is row `at` of the partition; DataError if it does not fit."""
    try:
        if column.codec is None:
            _copy_numbers(column, check, batch, target)
        else:
            _decode_cells(column, column.codec, check, at, batch[column.sources[0]], target)
    except CerebroError:
        raise
    except ValueError as error:
        raise DataError(
            f"column {column.name!r} of {check.partition.id} does not hold {len(target)} rows of shape {column.shape}:"
            f" {error}; pad or crop them to one shape"
        ) from error


def _decode_cells(
    column: Column, codec: Codec, check: NumberCheck, at: int, cells: Sequence[Any], target: NDArray[Any]
) -> None:
    source = column.sources[0]
    for row, data in enumerate(cells):
        try:
            decode(bytes(data), codec, target[row])
        except DataError as error:
            raise DataError(
                f"column {source!r}, row {at + row} of {check.partition.id}: {error}; drop or mend that row"
            ) from error
    check.count(source, column, target)


def _copy_numbers(column: Column, check: NumberCheck, batch: Mapping[str, Any], target: NDArray[Any]) -> None:
    offset = 0
    for source in column.sources:
        values = np.asarray(batch[source])
        _check_nulls(source, column, check.partition, values)
        check.count(source, column, values)
        part = target
        if len(column.sources) > 1:
            width = values.shape[1] if values.ndim > 1 else 1
            part = target[:, offset : offset + width]
            offset += width
        _assign(source, check.partition, values, part)


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
            bad = count_rows(values.astype(target.dtype) != values)
            raise DataError(
                f"column {source!r} has {bad} rows in {partition.id} that {target.dtype} cannot hold (numbers from"
                f" {low} to {high}): its file was changed after it was opened; open the data again"
            )
    try:
        with np.errstate(over="raise"):
            target[...] = values.reshape(target.shape)
    except FloatingPointError as error:
        raise DataError(f"{describe('overflows', source, count_overflows(values))} ({partition.id})") from error


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
