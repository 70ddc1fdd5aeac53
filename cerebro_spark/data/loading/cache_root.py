"""One folder of cached partitions, used by all workers of this user on this host. It knows nothing of their content.

A user of the folder holds a shared lock on one file, which ends with its process. The last user deletes everything.
What dead processes left is found by the next user, and by `cerebro-spark clean`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cerebro_spark.data.loading.private_folder import PrivateFolder, open_private

_log = logging.getLogger(__name__)

ENTRY = "entry.json"
"""Written last into the folder of an entry; a process that has mapped its arrays holds a shared lock on it."""
STAGED, FETCHED = ".staged", ".fetched"
_TRIES = 1000
_SECONDS_BETWEEN_LOOKS = 0.05
_ROOT_LOCK, _USERS = "root.lock", "users.lock"
SHARED_MEMORY = Path("/dev/shm")
DISK_VARIABLE, MEMORY_VARIABLE = "CEREBRO_SPARK_CACHE", "CEREBRO_SPARK_CACHE_MEMORY"
"""Environment variables that name other folders for the cache on disk and in shared memory."""


def disk_folder() -> Path:
    """Return the folder of this user's cache on disk, unless a Cache is given another one."""
    return Path(os.environ.get(DISK_VARIABLE) or Path(tempfile.gettempdir()) / _folder_name())


def shared_memory_folder() -> Path:
    """Return the folder of this user's cache in shared memory, unless a Cache is given another one."""
    return Path(os.environ.get(MEMORY_VARIABLE) or SHARED_MEMORY / _folder_name())


def _folder_name() -> str:
    return f"cerebro-spark-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class UnusedEntry:
    """Something in a cache that no process uses."""

    path: Path
    bytes: int


