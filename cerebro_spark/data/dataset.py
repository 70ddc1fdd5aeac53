"""A prepared data set: a manifest and the partitions that it lists. This module never reads a row."""

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
        from cerebro_spark.data.manifest import read_manifest

        folder = dataset_folder(name) if name else _only_folder(store)
        return read_manifest(store, folder)


def make_dataset(
    store: Store,
    folder: str,
    id: str,
    columns: tuple[Column, ...],
    partitions: Sequence[Partition],
    seed: int,
    made: Mapping[str, Any],
) -> Dataset:
    """Return the Dataset of these partitions, each of which belongs to training or validation."""
    train = tuple(partition for partition in partitions if partition.split == "train")
    validation = tuple(partition for partition in partitions if partition.split == "validation")
    return Dataset(store, folder, id, columns, train, validation, seed, made)


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
