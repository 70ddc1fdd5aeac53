"""A partition's arrays, loaded once on a host and mapped by all its workers. It never returns an array that may change.

Each partition is a folder with a `.npy` file for each column, in shared memory up to a budget and on local disk beyond
it. With one lock for each partition the first worker loads and the others wait; one lock for each root guards the
budget. Both locks are in each root in use, because a root may be shared with processes that do not share the other.
Roots are folders of this user alone (private_folder.py); the last worker to leave one deletes it (cache_root.py)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import Column, is_array_name
from cerebro_spark.data.loading.arrays import ReaderName, fill
from cerebro_spark.data.loading.cache_root import (
    DISK_VARIABLE,
    ENTRY,
    FETCHED,
    MEMORY_VARIABLE,
    SHARED_MEMORY,
    STAGED,
    CacheRoot,
    disk_folder,
    shared_memory_folder,
)
from cerebro_spark.data.loading.fingerprint import fingerprint
from cerebro_spark.data.loading.private_folder import PrivateFolder, open_private
from cerebro_spark.errors import DataError, StoreFull, UntrustedCache
from cerebro_spark.host_memory import count_memory
from cerebro_spark.store.paths import check_id
from cerebro_spark.types import Partition

_log = logging.getLogger(__name__)
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError)

Arrays = Mapping[str, NDArray[Any]]
_Signature = tuple[tuple[int, int, int], ...]


@dataclass
class _OpenEntry:
    """An entry whose arrays this process has mapped; the lock keeps other processes from deleting it."""

    arrays: dict[str, NDArray[Any]]
    signature: _Signature
    folder: Path
    lock: IO[bytes]


class Cache:
    """The partitions of this host. Safe to use from several processes at once; one Cache belongs to one thread.

    Close a Cache after use: the last one closed on this host deletes all partitions. Both folders must be of this user
    alone, else UntrustedCache is raised.

    Args:
        folder: Where partitions go that do not fit into shared memory. Default: `disk_folder()`.
        memory_budget: Bytes of shared memory for all workers of this host together. Default: half of the memory of
            the machine, or of this container, or 0 if there is no shared memory.
        memory_folder: A folder in shared memory. Default: `shared_memory_folder()`.
        reader: What reads Parquet files. Default: Petastorm if it is installed and knows the types, else Arrow.
        patience: Seconds to wait for another process that loads the same partition. Default: 60. Then it is loaded
            once more: a process on a dead mount hangs for ever, even if it is killed.

    >>> import tempfile
    >>> from cerebro_spark.data.prepare import prepare
    >>> data = {"x": [1.0, 2.0], "y": [0, 1]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["x"], label="y", partitions=1)
    >>> with Cache(folder=tempfile.mkdtemp(), memory_budget=0) as cache:
    ...     arrays = cache.load(dataset, dataset.train[0])
    ...     arrays["features"].shape, arrays["label"].dtype.name
    ((2, 1), 'int64')
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        memory_budget: int | None = None,
        memory_folder: str | os.PathLike[str] | None = None,
        reader: ReaderName = "auto",
        patience: float = 60.0,
    ) -> None:
        self._disk = CacheRoot(Path(folder) if folder is not None else disk_folder())
        self._memory = CacheRoot(Path(memory_folder) if memory_folder is not None else shared_memory_folder())
        self.memory_budget = _default_budget() if memory_budget is None else memory_budget
        self.reader = reader
        self.patience = patience
        self._open_entries: dict[str, _OpenEntry] = {}

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def enter(self) -> None:
        """Join the users of this host's cache; UntrustedCache, with the fix, if other users can reach it."""
        for root in self._roots():
            root.enter()

    def load(self, dataset: Dataset, partition: Partition) -> Arrays:
        """Return the partition's arrays, read-only: from this process, else from this host, else from the store."""
        key = _key(dataset, partition)
        held = self._open_entries.get(key)
        if held is not None and held.signature == _signature(held.folder, list(held.arrays)):
            return held.arrays
        self.release(dataset, partition)
        self.enter()
        self._tidy_up(dataset)
        found = self._open_or_create(key, dataset, partition)
        if found is None:
            # A copy of its own, which counts and is evicted like any other.
            own = f"{key}-{uuid.uuid4().hex[:8]}"
            _log.warning("the process that loads partition %s seems to be stuck: it is loaded once more", partition.id)
            found = self._open_or_create(own, dataset, partition)
        assert found is not None, "no other process knows the name"
        self._open_entries[key] = found
        return found.arrays

    def _open_or_create(self, name: str, dataset: Dataset, partition: Partition) -> _OpenEntry | None:
        """Return the entry of that name, made if it is not there; None if `patience` runs out before."""
        with ExitStack() as locks:
            for root in self._roots():
                if not locks.enter_context(root.locked_within(self.patience, f"{name}.lock")):
                    return None
            for root in self._roots():
                found = self._open(root.place / name, dataset, partition, verify=True)
                if found is not None:
                    return found
                root.remove(name)
            return self._create(name, dataset, partition)

    def holds(self, dataset: Dataset, partition: Partition) -> bool:
        """Return whether this host seems to have the partition: a hint for placing work, not a promise."""
        return any((root.path / _key(dataset, partition) / ENTRY).exists() for root in self._roots())

    def release(self, dataset: Dataset, partition: Partition) -> None:
        """Release a partition, so that this host may delete it. Arrays returned before stay valid."""
        held = self._open_entries.pop(_key(dataset, partition), None)
        if held is not None:
            held.lock.close()

    def close(self, *, tidy: bool = True) -> None:
        """Release everything; the last user on this host deletes all partitions.

        Args:
            tidy: Delete at all. Default: True. What is left is found by the next user, who deletes what is of another
                data set.
        """
        for held in self._open_entries.values():
            held.lock.close()
        self._open_entries.clear()
        for root in self._roots():
            root.leave(tidy=tidy)

    def _roots(self) -> list[CacheRoot]:
        return [self._memory, self._disk] if self.memory_budget > 0 else [self._disk]

    def _tidy_up(self, dataset: Dataset) -> None:
        """As the first user, delete what dead processes left, except of this data set, which saves a load."""
        for root in self._roots():
            if root.was_empty:
                root.was_empty = False
                with root.locked():
                    root.evict(None, keep={_key(dataset, each) for each in dataset.partitions})

    def _create(self, key: str, dataset: Dataset, partition: Partition) -> _OpenEntry:
        size = partition.rows * sum(column.row_bytes for column in dataset.columns)
        self._disk.sweep()
        root, staged = self._reserve(key, dataset, partition, size)
        fetched = self._disk.place / f"{key}{FETCHED}"
        try:
            shutil.rmtree(fetched, ignore_errors=True)
            fetched.mkdir(mode=0o700)
            arrays = {c.name: np.load(staged / _file_name(c), mmap_mode="r+") for c in dataset.columns}
            fill(dataset, partition, arrays, staging=fetched, reader=self.reader)
            # No sync to disk: a cache that a crash damages is noticed by its checksum and loaded again.
            entry = {"bytes": size, "checksums": {name: _checksum(array) for name, array in arrays.items()}}
            names = list(arrays)
            del arrays
            entry["unchanged"] = fingerprint([staged / f"{name}.npy" for name in names])
            # No other process counts or evicts until the folder is an entry that this process holds.
            with root.locked():
                with open_private(staged / ENTRY, "xb") as file:
                    file.write(json.dumps(entry).encode())
                os.rename(staged, root.place / key)
                found = self._open(root.place / key, dataset, partition, verify=False)
        except BaseException:
            root.remove(staged.name)
            raise
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
        if found is None:
            raise StoreFull(
                f"the cache lost {key} as soon as it was written: is another program deleting files in {root.path}?"
            )
        return found

    def _reserve(self, key: str, dataset: Dataset, partition: Partition, size: int) -> tuple[CacheRoot, Path]:
        """Make the files at their full size, in shared memory if they fit its budget, else on disk."""
        for root in self._roots():
            with root.locked():
                if root is self._disk and root.free() <= size:
                    root.evict(None)
                elif root is self._memory and not root.evict(self.memory_budget, size):
                    continue
                staged = root.place / f"{key}{STAGED}"
                try:
                    _allocate(staged, dataset, partition)
                    return root, staged
                except OSError as error:
                    shutil.rmtree(staged, ignore_errors=True)
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
        raise StoreFull(
            f"{partition.id} needs {size} bytes in the cache {self._disk.path}, which has {self._disk.free()} left:"
            f" free some space, or name another folder in {DISK_VARIABLE}"
        )

    def _open(self, folder: Path, dataset: Dataset, partition: Partition, *, verify: bool) -> _OpenEntry | None:
        """Map an entry and lock it; None if it is missing or damaged, UntrustedCache if it is not this user's."""
        try:
            with ExitStack() as opened:
                with PrivateFolder(folder, make=False, within=True) as entry:
                    lock = opened.enter_context(open_private(entry.place / ENTRY))
                fcntl.flock(lock, fcntl.LOCK_SH)
                written = json.loads(lock.read())
                arrays = {column.name: _map_array(folder, column, partition.rows) for column in dataset.columns}
                if verify and not _is_whole(folder, arrays, written):
                    return None
                os.utime(folder / ENTRY)
                found = _OpenEntry(arrays, _signature(folder, list(arrays)), folder, lock)
                opened.pop_all()  # the lock stays open, as long as the entry
                return found
        except UntrustedCache:
            raise
        except _DAMAGE:
            return None


