"""Fill a partition's arrays from its Parquet files, once. It never decides where the arrays lie: their owner does."""

from __future__ import annotations

import tempfile
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
from cerebro_spark.data.input.cells import overflow_problem, overflowing
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.input.images import decode
from cerebro_spark.data.loading.findings import Findings
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
        paths = [_local(dataset.store, name, staging, stack) for name in partition.files]
        read = _choose(reader, paths[0], names)
        at = 0
        findings = Findings(dataset, partition)
        for batch in _guarded(read(paths, names), dataset, partition):
            rows = len(batch[names[0]])
            if at + rows > partition.rows:
                raise _wrong_rows(dataset, partition, f"more than {partition.rows}")
            for column in dataset.columns:
                try:
                    _fill_column(column, findings, at, batch, arrays[column.name][at : at + rows])
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
    findings.check()


def load_arrays(dataset: Dataset, partition: Partition, *, reader: ReaderName = "auto") -> dict[str, NDArray[Any]]:
    """The partition's arrays in ordinary memory, shared with nobody.

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
    """At most so many rows from the beginning of a partition, without reading all of it: enough to try a model on.

    >>> import tempfile
    >>> from cerebro_spark.data.prepare import prepare
    >>> data = {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["x"], label="y", partitions=1)
    >>> first_rows(dataset, dataset.train[0], 2)["label"].shape
    (2,)
    """
    names = list(dict.fromkeys(source for column in dataset.columns for source in column.sources))
    with ExitStack() as stack:
        path = _local(dataset.store, partition.files[0], None, stack)
        batches = _guarded(arrow.read_batches([path], names), dataset, partition)
        batch = {name: values[:rows] for name, values in next(batches).items()}
        count = len(batch[names[0]])
        arrays = {column.name: np.empty((count, *column.shape), np.dtype(column.dtype)) for column in dataset.columns}
        findings = Findings(dataset, partition)
        for column in dataset.columns:
            _fill_column(column, findings, 0, batch, arrays[column.name])
        batches.close()  # type: ignore[attr-defined]
    if findings:
        load_arrays(dataset, partition)  # says how many there are in all
    return arrays


def _guarded(batches: Iterator[dict[str, Any]], dataset: Dataset, partition: Partition) -> Iterator[dict[str, Any]]:
    try:
        yield from batches
    except (pa.ArrowException, OSError, RuntimeError) as error:
        if isinstance(error, CerebroError):
            raise
        raise DataError(f"{partition.id} of {dataset.url} cannot be read: {error}; prepare the data again") from error


def _choose(reader: ReaderName, path: Path, names: Sequence[str]) -> Reader:
    if reader == "arrow" or (reader == "auto" and not petastorm.installed()):
        return arrow.read_batches
    if reader == "auto" and not petastorm.can_read(pq.read_schema(path), names):
        return arrow.read_batches
    return petastorm.read_batches


def _local(store: Store, name: str, staging: Path | None, stack: ExitStack) -> Path:
    path = store.local_path(name)
    if path is not None:
        return path
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fetch-", dir=staging))
    return store.fetch(name, Path(folder) / "part.parquet")


def _fill_column(column: Column, findings: Findings, at: int, batch: Mapping[str, Any], target: NDArray[Any]) -> None:
    partition = findings.partition
    if column.codec is not None:
        for row, data in enumerate(batch[column.sources[0]]):
            try:
                decode(bytes(data), column.codec, target[row])
            except DataError as error:
                raise DataError(
                    f"column {column.sources[0]!r}, row {at + row} of {partition.id}: {error}; drop or mend that row"
                ) from error
        findings.note_finite(column.sources[0], column, target)
        return
    offset = 0
    for source in column.sources:
        values = np.asarray(batch[source])
        _check_nulls(source, column, partition, values)
        findings.note_finite(source, column, values)
        findings.note_rounded(source, values, target)
        if len(column.sources) == 1:
            _assign(source, partition, values, target)
            return
        width = values.shape[1] if values.ndim > 1 else 1
        _assign(source, partition, values, target[:, offset : offset + width])
        offset += width


def _assign(source: str, partition: Partition, values: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy the values, which may be of a wider type than their place but must fit it: nothing wraps or overflows."""
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
        raise DataError(f"{overflow_problem(source, overflowing(values))} ({partition.id})") from error


def _check_nulls(source: str, column: Column, partition: Partition, values: NDArray[Any]) -> None:
    """Nulls come as objects, or as NaN among integers; `prepare` lets none through, other writers may."""
    kept = np.dtype(column.dtype).kind
    if values.dtype.kind == "O" or (values.dtype.kind == "f" and kept != "f"):
        raise DataError(f"column {source!r} has null rows in {partition.id}: fill them (fillna) or drop them (dropna)")


def _wrong_rows(dataset: Dataset, partition: Partition, found: str) -> DataError:
    return DataError(
        f"{partition.id} of {dataset.url} should hold {partition.rows} rows but holds {found}:"
        " its files were changed after they were written; prepare the data again"
    )
