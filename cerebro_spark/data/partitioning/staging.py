"""The two halves of `prepare` that run on the executors: stage each input split once, then assemble each partition.

It never decides where a row goes (deal.py does), and what it stages is seen by nobody but the second half."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.formats.arrow import PartitionFile, write_partition
from cerebro_spark.data.input.cells import Cells, Tally
from cerebro_spark.data.input.columns import Column, Input
from cerebro_spark.data.partitioning.deal import generator
from cerebro_spark.data.partitioning.rows import (
    Encoded,
    RowEncoder,
    Rows,
    join_records,
    record_type,
    shuffled_order,
    take_records,
)
from cerebro_spark.errors import AlreadyInStore, StoreError
from cerebro_spark.store.base import Store

_WRITE_ROWS_BYTES = 4 << 20
CHUNK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one staged blob in random order: `train` rows first, then `held_out` ones; then the heaps."""

    blob: str
    offset: int
    train: int
    held_out: int
    heaps: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "blob": self.blob,
            "offset": self.offset,
            "train": self.train,
            "held_out": self.held_out,
            "heaps": dict(self.heaps),
        }


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What became of one input split: its chunks, what its columns hold, and what was wrong with them."""

    split: int
    columns: tuple[Column, ...]
    chunks: tuple[Chunk, ...]
    tallies: Mapping[str, Tally]

    def to_json(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "columns": [column.to_json() for column in self.columns],
            "chunks": [chunk.to_json() for chunk in self.chunks],
            "tallies": {name: tally.to_json() for name, tally in self.tallies.items()},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SplitReport:
        return SplitReport(
            split=value["split"],
            columns=tuple(Column.from_json(column) for column in value["columns"]),
            chunks=tuple(Chunk(**chunk) for chunk in value["chunks"]),
            tallies={name: Tally.from_json(tally) for name, tally in value["tallies"].items()},
        )


@dataclass(frozen=True, slots=True)
class StageSplit:
    """First half: read one input split, check it, and stage its rows in random order."""

    inputs: tuple[Input, ...]
    flag: str | None
    store: Store
    folder: str
    seed: int
    chunk_bytes: int = CHUNK_BYTES
    allow_nan: bool = False

    def __call__(self, split: int, batches: Iterable[Mapping[str, Cells]]) -> SplitReport:
        encoder = RowEncoder(self.inputs, self.flag, self.allow_nan)
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
        tallies = dict(encoder.tallies)
        if self.flag is not None:
            tallies.setdefault(self.flag, encoder.flag_tally)
        return SplitReport(split, encoder.columns, tuple(chunks) if encoder.clean else (), tallies)

    def _grouped(self, encoder: RowEncoder, batches: Iterable[Mapping[str, Cells]]) -> Iterator[list[Encoded]]:
        parts: list[Encoded] = []
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


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows of a staged chunk, `rows` of them from row `start` of that chunk."""

    chunk: Chunk
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class AssemblePartition:
    """Second half: gather the pieces of one partition, shuffle them, and write them as Parquet."""

    staging: Store
    store: Store
    columns: tuple[Column, ...]
    seed: int

    def __call__(self, name: str, pieces: Sequence[Piece]) -> PartitionFile:
        records, heaps = self._gather(pieces)
        # By the file's own name: the folder has the data set's id in it, which is another one each time.
        order = generator("assemble", self.seed, name.rpartition("/")[2]).permutation(len(records))
        columns = self.columns

        def tables(rows_each: int) -> Iterator[dict[str, NDArray[Any] | list[bytes]]]:
            for start in range(0, len(order), rows_each):
                chosen = order[start : start + rows_each]
                block = take_records(records, chosen)
                yield {
                    column.name: block[column.name]
                    if column.codec is None
                    else [heaps[column.name][row] for row in chosen]
                    for column in columns
                }

        heap_bytes = sum(len(cell) for heap in heaps.values() for cell in heap)
        try:
            return write_partition(self.store, name, columns, len(records), records.nbytes + heap_bytes, tables)
        except AlreadyInStore:
            # An earlier attempt of this very task wrote it, with the same bytes, and was lost before it could say so.
            return PartitionFile.describe(self.store, name, columns)

    def _gather(self, pieces: Sequence[Piece]) -> tuple[Rows, dict[str, list[bytes]]]:
        records = np.empty(sum(piece.rows for piece in pieces), record_type(self.columns))
        heaps: dict[str, list[bytes]] = {column.name: [] for column in self.columns if column.codec is not None}
        at = 0
        for blob, group in groupby(pieces, key=lambda piece: piece.chunk.blob):
            with self.staging.reader(blob) as file:
                for piece in group:
                    _read_piece(file, piece, records[at : at + piece.rows], heaps)
                    at += piece.rows
        return records, heaps


def _write_chunk(file: BinaryIO, blob: str, offset: int, parts: Sequence[Encoded], seed: int) -> Chunk:
    records = join_records([part.records for part in parts])
    held_out = np.concatenate([part.held_out for part in parts])
    order = shuffled_order(records, seed)
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


def _read_piece(file: BinaryIO, piece: Piece, part: Rows, heaps: dict[str, list[bytes]]) -> None:
    blob = piece.chunk.blob
    file.seek(piece.chunk.offset + piece.start * part.dtype.itemsize)
    _read_into(file, blob, part.view(np.uint8).data)
    for name, cells in heaps.items():
        starts, lengths = part[name][:, 0], part[name][:, 1]
        first = int(starts[0])
        file.seek(piece.chunk.heaps[name] + first)
        data = bytearray(int(starts[-1] + lengths[-1]) - first)
        _read_into(file, blob, memoryview(data))
        cells.extend(
            bytes(data[start : start + length])
            for start, length in zip((starts - first).tolist(), lengths.tolist(), strict=True)
        )


def _read_into(file: BinaryIO, blob: str, view: memoryview) -> None:
    readinto = getattr(file, "readinto", None)
    at = 0
    while at < len(view):
        if readinto is not None:
            count = readinto(view[at:]) or 0
        else:
            data = file.read(min(len(view) - at, _WRITE_ROWS_BYTES))
            count = len(data)
            view[at : at + count] = data
        if not count:
            raise StoreError(
                f"the staged blob {blob!r} ended {len(view) - at} bytes early: somebody changed it, or the store lost"
                " a part of it; prepare the data again"
            )
        at += count
