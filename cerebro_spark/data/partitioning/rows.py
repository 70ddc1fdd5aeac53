"""Rows as fixed-size records, and a shuffle that depends on what they hold and a seed, never on how they came."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.cells import Cells, Tally, read_cells
from cerebro_spark.data.input.columns import Column, Input, resolve_columns, source_names
from cerebro_spark.data.partitioning.deal import generator

Rows = NDArray[Any]
_BLOCK_WORDS = 1 << 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Some rows: their records, the bytes of their encoded cells, and whether each is for validation."""

    records: Rows
    heaps: Mapping[str, list[bytes]]
    held_out: NDArray[np.bool_]

    @property
    def bytes(self) -> int:
        return self.records.nbytes + sum(len(cell) for heap in self.heaps.values() for cell in heap)


def record_type(columns: Sequence[Column]) -> np.dtype[Any]:
    """The record of one row, padded to whole 64-bit words; an encoded cell is its place in a heap (start, length)."""
    formats: list[Any] = [
        (column.dtype, column.shape) if column.codec is None else ("int64", (2,)) for column in columns
    ]
    plain = np.dtype({"names": [column.name for column in columns], "formats": formats})
    size = -(-plain.itemsize // 8) * 8
    return np.dtype({"names": [column.name for column in columns], "formats": formats, "itemsize": size})


class RowEncoder:
    """Turns batches of source columns into records, and counts what cannot be one.

    After the first bad row it only counts on, so that the error can say how many there are in all.
    """

    def __init__(self, inputs: Sequence[Input], flag: str | None = None, allow_nan: bool = False) -> None:
        self.inputs = tuple(inputs)
        self.flag = flag
        self.columns: tuple[Column, ...] = ()
        # Features come first and are asked least: of a column that is several things, the strictest counts.
        roles = {source: given.role for given in self.inputs for source in given.sources}
        matrices = {source for given in self.inputs if given.matrix for source in given.sources}
        self.tallies = {
            source: Tally(roles[source], source in matrices, allow_nan) for source in source_names(self.inputs)
        }
        self.flag_tally = Tally("feature")

    def encode(self, batch: Mapping[str, Cells]) -> Encoded | None:
        """The records of a batch, or None once anything bad was seen."""
        values = {name: read_cells(name, batch[name], tally) for name, tally in self.tallies.items()}
        rows = len(next(iter(batch.values())))
        held_out = self._held_out(batch, rows)
        if rows == 0 or not self.clean:
            return None
        if not self.columns:
            self.columns = resolve_columns(self.inputs, {name: next(iter(t.types)) for name, t in self.tallies.items()})
            self._record = record_type(self.columns)
        records = np.zeros(rows, self._record)
        heaps: dict[str, list[bytes]] = {}
        for column in self.columns:
            if column.codec is None:
                _fill(records[column.name], [values[source] for source in column.sources])
            else:
                cells = values[column.sources[0]]
                assert isinstance(cells, list)
                heaps[column.name] = cells
                records[column.name][:, 0] = [_cell_hash(cell) for cell in cells]
        return Encoded(records, heaps, held_out)

    @property
    def clean(self) -> bool:
        return all(tally.clean for tally in (*self.tallies.values(), self.flag_tally))

    def _held_out(self, batch: Mapping[str, Cells], rows: int) -> NDArray[np.bool_]:
        if self.flag is None:
            return np.zeros(rows, np.bool_)
        values = read_cells(self.flag, batch[self.flag], self.flag_tally)
        return np.zeros(rows, np.bool_) if values is None else np.asarray(values, np.bool_)


def shuffled_order(records: Rows, seed: int) -> NDArray[np.int64]:
    """A random order of the records that is the same in whatever order they came.

    >>> a = np.arange(5.0).view("V8")
    >>> sorted(shuffled_order(a, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = _record_hashes(records, seed)
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    repeats = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    if not len(repeats):
        return order
    # Equal rows would stay together: give the second, third, ... of them keys of their own.
    starts = np.ones(len(ranked), np.bool_)
    starts[repeats] = False
    positions = np.arange(len(ranked))
    occurrence = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    again = np.argsort(_mix(ranked + occurrence.astype(np.uint64) * _GOLDEN), kind="stable")
    return order[again]


def join_records(parts: Sequence[Rows]) -> Rows:
    """All records one after the other; NumPy's own concatenation would drop the padding of their type."""
    joined: Rows = np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)
    return joined


def take_records(records: Rows, order: NDArray[np.int64]) -> Rows:
    """The records in this order, as one contiguous copy."""
    raw = records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
    taken: Rows = np.take(raw, order, axis=0).reshape(-1).view(records.dtype)
    return taken


def _fill(target: NDArray[Any], blocks: Sequence[Any]) -> None:
    if len(blocks) == 1:
        target[...] = np.asarray(blocks[0]).reshape(target.shape)
        return
    at = 0
    for block in blocks:
        width = block.shape[1] if block.ndim > 1 else 1
        target[:, at : at + width] = block.reshape(len(block), width)
        at += width


def _record_hashes(records: Rows, seed: int) -> NDArray[np.uint64]:
    width = records.dtype.itemsize // 8
    words = records.view(np.uint64).reshape(len(records), width)
    factors = generator("record-hash", seed).integers(0, 2**63, size=width, dtype=np.uint64) * np.uint64(2) + np.uint64(
        1
    )
    hashes = np.empty(len(records), np.uint64)
    step = max(1, _BLOCK_WORDS // width)
    for start in range(0, len(records), step):
        block = words[start : start + step]
        # Bring the high bits down: a product modulo 2**64 would lose what only they tell apart (0.0 and 1.0, say).
        block = block ^ (block >> np.uint64(32))
        block ^= block >> np.uint64(16)
        block ^= block >> np.uint64(8)
        hashes[start : start + step] = block @ factors
    return _mix(hashes)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _cell_hash(cell: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(cell, digest_size=8).digest(), "little", signed=True)
