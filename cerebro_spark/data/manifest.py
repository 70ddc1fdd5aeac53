"""A data set's manifest: the file whose existence is that of the data set. It never opens a file that a manifest names.

A manifest may come from anywhere. What it says is checked as it is read: no name in it leads out of its folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from cerebro_spark.data.dataset import Dataset, make_dataset
from cerebro_spark.data.formats.arrow import PartitionFile
from cerebro_spark.data.input.columns import Codec, Column, Role, is_array_name
from cerebro_spark.data.input.inputs import find_repeated
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.store.base import Store, check_name
from cerebro_spark.store.paths import check_id
from cerebro_spark.types import Partition, PartitionId, Split

MANIFEST = "manifest.json"
_FORMAT = "cerebro-spark dataset"
_VERSION = 1
_NUMBER_TYPES = [np.dtype(code).name for code in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]]


def manifest_name(folder: str) -> str:
    """Return the name of the manifest of the data set in this folder."""
    return f"{folder}/{MANIFEST}" if folder else MANIFEST


def write_manifest(dataset: Dataset, files: Mapping[PartitionId, PartitionFile]) -> None:
    """Write the manifest, which makes the data set visible; AlreadyInStore if there is one."""
    cut = len(dataset.folder) + 1
    entries = [
        {
            "id": partition.id,
            "split": partition.split,
            "rows": partition.rows,
            "bytes": partition.bytes,
            "file_bytes": files[partition.id].file_bytes,
            "row_groups": files[partition.id].row_groups,
            "files": [name[cut:] for name in partition.files],
        }
        for partition in dataset.partitions
    ]
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "id": dataset.id,
        "seed": dataset.seed,
        "rows": {"train": _count_rows(dataset.train), "validation": _count_rows(dataset.validation)},
        "columns": [column.to_json() for column in dataset.columns],
        "partitions": entries,
        "made": dict(dataset.made),
    }
    dataset.store.write(manifest_name(dataset.folder), json.dumps(manifest, indent=1).encode())


def read_manifest(store: Store, folder: str) -> Dataset:
    """Read the data set in this folder.

    Raises:
        NotFoundInStore: The folder has no manifest.
        DataError: The file is no manifest, of another version, or says what cannot be true.
    """
    name = manifest_name(folder)
    where = f"{store.url.rstrip('/')}/{name}"
    try:
        manifest = json.loads(store.read(name))
        if manifest["format"] != _FORMAT:
            raise KeyError("format")
        if manifest["version"] != _VERSION:
            raise DataError(
                f"{where} is of format version {manifest['version']}, this release reads {_VERSION}:"
                " prepare the data again"
            )
        columns = tuple(Column.from_json(column) for column in manifest["columns"])
        partitions = [_partition(folder, entry) for entry in manifest["partitions"]]
        _check_manifest(where, manifest["id"], columns, partitions)
        made = dict(manifest["made"])
        return make_dataset(store, folder, manifest["id"], columns, partitions, manifest["seed"], made)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where} is no manifest of a data set ({error!r}): prepare the data again") from error


def _partition(folder: str, entry: Mapping[str, Any]) -> Partition:
    prefix = f"{folder}/" if folder else ""
    return Partition(
        id=entry["id"],
        split=entry["split"],
        rows=entry["rows"],
        bytes=entry["bytes"],
        files=tuple(prefix + name for name in entry["files"]),
    )


def _check_manifest(where: str, id: Any, columns: Sequence[Column], partitions: Sequence[Partition]) -> None:
    """Raise DataError, with the value and the rule, if no data set can be like this. `where` is the manifest."""
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
            f"{where} is refused: {error}; prepare the data again, or get it from a source you trust"
        ) from error


def _check_column(column: Column) -> None:
    if not is_array_name(column.name):
        raise ConfigurationError(f"{column.name!r} cannot name an array of a batch, which needs a plain identifier")
    _check(column.role in get_args(Role), column.name, "role", column.role)
    _check(column.dtype in _NUMBER_TYPES, column.name, "type", column.dtype)
    _check(all(_is_count(size) and size > 0 for size in column.shape), column.name, "shape", column.shape)
    named = bool(column.sources) and all(isinstance(source, str) for source in column.sources)
    _check(named, column.name, "sources", column.sources)
    _check(column.codec in (None, *get_args(Codec)), column.name, "codec", column.codec)


def _check_partition(partition: Partition) -> None:
    check_id(partition.id, "partition id")
    _check(partition.split in get_args(Split), partition.id, "split", partition.split)
    _check(_is_count(partition.rows), partition.id, "number of rows", partition.rows)
    _check(_is_count(partition.bytes), partition.id, "number of bytes", partition.bytes)
    _check(bool(partition.files), partition.id, "list of files", partition.files)
    for name in partition.files:
        check_name(name)


def _check(good: bool, name: str, what: str, value: Any) -> None:
    if not good:
        raise ConfigurationError(f"the {what} of {name!r} is {value!r}, which is not valid")


def _check_once(what: str, names: Sequence[str]) -> None:
    twice = find_repeated(names)
    if twice is not None:
        raise ConfigurationError(f"the {what} {twice!r} is there twice")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count_rows(partitions: Sequence[Partition]) -> int:
    return sum(partition.rows for partition in partitions)
