"""A prepared data set: a manifest and the partitions that it lists. This module never reads a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro_spark.data.formats.arrow import PartitionFile
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.validity import check_manifest
from cerebro_spark.errors import ConfigurationError, DataError, NotFoundInStore
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import DATASETS, dataset_folder, dataset_ids
from cerebro_spark.types import Partition, PartitionId, Split

MANIFEST = "manifest.json"
COMMON_METADATA = "_common_metadata"
_FORMAT = "cerebro-spark dataset"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and validation partitions in a store, with their columns.

    A Dataset is a value: cheap to pickle and to send to workers, which load the partitions themselves. `cs.prepare` and
    `cs.open_dataset` make one.

    Args:
        store: The store that holds the partitions.
        folder: The folder of the data set in the store; "" if it is the store's root.
        id: The name of the data set.
        columns: The arrays of a batch, in their order: features, labels, then the weight.
        train: The partitions to train on.
        validation: The partitions to evaluate on. Defaults to `()`: no validation.
        seed: The seed of the shuffle that made the partitions. Defaults to 0.
        made: How the data set was made: the columns, the version and similar facts of its manifest. Empty by default.

    Examples:
        >>> import tempfile
        >>> from cerebro_spark.data.prepare import prepare
        >>> data = {"x": [[0.0, 1.0]] * 10, "y": [0, 1] * 5}
        >>> dataset = prepare(data, store=tempfile.mkdtemp(), features="x", label="y", validation=0.2, partitions=2)
        >>> [partition.rows for partition in dataset.train], [column.name for column in dataset.columns]
        ([4, 4], ['features', 'label'])
    """

    store: Store
    folder: str
    id: str
    columns: tuple[Column, ...]
    train: tuple[Partition, ...]
    validation: tuple[Partition, ...] = ()
    seed: int = 0
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions of training, then those of validation."""
        return self.train + self.validation

    @property
    def rows(self) -> int:
        """The number of rows of training and validation together."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns that are inputs of the model."""
        return tuple(column for column in self.columns if column.role == "feature")

    @property
    def labels(self) -> tuple[Column, ...]:
        """The columns that are labels."""
        return tuple(column for column in self.columns if column.role == "label")

    @property
    def weight(self) -> Column | None:
        """The column of sample weights, or None."""
        return next((column for column in self.columns if column.role == "weight"), None)

    @property
    def url(self) -> str:
        """The address that `open_dataset` takes."""
        return f"{self.store.url.rstrip('/')}/{self.folder}" if self.folder else self.store.url

    def partition(self, id: PartitionId) -> Partition:
        """Return one partition.

        Args:
            id: The id of the partition, such as "train-00000".

        Returns:
            The partition.

        Raises:
            ConfigurationError: If the data set has no such partition.
        """
        for partition in self.partitions:
            if partition.id == id:
                return partition
        raise ConfigurationError(f"{id!r} is no partition of {self.url}: it has {[p.id for p in self.partitions]}")

    def version(self, file: str) -> str:
        """Return a token that changes when the content of a file changes.

        Args:
            file: The name of a file of a partition, as in `Partition.files`.

        Returns:
            The token; caches keep it beside their copy, to notice that the file was written anew.
        """
        versions: Mapping[str, str] = self.made.get("versions", {})
        return versions.get(file) or str(self.made.get("token", ""))

    def with_hosts(self, hosts: Mapping[PartitionId, Sequence[str]]) -> Dataset:
        """Return the same Dataset with `Partition.hosts` set.

        Args:
            hosts: By partition id, the hosts that read the partition from their own disk, nearest first. Partitions
                that are not in it keep their hosts.

        Returns:
            A new Dataset.
        """

        def placed(partitions: Sequence[Partition]) -> tuple[Partition, ...]:
            return tuple(replace(each, hosts=tuple(hosts.get(each.id, each.hosts))) for each in partitions)

        return replace(self, train=placed(self.train), validation=placed(self.validation))

    @staticmethod
    def open(store: Store, name: str = "") -> Dataset:
        """Open a data set that `prepare` wrote into a store.

        Args:
            store: The store.
            name: The name of the data set. Defaults to "": the only one in the store.

        Returns:
            The data set.

        Raises:
            NotFoundInStore: If there is none of that name, or none at all.
            ConfigurationError: If no name is given and the store holds several.
            DataError: If its manifest cannot be read.
        """
        folder = dataset_folder(name) if name else _only_folder(store)
        return read_manifest(store, folder)


def partition_id(split: Split, number: int) -> PartitionId:
    """The id of a partition: its split and number.

    >>> partition_id("train", 3)
    'train-00003'
    """
    return f"{split}-{number:05d}"


def manifest_name(folder: str) -> str:
    """The name of the manifest, whose existence is the existence of the data set."""
    return f"{folder}/{MANIFEST}" if folder else MANIFEST


def write_manifest(dataset: Dataset, files: Mapping[PartitionId, PartitionFile]) -> None:
    """Make the data set visible."""
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
        "rows": {
            "train": sum(partition.rows for partition in dataset.train),
            "validation": sum(partition.rows for partition in dataset.validation),
        },
        "columns": [column.to_json() for column in dataset.columns],
        "partitions": entries,
        "made": dict(dataset.made),
    }
    dataset.store.write(manifest_name(dataset.folder), json.dumps(manifest, indent=1).encode())


def read_manifest(store: Store, folder: str) -> Dataset:
    """The data set in this folder; NotFoundInStore if it has no manifest, DataError if that is foreign."""
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
        check_manifest(where, manifest["id"], columns, partitions)
        return Dataset(
            store=store,
            folder=folder,
            id=manifest["id"],
            columns=columns,
            train=tuple(partition for partition in partitions if partition.split == "train"),
            validation=tuple(partition for partition in partitions if partition.split == "validation"),
            seed=manifest["seed"],
            made=dict(manifest["made"]),
        )
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


def _only_folder(store: Store) -> str:
    ids = dataset_ids(store.list(DATASETS))
    if len(ids) == 1:
        return dataset_folder(ids[0])
    if not ids:
        raise NotFoundInStore(f"{store.url} holds no prepared data set: write one with cs.prepare(df, store=...)")
    raise ConfigurationError(f"{store.url} holds {len(ids)} data sets: name one of {ids}")
