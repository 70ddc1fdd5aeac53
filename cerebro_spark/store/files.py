"""What stores on file systems have in common: blobs are files below a root, unfinished ones are in a staging folder.

A subclass does the few things that differ between file systems. It never checks names, nor makes store errors.
"""

from __future__ import annotations

import errno
import io
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cerebro_spark.errors import NotFoundInStore
from cerebro_spark.store.base import STAGING, Store, check_name
from cerebro_spark.store.failures import store_error
from cerebro_spark.store.idempotence import accept_own_bytes
from cerebro_spark.store.spooling import spool
from cerebro_spark.store.streams import StagedBlob, open_reader

_MOVES = 50


class FileStatus(NamedTuple):
    """A file or folder: absolute path, size in bytes, and time of the last change in seconds since 1970."""

    path: str
    is_folder: bool
    size: int
    modified: float


class FileStore(Store):
    """A store whose blobs are files. Paths are absolute, without a "/" at the end: the root of a file system is ""."""

    def size(self, name: str) -> int:
        with self._errors(name):
            status = self._status(self._path(name))
            if status is None or status.is_folder:
                raise store_error(NotFoundInStore, name, self.url)
            return status.size

    def exists(self, name: str) -> bool:
        with self._errors(name):
            path = self._path(name)
            status = self._status(path)
            return status is not None and (not status.is_folder or any(self._files(path)))

    def list(self, folder: str = "") -> list[str]:
        with self._errors(folder):
            return sorted(map(self._below_root, self._files(self._path(folder) if folder else self._root)))

    def delete(self, name: str) -> None:
        with self._errors(name):
            self._delete(self._path(name))

    def sweep(self, older_than: float = 86_400.0) -> int:
        with self._errors(STAGING):
            leftovers = self._leftovers(older_than)
            for status in leftovers:
                self._delete(status.path)
        return len(leftovers)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        with self._errors(STAGING):
            return {self._below_root(status.path): status.size for status in self._leftovers(older_than)}

    @property
    @abstractmethod
    def _root(self) -> str:
        """The folder of the store."""

    @abstractmethod
    def _status(self, path: str) -> FileStatus | None:
        """Return what is at `path`, or None."""

    @abstractmethod
    def _files(self, folder: str) -> Iterable[str]:
        """Return all files below a folder but unfinished ones; none if there is no such folder, or it is a file."""

    @abstractmethod
    def _staged(self) -> Iterable[FileStatus]:
        """Return what is directly in the staging folder, with all its bytes."""

    @abstractmethod
    def _delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it. A path that does not exist is no error."""

    @property
    def _staging(self) -> str:
        return f"{self._root}/{STAGING}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _below_root(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    def _is_blob(self, name: str) -> bool:
        status = self._status(self._path(name))
        return status is not None and not status.is_folder

    def _leftovers(self, older_than: float) -> tuple[FileStatus, ...]:
        limit = time.time() - older_than
        return tuple(status for status in self._staged() if status.modified <= limit)


class RemoteStore(FileStore):
    """A store behind a client library, which uploads a whole blob at once."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        with accept_own_bytes(self, name, lambda: io.BytesIO(data)), self._errors(name):
            self._check_free(name)
            self._put_new(name, data)

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        with self._errors(name):
            raw = self._open(self._path(name))
        with open_reader(raw, lambda: self._errors(name)) as file:
            yield file

    @abstractmethod
    def _open(self, path: str) -> BinaryIO:
        """Open a seekable file for reading."""

    @abstractmethod
    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        """Create a blob with these bytes, or those of a local file. Raises FileExistsError if the name is taken."""

    def _stage(self, name: str) -> StagedBlob:
        return spool(lambda file: self._put_new(name, file))


def move_new(make_folder: Callable[[], None], move: Callable[[], None], has_source: Callable[[], bool]) -> None:
    """Make a folder and move a staged file into it, again if another process deletes the folder in between.

    Args:
        make_folder: Makes the folder; one that exists is no error.
        move: Moves the file. Raises FileExistsError if the new name is taken.
        has_source: Returns whether the staged file still exists.

    Raises:
        FileExistsError: If the new name is taken, or a file is in the place of the folder.
        FileNotFoundError: If the staged file is gone.
    """
    for attempt in range(_MOVES):
        try:
            make_folder()
            move()
            return
        except NotADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a file is in the way of its folder") from error
        except FileNotFoundError:
            if not has_source():
                raise
        # Wait a random time, not to meet the other process again.
        time.sleep(random.uniform(0, 0.001 * (attempt + 1)))
    raise OSError(errno.EBUSY, "another process keeps deleting its folder")
