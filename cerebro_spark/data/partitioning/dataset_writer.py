"""Writers of data sets: each call of `prepare` is one, with a folder of its own, so that several may try one name.

A writer's folder is named by its start and a random token. It becomes a data set when a manifest names the token, and
the first manifest wins. A folder without a manifest may still be in use, so it is kept for a week: prepare data that
takes longer in a store of its own. A folder that a manifest names is never deleted.
"""

from __future__ import annotations

import calendar
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from cerebro_spark.data.dataset import Dataset, make_dataset
from cerebro_spark.data.formats.arrow import PartitionFile, common_metadata
from cerebro_spark.data.formats.unischema import COMMON_METADATA
from cerebro_spark.data.manifest import write_manifest
from cerebro_spark.data.partitioning.planning import PartitionPlan, PlannedPartition
from cerebro_spark.errors import AlreadyInStore, CerebroError, NotFoundInStore
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import DATASETS, dataset_folder, manifest, partition_file, split_folder, writer_folder
from cerebro_spark.types import Partition

WEEK = 7 * 86_400.0
_FORM = "%Y%m%d-%H%M%S"
_TOKEN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class DatasetWriter:
    """Writes the data set `id`; as a context manager it deletes what it wrote if the block raises.

    Entering raises AlreadyInStore if the store has a data set of that id.
    """

    store: Store
    id: str
    token: str = field(default_factory=lambda: new_token(time.time()))

    @property
    def folder(self) -> str:
        """The folder of this writer alone."""
        return writer_folder(self.id, self.token)

    def file_name(self, planned: PlannedPartition) -> str:
        """Return the name of a partition's file in the store."""
        return partition_file(self.id, self.token, planned.split, planned.id)

    def __enter__(self) -> DatasetWriter:
        if self.store.exists(manifest(self.id)):
            raise self._taken()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            # The error of the block matters more than one of the deletion.
            with suppress(Exception):
                # A store may fail after it has written the manifest.
                if not _is_dataset(self.store, self.id, self.token):
                    self.store.delete(self.folder)

    def commit(
        self, plan: PartitionPlan, files: Sequence[PartitionFile], seed: int, made: Mapping[str, Any]
    ) -> Dataset:
        """Make the files a data set: write what Petastorm needs beside them, then the manifest.

        Raises:
            AlreadyInStore: Another writer committed this id first.
        """
        partitions = [
            Partition(id=planned.id, split=planned.split, rows=file.rows, bytes=file.bytes, files=(file.name,))
            for planned, file in zip(plan.partitions, files, strict=True)
        ]
        made = {**made, "token": self.token}
        dataset = make_dataset(self.store, dataset_folder(self.id), self.id, plan.columns, partitions, seed, made)
        by_id = {planned.id: file for planned, file in zip(plan.partitions, files, strict=True)}
        for part in (dataset.train, dataset.validation):
            if part:
                groups = {each.files[0].rpartition("/")[2]: by_id[each.id].row_groups for each in part}
                folder = split_folder(self.id, self.token, part[0].split)
                self.store.write(f"{folder}/{COMMON_METADATA}", common_metadata(plan.columns, groups))
        try:
            write_manifest(dataset, by_id)
        except AlreadyInStore as error:
            raise self._taken() from error
        return dataset

    def _taken(self) -> AlreadyInStore:
        return AlreadyInStore(
            f"{self.store.url} has a data set {self.id!r} already: open it with open_dataset or choose another name"
        )


def new_id() -> str:
    """Return an id for a data set without a name: the time, and a random part."""
    return f"{time.strftime(_FORM, time.gmtime())}-{uuid.uuid4().hex[:6]}"


def new_token(at: float) -> str:
    """Return a name for a writer that starts at this time, in seconds since 1970; no other writer has it.

    >>> new_token(1_800_000_000.0)[:-32]
    '20270115-080000-'
    """
    return f"{time.strftime(_FORM, time.gmtime(at))}-{uuid.uuid4().hex}"


def started_at(token: str) -> float | None:
    """Return when the writer of a token started; None if `new_token` did not make the token.

    >>> started_at(new_token(1_800_000_000.0)), started_at("mine")
    (1800000000.0, None)
    """
    try:
        return float(calendar.timegm(time.strptime(token[:15], _FORM))) if _TOKEN.fullmatch(token) else None
    except ValueError:
        return None


def delete_abandoned(store: Store, older_than: float = WEEK) -> int:
    """Delete the folders that `find_abandoned` finds, and return their number."""
    found = find_abandoned(store, older_than)
    for folder in found:
        store.delete(folder)
    return len(found)


def find_abandoned(store: Store, older_than: float = WEEK) -> dict[str, list[str]]:
    """Find the folders of writers that started more than `older_than` seconds ago and never became a data set.

    Returns:
        The names of the files in each folder.
    """
    limit = time.time() - older_than
    folders: dict[tuple[str, str], list[str]] = {}
    for name in store.list(DATASETS):
        part = name.split("/")
        if len(part) > 3:
            folders.setdefault((part[1], part[2]), []).append(name)
    return {
        f"{DATASETS}/{id}/{token}": names
        for (id, token), names in sorted(folders.items())
        if (started_at(token) or limit + 1) <= limit and not _is_dataset(store, id, token)
    }


def _is_dataset(store: Store, id: str, token: str) -> bool:
    try:
        return bool(Dataset.open(store, id).made.get("token") == token)
    except NotFoundInStore:
        return False
    except CerebroError:
        return True  # a manifest that this version cannot read may name any folder beside it
