"""The interface of a store: named, write-once blobs. It knows nothing of trials, models, partitions or events."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from cerebro_spark.errors import AlreadyInStore, ConfigurationError, NotFoundInStore
from cerebro_spark.store.failures import store_error, store_errors
from cerebro_spark.store.idempotence import accept_own_bytes
from cerebro_spark.store.streams import BlobWriter, StagedBlob

STAGING = ".staging"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""The folder under a store's root for unfinished writes. Its content is never listed, read or deleted by name."""

_COPY = 8 << 20
NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}
"""The error numbers of `os.link` on a file system without hard links."""


class Store(ABC):
    """A tree of write-once blobs under one root.

    Names are relative POSIX paths ("runs/r1/log/000001.jsonl"). Letters of any language, spaces and dots are allowed.
    An empty name, a leading "/", the segments "", "." and "..", control characters, and a name that begins with
    ".staging" raise ConfigurationError. A blob cannot be a folder of other blobs too: stores with real folders refuse
    "a/b" if "a" is a blob (AlreadyInStore), object stores do not notice.

    The driver and, through a pickled copy, every worker call a store, from any thread. All methods may be called
    concurrently, also by several processes on one name. A store is cheap to pickle. It opens its connections when they
    are first used, and again in a forked child. Its pickle has the credentials it was opened with, because workers need
    them. Such a pickle is sent to workers and never kept (a pickle that is kept has references, see references.py).

    Every implementation holds, and one test suite checks:

    - A name either does not exist or holds all bytes of exactly one writer. Readers never see half a blob, even if a
      writer is killed.
    - A blob is never changed. Writing a taken name raises AlreadyInStore, and of several concurrent writers of one name
      exactly one succeeds (a store without conditional writes says so in its docs).
    - The exception: writing the very bytes that the name holds succeeds. Clients and network file systems repeat a
      request whose answer was lost, and then find their own bytes. So a process that claims a name must write bytes
      that no other process writes.
    - After `write` returned, every process sees the blob in `exists`, `list` and `read`.
    - A failed call changes nothing that a reader can see.

    Besides what each method names, all of them raise StoreForbidden, StoreFull, or StoreError for any other failure,
    with the store's URL and the name in the message. An exception of the caller inside a `writer` or `reader` block
    passes unchanged.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The address with which `open_store` opens the same store again. It has no secrets."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Create a blob, all or nothing.

        Args:
            name: The name of the blob.
            data: Its bytes.

        Raises:
            AlreadyInStore: If the name is taken by other bytes.
        """
        with accept_own_bytes(self, name, lambda: io.BytesIO(data)), self.writer(name) as file:
            file.write(data)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Open a new blob for writing.

        If the block raises, or a write in it failed, nothing becomes visible and nothing is left behind.

        Args:
            name: The name of the blob.

        Yields:
            A binary file that can `write`, `flush` and `tell`, not seek. The blob becomes visible, whole, when the
                block ends without an error.

        Raises:
            AlreadyInStore: If the name is taken by other bytes; at once if it is taken when the block begins.
        """
        check_name(name)
        with self._errors(name):
            self._check_free(name)
            staged = self._stage(name)
        file = BlobWriter(staged.file, lambda: self._errors(name))
        try:
            yield file
            file.finish()
            with accept_own_bytes(self, name, staged.staged), self._errors(name):
                staged.commit()
        finally:
            # An error of the block is the one to raise. What cannot be removed now is invisible: `sweep` finds it.
            with contextlib.suppress(Exception):
                staged.discard()

    def read(self, name: str) -> bytes:
        """Read a blob.

        Args:
            name: The name of the blob.

        Returns:
            All its bytes.

        Raises:
            NotFoundInStore: If there is no such blob.
        """
        with self._errors(name), self.reader(name) as file:
            return file.read()

    @abstractmethod
    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a blob for reading.

        Args:
            name: The name of the blob.

        Returns:
            A context manager with a seekable binary file.

        Raises:
            NotFoundInStore: If there is no such blob.
        """

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a blob.

        Args:
            name: The name of the blob.

        Returns:
            Its number of bytes.

        Raises:
            NotFoundInStore: If there is no such blob.
        """

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether a name exists.

        Args:
            name: The name of a blob or a folder.

        Returns:
            True for a blob, and for a folder with a blob at any depth.
        """

    @abstractmethod
    def list(self, folder: str = "") -> list[str]:
        """List blobs.

        Args:
            folder: The folder to list. Defaults to "": the whole store.

        Returns:
            The names of all blobs in it, at any depth, sorted. They begin with the folder's name.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a blob, or all blobs in a folder. A name that does not exist is no error.

        Args:
            name: The name of a blob or a folder.
        """

    def fetch(self, name: str, target: Path) -> Path:
        """Copy a blob or a folder to this machine, all or nothing.

        Args:
            name: The name of a blob or a folder.
            target: The local path of the copy. It must not exist; folders above it are made.

        Returns:
            `target`.

        Raises:
            NotFoundInStore: If there is nothing of that name.
            AlreadyInStore: If `target` exists.
        """
        check_name(name)
        staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with store_errors(name, f"{self.url} (copied to {target})"):
            if os.path.lexists(target):
                raise _target_exists(name, target)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fetch_all(name, staged)
                _appear(name, staged, target)
            finally:
                if staged.is_dir():
                    shutil.rmtree(staged)
                staged.unlink(missing_ok=True)
        return target

    def sweep(self, older_than: float = 86_400.0) -> int:
        """Delete the unfinished writes of processes that were killed. They are never visible, but take space.

        Args:
            older_than: The age in seconds from which on a write is taken for dead. Defaults to 86400, a day. A younger
                one may still be under way.

        Returns:
            How many were deleted.
        """
        del older_than
        return 0

    def beside(self, url: str) -> Store:
        """Open another address of the same server with the options of this store.

        Args:
            url: The address.

        Returns:
            The store at that address.
        """
        from cerebro_spark.store.opening import reopen

        return reopen(url)

    def below(self, folder: str) -> Store:
        """Open a folder of this store as a store, with the options of this store.

        Args:
            folder: The name of the folder.

        Returns:
            The store whose root is that folder.
        """
        return self.beside(f"{self.url.rstrip('/')}/{folder}")

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        """List what `sweep` would delete.

        Args:
            older_than: The age in seconds, as in `sweep`. Defaults to 86400, a day.

        Returns:
            The paths below the store's root, each with its number of bytes.
        """
        del older_than
        return {}

    def local_path(self, name: str) -> Path | None:
        """Return the path of a blob on this machine's own disk, so that it can be opened in place.

        Args:
            name: The name of the blob.

        Returns:
            The path, or None if the blob is not on a local disk.
        """
        check_name(name)
        return None

    @abstractmethod
    def _is_blob(self, name: str) -> bool:
        """Return whether `name` is a blob; a folder is not."""

    @abstractmethod
    def _stage(self, name: str) -> StagedBlob:
        """Open a file that will become `name` when it is committed."""

    def _check_free(self, name: str) -> None:
        if self._is_blob(name):
            raise store_error(AlreadyInStore, name, self.url)

    def _fetch_blob(self, name: str, path: Path) -> None:
        """Copy the bytes of the blob to a local file; replace what an earlier attempt left there."""
        with self.reader(name) as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy, _COPY)

    def _make_durable(self, name: str) -> None:
        """Put the name of a blob that exists on disk, if the store does not do so by itself."""
        del name

    def _errors(self, name: str) -> AbstractContextManager[None]:
        """Return the context in which errors of this store's client become store errors."""
        return store_errors(name, self.url)

    def _fetch_all(self, name: str, staged: Path) -> None:
        if self._is_blob(name):
            self._fetch_blob(name, staged)
            return
        blobs = self.list(name)
        if not blobs:
            raise store_error(NotFoundInStore, name, self.url)
        for blob in blobs:
            path = staged / check_name(blob).removeprefix(name + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fetch_blob(blob, path)


def _appear(name: str, staged: Path, target: Path) -> None:
    """Rename `staged` in one step, never over a target that appeared meanwhile."""
    try:
        if staged.is_dir():
            os.rename(staged, target)
        else:
            os.link(staged, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _target_exists(name, target) from error
        if error.errno not in NO_LINKS:
            raise
        os.rename(staged, target)


def _target_exists(name: str, target: Path) -> AlreadyInStore:
    return AlreadyInStore(f"{target} exists already: fetch {name!r} to a path that does not")


def check_name(name: str) -> str:
    """Return `name` if it can name a blob, else raise ConfigurationError.

    >>> check_name("runs/r1/log")
    'runs/r1/log'
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ConfigurationError(
            f"{name!r} cannot name a blob of a store: use a relative path without empty, '.' or '..' parts,"
            " such as 'runs/r1/log/000001.jsonl'"
        )
    if parts[0] == STAGING:
        raise ConfigurationError(f"{name!r} cannot name a blob: {STAGING!r} is for unfinished writes; use another name")
    if _UNPRINTABLE.search(name):
        raise ConfigurationError(f"{name!r} cannot name a blob: it holds control characters or surrogates")
    return name
