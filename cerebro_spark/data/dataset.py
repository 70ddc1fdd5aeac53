"""What `prepare` leaves behind and a search starts from: a manifest and its partitions. It never reads a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro_spark.data.input.columns import Column
from cerebro_spark.errors import ConfigurationError, NotFoundInStore
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import DATASETS, dataset_folder, dataset_ids
from cerebro_spark.types import Partition, PartitionId, Split


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training and validation partitions in a store, with the columns they hold.

    A Dataset is a value: cheap to pickle and to send to workers, which load the partitions themselves.

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
        """Those of training, then those of validation."""
        return self.train + self.validation

    @property
    def rows(self) -> int:
        """Rows of training and validation together."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def features(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == "feature")

    @property
    def labels(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == "label")

    @property
    def weight(self) -> Column | None:
        return next((column for column in self.columns if column.role == "weight"), None)

    @property
    def url(self) -> str:
        """The address that `open_dataset` takes."""
        return f"{self.store.url.rstrip('/')}/{self.folder}" if self.folder else self.store.url

    def partition(self, id: PartitionId) -> Partition:
        """The partition of this id."""
        for partition in self.partitions:
            if partition.id == id:
                return partition
        raise ConfigurationError(f"{id!r} is no partition of {self.url}: it has {[p.id for p in self.partitions]}")

    def version(self, file: str) -> str:
        """What tells this content of a file from any other that had, or will have, the same name in the store."""
        versions: Mapping[str, str] = self.made.get("versions", {})
        return versions.get(file) or str(self.made.get("token", ""))

    def with_hosts(self, hosts: Mapping[PartitionId, Sequence[str]]) -> Dataset:
        """The same Dataset with `Partition.hosts` filled in."""

        def placed(partitions: Sequence[Partition]) -> tuple[Partition, ...]:
            return tuple(replace(each, hosts=tuple(hosts.get(each.id, each.hosts))) for each in partitions)

        return replace(self, train=placed(self.train), validation=placed(self.validation))

    @staticmethod
    def open(store: Store, name: str = "") -> Dataset:
        """Open the data set `name` that `prepare` wrote into this store; without a name, the only one there is."""
        from cerebro_spark.data.manifest import read_manifest

        folder = dataset_folder(name) if name else _only_folder(store)
        return read_manifest(store, folder)


def partition_id(split: Split, number: int) -> PartitionId:
    """The id of a partition: its split and number.

    >>> partition_id("train", 3)
    'train-00003'
    """
    return f"{split}-{number:05d}"


def _only_folder(store: Store) -> str:
    ids = dataset_ids(store.list(DATASETS))
    if len(ids) == 1:
        return dataset_folder(ids[0])
    if not ids:
        raise NotFoundInStore(f"{store.url} holds no prepared data set: write one with cs.prepare(df, store=...)")
    raise ConfigurationError(f"{store.url} holds {len(ids)} data sets: name one of {ids}")
