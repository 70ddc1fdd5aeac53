"""One folder of cached partitions, used by all workers of this user on this host. It knows nothing of what they hold.

Who uses it is in it: a shared lock on one file, which dies with its process. Whoever leaves last takes everything
along; what those left who died is found by the next who comes, and by `cerebro-spark clean`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cerebro_spark.data.loading.private_folder import PrivateFolder, open_private

_log = logging.getLogger(__name__)

ENTRY = "entry.json"
"""Written last into the folder of an entry; whoever has mapped its arrays holds a shared lock on it."""
STAGED, FETCHED = ".staged", ".fetched"
_TRIES = 1000
_SECONDS_BETWEEN_LOOKS = 0.05
_ROOT_LOCK, _USERS = "root.lock", "users.lock"
SHARED_MEMORY = Path("/dev/shm")
DISK_VARIABLE, MEMORY_VARIABLE = "CEREBRO_SPARK_CACHE", "CEREBRO_SPARK_CACHE_MEMORY"
"""Variables of the environment that name other folders than those of the temporary folder and of shared memory."""


def disk_folder() -> Path:
    """Where this user's cache on disk is, unless a Cache is told otherwise."""
    return Path(os.environ.get(DISK_VARIABLE) or Path(tempfile.gettempdir()) / _folder_name())


def shared_memory_folder() -> Path:
    """Where this user's cache in shared memory is, unless a Cache is told otherwise."""
    return Path(os.environ.get(MEMORY_VARIABLE) or SHARED_MEMORY / _folder_name())


def _folder_name() -> str:
    return f"cerebro-spark-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class Unused:
    """Something in a cache that nobody uses."""

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

    @property
    def place(self) -> Path:
        """The way to the folder that was entered, whatever becomes of its name."""
        assert self._folder is not None
        return self._folder.place

    @property
    def entered(self) -> bool:
        return self._folder is not None

    def enter(self) -> None:
        """Be one of the users, if not yet; `was_empty` says whether there was no other. UntrustedCache: not ours."""
        if self._folder is not None and self._folder.is_there:
            return
        self._close()
        for tried in range(_TRIES):
            try:
                self._try_to_enter()
            except FileNotFoundError:  # the last user took the folder along just now: make it again
                if tried + 1 == _TRIES:
                    raise
            if self._folder is not None:
                return
        raise OSError(f"the cache {self.path} is removed again and again by somebody else")

    def leave(self, *, tidy: bool = True) -> None:
        """Be no user any more. The last one removes everything that nobody holds, and the folder if nothing is left.

        Not `tidy`: it stays where it is.
        """
        if self._folder is None or self._users is None:
            return
        try:
            with suppress(BlockingIOError, FileNotFoundError):
                if tidy:
                    fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._remove_all()
        except OSError as error:
            _log.warning("the cache is not tidied up: %s", error)
        finally:
            self._close()

    @contextmanager
    def locked(self, name: str = _ROOT_LOCK) -> Iterator[None]:
        """Keep everybody else who locks that name out: the budget's by itself, or a partition's."""
        assert self._folder is not None
        with self._folder.locked(name):
            yield

    @contextmanager
    def locked_within(self, seconds: float, name: str) -> Iterator[bool]:
        """The same, if that is to be had within so many seconds; says whether it was."""
        assert self._folder is not None
        with self._folder.open(name, "ab") as lock:
            end = time.monotonic() + seconds
            # No file lock can be waited for with a limit, so this looks again and again.
            while not (had := _lock_now(lock)) and time.monotonic() < end:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            yield had

    def free(self) -> int:
        """Bytes left in the file system under it."""
        return shutil.disk_usage(self.place).free

    def used(self) -> int:
        """Bytes of all arrays in it, whole or on their way."""
        return sum(file.stat().st_size for file in self.place.glob("*/*.npy"))

    def evict(self, budget: int | None, wanted: int = 0, keep: Container[str] = ()) -> bool:
        """Drop what nobody holds, longest unused first, until `wanted` bytes fit the budget (None: drop all of it).

        Says whether they fit. Entries named in `keep` stay. The root's own lock is held.
        """
        self.sweep()
        for entry in self._entries():
            if budget is not None and self._fits(budget, wanted):
                break
            if entry.name not in keep:
                with _unheld(entry) as free:
                    if free:
                        shutil.rmtree(entry)
        return budget is None or self._fits(budget, wanted)

    def sweep(self) -> None:
        """Remove what a killed loader left: its lock is free, since locks die with their process."""
        for left in self._abandoned():
            shutil.rmtree(left, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Remove a folder while nobody counts what is there."""
        folder = self.place / name
        if folder.exists():
            with self.locked():
                shutil.rmtree(folder, ignore_errors=True)

    def unused(self) -> list[Unused]:
        """What nobody holds or works on, with its size."""
        return [Unused(self.path / path.name, _size(path)) for path in (*self._unheld(), *self._abandoned())]

    def _try_to_enter(self) -> None:
        folder = PrivateFolder(self.path)
        try:
            users = folder.open(_USERS, "ab")
        except BaseException:
            folder.close()
            raise
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            alone = False
        fcntl.flock(users, fcntl.LOCK_SH)
        # Whoever left last may have removed the file while we waited: then somebody else makes another one.
        if os.fstat(users.fileno()).st_nlink and folder.is_there:
            self._folder, self._users, self.was_empty = folder, users, alone
        else:
            users.close()
            folder.close()

    def _close(self) -> None:
        if self._users is not None:
            self._users.close()
        if self._folder is not None:
            self._folder.close()
        self._users = self._folder = None

    def _remove_all(self) -> None:
        """Nobody else is in, and nobody gets in before we are done."""
        with self.locked():
            self.evict(None)
        if any(path.is_dir() for path in self.place.iterdir()):
            return  # somebody holds an entry without being in: a release before users were counted
        for lock in self.place.glob("*.lock"):
            if lock.name != _USERS:
                lock.unlink(missing_ok=True)
        (self.place / _USERS).unlink()
        with suppress(OSError):  # somebody came at once, or keeps something else in there
            self.path.rmdir()

    def _entries(self) -> list[Path]:
        found = [path for path in self.place.iterdir() if not path.is_symlink() and (path / ENTRY).is_file()]
        return sorted(found, key=lambda path: (path / ENTRY).stat().st_mtime_ns)

    def _unheld(self) -> Iterator[Path]:
        for entry in self._entries():
            with _unheld(entry) as free:
                if free:
                    yield entry

    def _abandoned(self) -> Iterator[Path]:
        for left in (*self.place.glob(f"*{STAGED}"), *self.place.glob(f"*{FETCHED}")):
            with open_private(self.place / f"{left.stem}.lock", "ab") as lock:
                if _lock_now(lock):
                    yield left

    def _fits(self, budget: int, wanted: int) -> bool:
        return self.used() + wanted <= budget and wanted < self.free()


@contextmanager
def _unheld(entry: Path) -> Iterator[bool]:
    """Whether nobody holds the entry; then nobody can begin to while the block lasts."""
    with open_private(entry / ENTRY) as lock:
        yield _lock_now(lock)


def _lock_now(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*"))
