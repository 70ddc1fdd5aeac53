"""A partition's arrays, loaded once a host and mapped by all its workers. It never hands out an array that may change.

Each partition is a folder with a `.npy` file for each column, in shared memory while the budget lasts and on local disk
beyond it. A lock a partition makes the first worker load and the others wait; a lock a root keeps the budget. Both
lie in each root that is used, because one may be shared with processes that do not share the other."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.load import ReaderName, fill
from cerebro_spark.errors import StoreFull
from cerebro_spark.types import Partition

_SHARED_MEMORY = Path("/dev/shm")
_ENTRY = "entry.json"
_STAGED, _FETCHED = ".staged", ".fetched"
_CHECKSUM_STEP = 8 << 20

Arrays = Mapping[str, NDArray[Any]]
_Signature = tuple[tuple[int, int, int], ...]


@dataclass
class _Held:
    arrays: dict[str, NDArray[Any]]
    signature: _Signature
    folder: Path
    lock: IO[bytes]


class Cache:
    """The partitions of this host. Safe to use from several processes at once; one Cache belongs to one thread.

    `memory_budget` bounds what all workers of this host together keep in shared memory, in bytes: half of the machine's
    memory if not given, nothing if there is no shared memory. `folder` is where the rest goes.

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
    ) -> None:
        private = f"cerebro-spark-{os.getuid()}"
        self.disk = Path(folder) if folder is not None else Path(tempfile.gettempdir()) / private
        self.memory = Path(memory_folder) if memory_folder is not None else _SHARED_MEMORY / private
        self.memory_budget = _default_budget() if memory_budget is None else memory_budget
        self.reader = reader
        self._held: dict[str, _Held] = {}

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, dataset: Dataset, partition: Partition) -> Arrays:
        """The partition's arrays, read-only, from this process, this host or the store, whichever is nearest."""
        key = _key(dataset, partition)
        held = self._held.get(key)
        if held is not None and held.signature == _signature(held.folder, list(held.arrays)):
            return held.arrays
        self.release(dataset, partition)
        with ExitStack() as locks:
            for root in self._roots():
                locks.enter_context(self._locked(root, f"{key}.lock"))
            for root in self._roots():
                found = self._open(root / key, dataset, partition, verify=True)
                if found is not None:
                    break
                self._remove(root, root / key)
            else:
                found = self._create(key, dataset, partition)
        self._held[key] = found
        return found.arrays

    def holds(self, dataset: Dataset, partition: Partition) -> bool:
        """Whether this host has the partition, whole or not: a hint for placing work, not a promise."""
        return any((root / _key(dataset, partition) / _ENTRY).exists() for root in self._roots())

    def release(self, dataset: Dataset, partition: Partition) -> None:
        """Let go of a partition: this host may then drop it. Arrays already handed out stay valid."""
        held = self._held.pop(_key(dataset, partition), None)
        if held is not None:
            held.lock.close()

    def close(self) -> None:
        """Let go of everything."""
        for held in self._held.values():
            held.lock.close()
        self._held.clear()

    def clear(self) -> None:
        """Remove every partition of this host that no worker holds."""
        for root in self._roots():
            if root.exists():
                with self._locked(root, "root.lock"):
                    self._evict(root, wanted=None)

    def _roots(self) -> list[Path]:
        return [self.memory, self.disk] if self.memory_budget > 0 else [self.disk]

    def _create(self, key: str, dataset: Dataset, partition: Partition) -> _Held:
        size = partition.rows * sum(column.row_bytes for column in dataset.columns)
        self._sweep(self.disk)
        root, staged = self._reserve(key, dataset, partition, size)
        fetched = self.disk / f"{key}{_FETCHED}"
        try:
            shutil.rmtree(fetched, ignore_errors=True)
            fetched.mkdir()
            arrays = {c.name: np.load(staged / f"{c.name}.npy", mmap_mode="r+") for c in dataset.columns}
            fill(dataset, partition, arrays, staging=fetched, reader=self.reader)
            # No sync to disk: a cache that a crash damages is noticed by its checksum and loaded again.
            entry = {"bytes": size, "checksums": {name: _checksum(array) for name, array in arrays.items()}}
            del arrays
            # Nobody counts or evicts while a folder becomes an entry, and until it is held.
            with self._locked(root, "root.lock"):
                (staged / _ENTRY).write_text(json.dumps(entry))
                os.rename(staged, root / key)
                found = self._open(root / key, dataset, partition, verify=False)
        except BaseException:
            self._remove(root, staged)
            raise
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
        if found is None:
            raise StoreFull(f"the cache lost {root / key} as soon as it was written: is somebody emptying {root}?")
        return found

    def _reserve(self, key: str, dataset: Dataset, partition: Partition, size: int) -> tuple[Path, Path]:
        """Make the files at their full size, in shared memory if they fit its budget, else on disk."""
        for root in self._roots():
            with self._locked(root, "root.lock"):
                if root == self.disk and _free(root) <= size:
                    self._evict(root, wanted=None)
                elif root == self.memory and not self._evict(root, size):
                    continue
                staged = root / f"{key}{_STAGED}"
                try:
                    _allocate(staged, dataset, partition)
                    return root, staged
                except OSError as error:
                    shutil.rmtree(staged, ignore_errors=True)
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
        raise StoreFull(
            f"{partition.id} needs {size} bytes in the cache {self.disk}, which has {_free(self.disk)} left:"
            " free some space, or give Cache another folder"
        )

    def _open(self, folder: Path, dataset: Dataset, partition: Partition, *, verify: bool) -> _Held | None:
        """Map an entry and mark it as held, or None if it is missing or damaged."""
        try:
            lock = open(folder / _ENTRY, "rb")  # noqa: SIM115 (held as long as the arrays are)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            entry = json.loads(lock.read())
            arrays: dict[str, NDArray[Any]] = {}
            for column in dataset.columns:
                array = np.load(folder / f"{column.name}.npy", mmap_mode="r")
                if array.shape != (partition.rows, *column.shape) or array.dtype != np.dtype(column.dtype):
                    raise ValueError(f"{column.name} is {array.dtype} {array.shape}")
                if verify and _checksum(array) != entry["checksums"][column.name]:
                    raise ValueError(f"{column.name} has another checksum")
                # The base class: what NumPy's memmap adds only slows every gather down.
                arrays[column.name] = array.view(np.ndarray)
            os.utime(folder / _ENTRY)
            return _Held(arrays, _signature(folder, list(arrays)), folder, lock)
        except (OSError, ValueError, KeyError, EOFError):
            lock.close()
            return None

    def _evict(self, root: Path, wanted: int | None) -> bool:
        """Drop what nobody holds, longest unused first, until `wanted` bytes fit (None: drop all of it)."""
        entries = sorted(
            (path for path in root.iterdir() if path.is_dir() and (path / _ENTRY).exists()),
            key=lambda path: (path / _ENTRY).stat().st_mtime_ns,
        )
        self._sweep(root)
        for path in entries:
            if wanted is not None and self._fits(root, wanted):
                break
            with open(path / _ENTRY, "rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(path)
        return wanted is None or self._fits(root, wanted)

    def _fits(self, root: Path, wanted: int) -> bool:
        used = sum(file.stat().st_size for file in root.glob("*/*.npy"))
        return used + wanted <= self.memory_budget and wanted < _free(root)

    def _sweep(self, root: Path) -> None:
        """Remove what a killed loader left: its lock is free, since locks die with their process."""
        for left in (*root.glob(f"*{_STAGED}"), *root.glob(f"*{_FETCHED}")):
            with open(root / f"{left.stem}.lock", "ab") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                shutil.rmtree(left, ignore_errors=True)

    def _remove(self, root: Path, folder: Path) -> None:
        """Remove a folder while nobody counts what is there."""
        if folder.exists():
            with self._locked(root, "root.lock"):
                shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _locked(self, root: Path, name: str) -> Iterator[None]:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(root / name, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _key(dataset: Dataset, partition: Partition) -> str:
    """The name of an entry: whatever can change the arrays is in it."""
    columns = [column.to_json() for column in dataset.columns]
    versions = [dataset.version(name) for name in partition.files]
    text = json.dumps(
        [dataset.store.url, dataset.id, partition.files, versions, partition.rows, columns], sort_keys=True
    )
    return f"{partition.id}-{hashlib.blake2b(text.encode(), digest_size=10).hexdigest()}"


def _signature(folder: Path, names: list[str]) -> _Signature:
    """Tells whether the files are still those that were mapped; empty if one is gone."""
    try:
        stats = [os.stat(folder / f"{name}.npy") for name in names]
    except OSError:
        return ()
    return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _checksum(array: NDArray[Any]) -> int:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    value = 0
    for start in range(0, len(data), _CHECKSUM_STEP):
        value = zlib.crc32(data[start : start + _CHECKSUM_STEP], value)
    return value


def _allocate(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Empty arrays of the right size, with their space taken: a mapped file that lacks it later kills the process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for column in dataset.columns:
        file, shape = folder / f"{column.name}.npy", (partition.rows, *column.shape)
        np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(column.dtype), shape=shape)  # type: ignore[no-untyped-call]
        with open(file, "r+b") as raw:
            os.posix_fallocate(raw.fileno(), 0, file.stat().st_size)


def _free(root: Path) -> int:
    return shutil.disk_usage(root).free


def _default_budget() -> int:
    if not os.access(_SHARED_MEMORY, os.W_OK):
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