class CacheRoot:
    """The cache in the folder `path`. `enter` before anything else, `leave` at the end; one user is one CacheRoot.

    >>> import tempfile
    >>> root = CacheRoot(Path(tempfile.mkdtemp()) / "cache")
    >>> root.enter(), root.place.exists(), root.leave(), root.path.exists()
    (None, True, None, False)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.was_empty = False
        self._folder: PrivateFolder | None = None
        self._users: IO[bytes] | None = None
        self._opened = ExitStack()

    @property
    def place(self) -> Path:
        """A path into the folder that was entered, valid even if the folder is renamed."""
        assert self._folder is not None
        return self._folder.place

    def enter(self) -> None:
        """Join the users, if not done yet; `was_empty` tells whether there was no other.

        Raises:
            UntrustedCache: The folder is another user's or open to others.
        """
        if self._folder is not None and self._folder.is_there:
            return
        self._close()
        for tried in range(_TRIES):
            try:
                self._try_to_enter()
            except FileNotFoundError:  # the last user has just deleted the folder: make it again
                if tried + 1 == _TRIES:
                    raise
            if self._folder is not None:
                return
        raise OSError(
            f"the cache {self.path} is deleted again and again by another process: name another folder in"
            f" {DISK_VARIABLE} or {MEMORY_VARIABLE}"
        )

    def leave(self, *, tidy: bool = True) -> None:
        """Leave the users. The last one deletes every entry that no process holds, and the folder if it is empty.

        Args:
            tidy: Delete at all. Default: True.
        """
        if self._folder is None or self._users is None:
            return
        try:
            with suppress(FileNotFoundError):
                if tidy and _lock_now(self._users):
                    self._remove_all()
        except OSError as error:
            _log.warning("the cache is not tidied up: %s", error)
        finally:
            self._close()

    @contextmanager
    def locked(self, name: str = _ROOT_LOCK) -> Iterator[None]:
        """Hold the exclusive lock of that name: by default that of the budget."""
        with open_private(self.place / name, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def locked_within(self, seconds: float, name: str) -> Iterator[bool]:
        """Hold the lock of that name, unless it takes longer than `seconds` to get it; yields whether it is held."""
        with open_private(self.place / name, "ab") as lock:
            end = time.monotonic() + seconds
            # A file lock cannot be waited for with a limit, so this tries again and again.
            while not (held := _lock_now(lock)) and time.monotonic() < end:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            yield held

    def free(self) -> int:
        """Return the free bytes of its file system."""
        return shutil.disk_usage(self.place).free

    def used(self) -> int:
        """Return the bytes of all arrays in it, also of those being loaded."""
        return sum(file.stat().st_size for file in self.place.glob("*/*.npy"))

    def evict(self, budget: int | None, wanted: int = 0, keep: Container[str] = ()) -> bool:
        """Delete entries that no process holds, longest unused first, until `wanted` bytes fit the budget.

        The caller holds the lock of the budget.

        Args:
            budget: In bytes; None deletes all such entries.
            wanted: In bytes. Default: 0.
            keep: Names of entries that stay. Default: none.

        Returns:
            Whether they fit.
        """
        self.sweep()
        for entry in self._unheld():
            if budget is not None and self._fits(budget, wanted):
                break
            if entry.name not in keep:
                shutil.rmtree(entry)
        return budget is None or self._fits(budget, wanted)

    def sweep(self) -> None:
        """Delete what a killed loader left: its lock is free, since locks end with their process."""
        for left in self._abandoned():
            shutil.rmtree(left, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Delete a folder under the lock of the budget."""
        folder = self.place / name
        if folder.exists():
            with self.locked():
                shutil.rmtree(folder, ignore_errors=True)

    def unused(self) -> list[UnusedEntry]:
        """Return what no process holds or loads, with its size."""
        with self.locked():  # else others may rename and delete what is looked at
            return [UnusedEntry(self.path / path.name, _size(path)) for path in (*self._unheld(), *self._abandoned())]

    def _try_to_enter(self) -> None:
        with ExitStack() as opened:
            folder = opened.enter_context(PrivateFolder(self.path))
            users = opened.enter_context(open_private(folder.place / _USERS, "ab"))
            alone = _lock_now(users)
            fcntl.flock(users, fcntl.LOCK_SH)
            # The last user may have deleted the file during the wait; then another process makes a new one.
            if os.fstat(users.fileno()).st_nlink and folder.is_there:
                self._folder, self._users, self.was_empty = folder, users, alone
                self._opened = opened.pop_all()

    def _close(self) -> None:
        self._users = self._folder = None
        self._opened.close()

    def _remove_all(self) -> None:
        """Delete everything; the exclusive lock on the users' file keeps other processes out."""
        with self.locked():
            self.evict(None)
        if any(path.is_dir() for path in self.place.iterdir()):
            return  # an entry is held by a version of this package that did not count users
        for lock in self.place.glob("*.lock"):
            if lock.name != _USERS:
                lock.unlink(missing_ok=True)
        (self.place / _USERS).unlink()
        with suppress(OSError):  # a process has entered already, or keeps other files there
            self.path.rmdir()

    def _unheld(self) -> Iterator[Path]:
        """Yield the entries that no process holds, longest unused first; none can hold one while it is looked at."""
        found = [path for path in self.place.iterdir() if not path.is_symlink() and (path / ENTRY).is_file()]
        for entry in sorted(found, key=lambda path: (path / ENTRY).stat().st_mtime_ns):
            with open_private(entry / ENTRY) as lock:
                if _lock_now(lock):
                    yield entry

    def _abandoned(self) -> Iterator[Path]:
        for left in (*self.place.glob(f"*{STAGED}"), *self.place.glob(f"*{FETCHED}")):
            with open_private(self.place / f"{left.stem}.lock", "ab") as lock:
                if _lock_now(lock):
                    yield left

    def _fits(self, budget: int, wanted: int) -> bool:
        return self.used() + wanted <= budget and wanted < self.free()


def _lock_now(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*"))
