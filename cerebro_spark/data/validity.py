"""Whether what a manifest says can be true: whoever wrote it, no name in it leads elsewhere. It opens nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from cerebro_spark.data.input.columns import Codec, Column, Role, is_array_name
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.store.base import check_name
from cerebro_spark.store.paths import check_id
from cerebro_spark.types import Partition, Split


def check_manifest(where: str, id: Any, columns: Sequence[Column], partitions: Sequence[Partition]) -> None:
    """Raise DataError, with the value and the rule, if a data set cannot be as this says. `where` is its manifest."""
    try:
        check_id(id, "data set id")
        for column in columns:
            _check_column(column)
        for partition in partitions:
            _check_partition(partition)
        _check_once("array", [column.name for column in columns])
        _check_once("partition", [partition.id for partition in partitions])
    except (ConfigurationError, TypeError) as error:
        raise DataError(
            f"{where} is refused: {error}; prepare the data again, or get it from somebody you trust"
        ) from (error)


def _check_column(column: Column) -> None:
    if not is_array_name(column.name):
        raise ConfigurationError(f"{column.name!r} cannot name an array of a batch, which needs a plain identifier")
    _check(column.role in get_args(Role), column, "role", column.role)
    _check(_is_number_type(column.dtype), column, "type", column.dtype)
    _check(all(_is_count(size) and size > 0 for size in column.shape), column, "shape", column.shape)
    _check(bool(column.sources) and all(isinstance(s, str) for s in column.sources), column, "sources", column.sources)
    _check(column.codec in (None, *get_args(Codec)), column, "codec", column.codec)


def _check_partition(partition: Partition) -> None:
    check_id(partition.id, "partition id")
    _check(partition.split in get_args(Split), partition, "split", partition.split)
    _check(_is_count(partition.rows), partition, "number of rows", partition.rows)
    _check(_is_count(partition.bytes), partition, "number of bytes", partition.bytes)
    _check(bool(partition.files), partition, "list of files", partition.files)
    for name in partition.files:
        check_name(name)


def _check(good: bool, thing: Column | Partition, what: str, value: Any) -> None:
    if not good:
        name = thing.name if isinstance(thing, Column) else thing.id
        raise ConfigurationError(f"the {what} of {name!r} is {value!r}, which is none")


def _check_once(what: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"the {what} {twice[0]!r} is there twice")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number_type(name: Any) -> bool:
    try:
        return isinstance(name, str) and np.dtype(name).kind in "fiub" and np.dtype(name).name == name
    except TypeError:
        return False
