"""Rows as fixed-size records, which can be hashed, shuffled and read back one by one. It never writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.cells import Cells, read_cells
from cerebro_spark.data.input.checks import ColumnCheck
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.input.inputs import Input, resolve_columns
from cerebro_spark.data.shuffling import hash_cell

Records = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Some rows: their records, the bytes of their encoded cells, and whether each is for validation."""

    records: Records
    heaps: Mapping[str, list[bytes]]
    held_out: NDArray[np.bool_]

    @property
    def bytes(self) -> int:
        return self.records.nbytes + sum(len(cell) for heap in self.heaps.values() for cell in heap)


def record_type(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return the type of a row's record, padded to whole 64-bit words.

    An encoded cell is two numbers there: where it starts in its column's heap of bytes, and its length.
    """
    names = [column.name for column in columns]
    formats: list[Any] = [
        (column.dtype, column.shape) if column.codec is None else ("int64", (2,)) for column in columns
    ]
    size = np.dtype({"names": names, "formats": formats}).itemsize
    return np.dtype({"names": names, "formats": formats, "itemsize": -(-size // 8) * 8})


class RowEncoder:
    """Turns batches of source columns into records, and counts rows that break a rule.

    After the first bad row it makes no more records but goes on counting, so that the error gives the total.
    """

    def __init__(self, inputs: Sequence[Input], validation_column: str | None = None, allow_nan: bool = False) -> None:
        self.inputs = tuple(inputs)
        self.validation_column = validation_column
        self.columns: tuple[Column, ...] = ()
        # Features come first and have the fewest rules: a column in several roles is held to those of the strictest.
        roles = {source: given.role for given in self.inputs for source in given.sources}
        if validation_column is not None:
            roles.setdefault(validation_column, "feature")
        matrices = {source for given in self.inputs if given.matrix for source in given.sources}
        self.checks = {source: ColumnCheck(role, source in matrices, allow_nan) for source, role in roles.items()}

    def encode(self, batch: Mapping[str, Cells]) -> EncodedRows | None:
        """Return the records of a batch; None after any bad row."""
        values = {name: read_cells(name, batch[name], check) for name, check in self.checks.items()}
        rows = len(next(iter(batch.values())))
        if rows == 0 or not self.clean:
            return None
        if not self.columns:
            types = {name: next(iter(check.types)) for name, check in self.checks.items()}
            self.columns = resolve_columns(self.inputs, types)
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
                records[column.name][:, 0] = [hash_cell(cell) for cell in cells]
        marks = np.zeros(rows) if self.validation_column is None else values[self.validation_column]
        return EncodedRows(records, heaps, np.asarray(marks, np.bool_))

    @property
    def clean(self) -> bool:
        """Whether no row broke a rule so far."""
        return all(check.clean for check in self.checks.values())


def join_records(parts: Sequence[Records]) -> Records:
    """Concatenate records; NumPy's own concatenation would drop the padding of their type."""
    joined: Records = np.concatenate([part.view(np.uint8) for part in parts]).view(parts[0].dtype)
    return joined


def take_records(records: Records, order: NDArray[np.int64]) -> Records:
    """Return the records in this order, as one contiguous copy."""
    raw = records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
    taken: Records = np.take(raw, order, axis=0).reshape(-1).view(records.dtype)
    return taken


def _fill(target: NDArray[Any], blocks: Sequence[Any]) -> None:
    if len(blocks) == 1:
        target[...] = np.asarray(blocks[0]).reshape(target.shape)
    else:
        np.concatenate([block.reshape(len(block), -1) for block in blocks], axis=1, out=target)
