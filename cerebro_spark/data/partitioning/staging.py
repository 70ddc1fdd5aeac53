"""The first pass of `prepare`: check every input split and stage its rows in random order.

It runs where the rows are, and never decides where a row goes: planning.py does that from the counts that come back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from cerebro_spark.data.input.base import StagingFolder
from cerebro_spark.data.input.cells import Cells
from cerebro_spark.data.input.checks import ColumnCheck, list_problems, raise_problems
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.input.inputs import Input, stored_columns
from cerebro_spark.data.input.opening import InputFrames
from cerebro_spark.data.partitioning.records import EncodedRows, RowEncoder, join_records, take_records
from cerebro_spark.data.partitioning.spec import PrepareSpec
from cerebro_spark.data.shuffling import record_order
from cerebro_spark.errors import DataError
from cerebro_spark.store.base import Store

_WRITE_ROWS_BYTES = 4 << 20
_CHUNK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one staged blob in random order: `train` rows, then `held_out` rows, then the heaps of cells."""

    blob: str
    offset: int
    train: int
    held_out: int
    heaps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What came of one input split: its columns, its staged chunks, and the checks of its source columns."""

    split: int
    columns: tuple[Column, ...]
    chunks: tuple[Chunk, ...]
    checks: Mapping[str, ColumnCheck]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """All staged rows: the columns they have, and the chunks of `df` and of a validation frame, if there is one."""

    columns: tuple[Column, ...]
    data: tuple[Chunk, ...]
    validation: tuple[Chunk, ...] | None = None


def stage_rows(frames: InputFrames, spec: PrepareSpec, staging: StagingFolder) -> StagedRows:
    """Run the first pass.

    Raises:
        DataError: The rows cannot be trained on. It names every column with the number of its bad rows.
    """
    store, folder = staging
    task = StageSplit(spec.inputs, spec.validation_column, store, f"{folder}/train", spec.seed, spec.allow_nan)
    data = frames.data.map_splits(task)
    if frames.validation is None:
        return StagedRows(_common_columns(spec.inputs, data), _chunks(data))
    validation = frames.validation.map_splits(replace(task, validation_column=None, folder=f"{folder}/validation"))
    return StagedRows(_common_columns(spec.inputs, data, validation), _chunks(data), _chunks(validation))


@dataclass(frozen=True, slots=True)
class StageSplit:
    """The task of the first pass: read one input split, check it, and stage its rows in random order."""

    inputs: tuple[Input, ...]
    validation_column: str | None
    store: Store
    folder: str
    seed: int
    allow_nan: bool = False
    chunk_bytes: int = _CHUNK_BYTES

    def __call__(self, split: int, batches: Iterable[Mapping[str, Cells]]) -> SplitReport:
        encoder = RowEncoder(self.inputs, self.validation_column, self.allow_nan)
        # A task may run twice: each attempt has a blob of its own, and only that of the reported one is used.
        blob = f"{self.folder}/split-{split:05d}-{uuid.uuid4().hex[:8]}"
        chunks: list[Chunk] = []
        offset = 0
        with ExitStack() as stack:
            file: BinaryIO | None = None
            for parts in self._grouped(encoder, batches):
                # Opened late: a split without rows leaves no blob.
                file = file or stack.enter_context(self.store.writer(blob))
                chunks.append(_write_chunk(file, blob, offset, parts, self.seed))
                offset += sum(part.bytes for part in parts)
        for check in encoder.checks.values():
            check.drop_rare_types()
        return SplitReport(split, encoder.columns, tuple(chunks) if encoder.clean else (), encoder.checks)

    def _grouped(self, encoder: RowEncoder, batches: Iterable[Mapping[str, Cells]]) -> Iterator[list[EncodedRows]]:
        parts: list[EncodedRows] = []
        size = 0
        for batch in batches:
            encoded = encoder.encode(batch)
            if encoded is None:
                continue
            parts.append(encoded)
            size += encoded.bytes
            if size >= self.chunk_bytes:
                yield parts
                parts, size = [], 0
        if parts and encoder.clean:
            yield parts


def _write_chunk(file: BinaryIO, blob: str, offset: int, parts: Sequence[EncodedRows], seed: int) -> Chunk:
    records = join_records([part.records for part in parts])
    held_out = np.concatenate([part.held_out for part in parts])
    order = record_order(records, seed)
    order = np.concatenate([order[~held_out[order]], order[held_out[order]]])
    heaps: dict[str, list[bytes]] = {}
    for name in parts[0].heaps:
        cells = [cell for part in parts for cell in part.heaps[name]]
        heaps[name] = [cells[row] for row in order]
        lengths = np.fromiter(map(len, heaps[name]), np.int64, len(order))
        records[name][order, 0] = np.cumsum(lengths) - lengths
        records[name][order, 1] = lengths
    step = max(1, _WRITE_ROWS_BYTES // records.dtype.itemsize)
    for start in range(0, len(order), step):
        file.write(take_records(records, order[start : start + step]).view(np.uint8).data)
    places: dict[str, int] = {}
    at = offset + records.nbytes
    for name, heap in heaps.items():
        places[name] = at
        data = b"".join(heap)
        file.write(data)
        at += len(data)
    last = int(held_out.sum())
    return Chunk(blob, offset, len(order) - last, last, places)


def _chunks(reports: Sequence[SplitReport]) -> tuple[Chunk, ...]:
    return tuple(chunk for report in sorted(reports, key=lambda report: report.split) for chunk in report.chunks)


def _common_columns(
    inputs: Sequence[Input], data: Sequence[SplitReport], validation: Sequence[SplitReport] = ()
) -> tuple[Column, ...]:
    """Return the columns that all splits have; DataError with everything that is wrong in any of them."""
    checks, others = _merge_checks(data), _merge_checks(validation)
    raise_problems(list_problems(checks) + [f"validation frame: {problem}" for problem in list_problems(others)])
    columns = next((report.columns for report in data if report.columns), None)
    if columns is None:
        raise DataError("the data has 0 rows: there is nothing to train on")
    held_out = next((report.columns for report in validation if report.columns), None)
    if held_out is not None:
        _check_alike(columns, checks, held_out, others)
    return stored_columns(inputs, columns)


def _merge_checks(reports: Sequence[SplitReport]) -> dict[str, ColumnCheck]:
    merged: dict[str, ColumnCheck] = {}
    for report in reports:
        for name, check in report.checks.items():
            merged.setdefault(name, ColumnCheck(check.role)).add(check)
    return merged


def _check_alike(
    columns: Sequence[Column],
    checks: Mapping[str, ColumnCheck],
    held_out: Sequence[Column],
    others: Mapping[str, ColumnCheck],
) -> None:
    """Raise DataError if the validation frame would be stored in another form than the training data."""
    problems: dict[str, str] = {}
    for column, other in zip(columns, held_out, strict=True):
        for source in column.sources:
            kind, found = next(iter(checks[source].types)), next(iter(others[source].types))
            if (kind.shape, kind.codec) != (found.shape, found.codec):
                problems[source] = (
                    f"column {source!r} has rows of shape {kind.shape} in df, but {found.shape} in the validation"
                    " frame: pad or crop them to one shape, encoded in one way"
                )
            elif column.dtype != other.dtype:
                problems[source] = (
                    f"column {source!r} is {kind.dtype} in df, but {found.dtype} in the validation frame:"
                    " cast one of them to the type of the other"
                )
    raise_problems(problems.values())