def _key(dataset: Dataset, partition: Partition) -> str:
    """Return the name of an entry: it changes with all that can change the arrays, and is safe in a path."""
    check_id(partition.id, "partition id")
    columns = [column.to_json() for column in dataset.columns]
    versions = [dataset.version(name) for name in partition.files]
    # Rows that one reader allows may be refused by another, which must read them to find out.
    rules = dataset.made.get("allow_nan")
    text = json.dumps(
        [dataset.store.url, dataset.id, partition.files, versions, partition.rows, columns, rules], sort_keys=True
    )
    return f"{partition.id}-{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"


def _file_name(column: Column) -> str:
    if not is_array_name(column.name):
        raise DataError(f"{column.name!r} cannot name an array of a batch, so no file of the cache is named by it")
    return f"{column.name}.npy"


def _signature(folder: Path, names: list[str]) -> _Signature:
    """Return what changes if the files are no longer those that were mapped; empty if one is gone."""
    try:
        stats = [os.stat(folder / f"{name}.npy") for name in names]
    except OSError:
        return ()
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _map_array(folder: Path, column: Column, rows: int) -> NDArray[Any]:
    file = folder / _file_name(column)
    # Checked first, then opened by its name: no other user can replace it in a private folder.
    open_private(file).close()
    array: NDArray[Any] = np.load(file, mmap_mode="r")
    if array.shape != (rows, *column.shape) or array.dtype != np.dtype(column.dtype):
        raise ValueError(f"{column.name} is {array.dtype} {array.shape}")
    # The base class: memmap's own bookkeeping slows every gather down.
    return array.view(np.ndarray)


def _is_whole(folder: Path, arrays: Arrays, written: Mapping[str, Any]) -> bool:
    """Return whether arrays are what was written; reading all of them for that is only needed if files may differ."""
    found = fingerprint([folder / f"{name}.npy" for name in arrays])
    if found is not None and found == written.get("unchanged"):
        return True
    return all(_checksum(array) == written["checksums"][name] for name, array in arrays.items())


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _allocate(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Make empty arrays with their disk space reserved: a mapped file without it kills the process later."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for column in dataset.columns:
        file, shape = folder / _file_name(column), (partition.rows, *column.shape)
        open_private(file, "xb").close()
        np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(column.dtype), shape=shape)  # type: ignore[no-untyped-call]
        with open(file, "r+b") as raw:
            os.posix_fallocate(raw.fileno(), 0, file.stat().st_size)


def _default_budget() -> int:
    if MEMORY_VARIABLE not in os.environ and not os.access(SHARED_MEMORY, os.W_OK):
        return 0
    return count_memory() // 2
