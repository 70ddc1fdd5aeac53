"""Partitions as Parquet files, written and read with Arrow alone. It never needs Petastorm, which reads them too."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cerebro_spark.data.formats.unischema import (
    ROW_GROUPS_KEY,
    UNISCHEMA_KEY,
    Unischema,
    dump_unischema,
    make_field,
)
from cerebro_spark.data.input.cells import read_cells
from cerebro_spark.data.input.checks import ColumnCheck, list_problems, raise_problems
from cerebro_spark.data.input.columns import Column
from cerebro_spark.store.base import Store

Block = Mapping[str, NDArray[Any] | list[bytes]]

# A reader holds one row group beside the arrays it fills: a partition has about this many, of bytes within this range.
_ROW_GROUPS = 72
_ROW_GROUP_BYTES = (1 << 19, 16 << 20)


@dataclass(frozen=True, slots=True)
class PartitionFile:
    """What the manifest says of a written file. `bytes` is the size of its arrays once loaded."""

    name: str
    rows: int
    bytes: int
    file_bytes: int
    row_groups: int

    @staticmethod
    def describe(store: Store, name: str, columns: Sequence[Column]) -> PartitionFile:
        """Return the same facts of a file that is in the store already."""
        with store.reader(name) as file:
            footer = pq.read_metadata(file)
        return _partition_file(store, name, columns, footer.num_rows, footer.num_row_groups)


def parquet_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the schema of the files of these columns: scalars, flat lists, and bytes for encoded cells."""
    return pa.schema([pa.field(column.stored_name, _arrow_type(column), nullable=False) for column in columns])


def write_partition(
    store: Store,
    name: str,
    columns: Sequence[Column],
    rows: int,
    nbytes: int,
    blocks: Callable[[int], Iterator[Block]],
) -> PartitionFile:
    """Write one partition, a row group a block; `blocks(n)` yields the rows in blocks of n."""
    low, high = _ROW_GROUP_BYTES
    wanted = min(high, max(low, nbytes // _ROW_GROUPS))
    rows_each = max(1, wanted * rows // max(1, nbytes))
    groups = 0
    schema = parquet_schema(columns)
    with store.writer(name) as file:
        with pq.ParquetWriter(
            file, schema, compression="snappy", use_dictionary=False, write_statistics=False
        ) as writer:
            for block in blocks(rows_each):
                writer.write_table(_table(columns, schema, block), row_group_size=rows_each)
                groups += 1
    return _partition_file(store, name, columns, rows, groups)


def common_metadata(columns: Sequence[Column], row_groups: Mapping[str, int]) -> bytes:
    """Return the `_common_metadata` file that makes a folder of such files a Petastorm data set."""
    keys = {
        UNISCHEMA_KEY: dump_unischema(Unischema("cerebro_spark", [make_field(column) for column in columns])),
        ROW_GROUPS_KEY: json.dumps(dict(row_groups)).encode(),
    }
    sink = io.BytesIO()
    pq.write_metadata(parquet_schema(columns).with_metadata(keys), sink)
    return sink.getvalue()


def read_batches(paths: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the columns `names` of these files in order, a row group at a time, as arrays (encoded cells as bytes)."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(names))
                checks = {name: ColumnCheck("feature") for name in names}
                values = {name: read_cells(name, table.column(name), check) for name, check in checks.items()}
                raise_problems(list_problems(checks))
                yield values


def _partition_file(store: Store, name: str, columns: Sequence[Column], rows: int, groups: int) -> PartitionFile:
    loaded = rows * sum(column.row_bytes for column in columns)
    return PartitionFile(name, rows, loaded, store.size(name), groups)


def _arrow_type(column: Column) -> pa.DataType:
    if column.codec is not None:
        return pa.binary()
    element = pa.from_numpy_dtype(np.dtype(column.dtype))
    return pa.list_(pa.field("element", element, nullable=False)) if column.shape else element


def _table(columns: Sequence[Column], schema: pa.Schema, block: Block) -> pa.Table:
    arrays = [_array(column, block[column.name], field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(column: Column, cells: NDArray[Any] | list[bytes], kind: pa.DataType) -> pa.Array:
    if column.codec is not None:
        return pa.array(cells, kind)
    values = np.ascontiguousarray(cells)
    if not column.shape:
        return pa.array(values)
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32) * int(np.prod(column.shape)))
    return pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)), type=kind)
