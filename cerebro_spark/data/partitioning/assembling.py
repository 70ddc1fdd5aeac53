"""The second pass of `prepare`: gather the staged pieces of every partition and write them as Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.formats.arrow import PartitionFile, write_partition
from cerebro_spark.data.input.base import InputFrame, StagingFolder
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.partitioning.dataset_writer import DatasetWriter
from cerebro_spark.data.partitioning.planning import PartitionPlan, Piece
from cerebro_spark.data.partitioning.records import Records, record_type, take_records
from cerebro_spark.data.shuffling import seeded_generator
from cerebro_spark.errors import AlreadyInStore, StoreError
from cerebro_spark.store.base import Store

_READ_BYTES = 4 << 20


def assemble_partitions(
    frame: InputFrame, plan: PartitionPlan, staging: StagingFolder, writer: DatasetWriter, seed: int
) -> list[PartitionFile]:
    """Run the second pass where the tasks of `frame` run, and return the files in the order of the plan."""
    task = AssemblePartition(staging.store, writer.store, plan.columns, seed)
    return frame.starmap(task, [(writer.file_name(planned), planned.pieces) for planned in plan.partitions])


@dataclass(frozen=True, slots=True)
class AssemblePartition:
    """The task of the second pass: gather the pieces of one partition, shuffle them, and write them as Parquet."""

    staging: Store
    store: Store
    columns: tuple[Column, ...]
    seed: int

    def __call__(self, name: str, pieces: Sequence[Piece]) -> PartitionFile:
        records, heaps = self._gather(pieces)
        # Seeded by the file's own name: its folder has the data set's id in it, which is another one each time.
        order = seeded_generator("assemble", self.seed, name.rpartition("/")[2]).permutation(len(records))

        def tables(rows_each: int) -> Iterator[dict[str, NDArray[Any] | list[bytes]]]:
            for start in range(0, len(order), rows_each):
                chosen = order[start : start + rows_each]
                block = take_records(records, chosen)
                cells = {name: [heap[row] for row in chosen] for name, heap in heaps.items()}
                yield {column.name: cells.get(column.name, block[column.name]) for column in self.columns}

        heap_bytes = sum(len(cell) for heap in heaps.values() for cell in heap)
        try:
            return write_partition(self.store, name, self.columns, len(records), records.nbytes + heap_bytes, tables)
        except AlreadyInStore:
            # An earlier attempt of this very task wrote it, with the same bytes, and was lost before it could say so.
            return PartitionFile.describe(self.store, name, self.columns)

    def _gather(self, pieces: Sequence[Piece]) -> tuple[Records, dict[str, list[bytes]]]:
        records = np.empty(sum(piece.rows for piece in pieces), record_type(self.columns))
        heaps: dict[str, list[bytes]] = {column.name: [] for column in self.columns if column.codec is not None}
        at = 0
        for blob, group in groupby(pieces, key=lambda piece: piece.chunk.blob):
            with self.staging.reader(blob) as file:
                for piece in group:
                    _read_piece(file, piece, records[at : at + piece.rows], heaps)
                    at += piece.rows
        return records, heaps


def _read_piece(file: BinaryIO, piece: Piece, part: Records, heaps: dict[str, list[bytes]]) -> None:
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
            data = file.read(min(len(view) - at, _READ_BYTES))
            count = len(data)
            view[at : at + count] = data
        if not count:
            raise StoreError(
                f"the staged blob {blob!r} ended {len(view) - at} bytes early: it was changed, or the store lost a"
                " part of it; prepare the data again"
            )
        at += count
