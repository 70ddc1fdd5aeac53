"""The contract of a store: named, write-once blobs. It knows nothing of trials, models, partitions or events."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from cerebro_spark.errors import AlreadyInStore, ConfigurationError
from cerebro_spark.store.failures import already_in_store, not_in_store, store_errors
from cerebro_spark.store.sameness import own_bytes_pass
from cerebro_spark.store.streams import StagedFile

STAGING = ".staging"
"""The folder under a store's root for what is being written; its content is never listed, read or deleted by name."""

NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}
"""What `os.link` says where the file system has no hard links."""


class Staged(Protocol):
    """A blob on its way: bytes go into `file`; `commit` gives it its name, `discard` forgets what is left."""

    file: BinaryIO

    def commit(self) -> None:
        """Make all bytes visible under the blob's name, or raise; FileExistsError when the name is taken."""

    def staged(self) -> BinaryIO:
        """What was written, open for reading: asked for when a commit failed."""

    def discard(self) -> None:
        """Remove what is staged, whatever became of it."""


class Store(ABC):
    """A tree of write-once blobs under one root.

    Names are relative POSIX paths ("runs/r1/log/000001.jsonl"): letters of any language, spaces and dots are fine; an
    empty name, a leading "/", the segments "", "." and "..", control characters, and a name that begins with ".staging"
    are refused with ConfigurationError. A blob cannot also be a folder of others: stores that have real folders refuse
    "a/b" where "a" is a blob (AlreadyInStore), object stores do not notice.

    Who calls it: the driver, and every worker through a pickled copy, from any thread. Every method may be called
    concurrently, also by several processes on one name. A store is cheap to pickle, opens its connections when they are
    first used, and opens them anew in a forked child. Its pickle has the credentials that it was opened with, for the
    workers need them: it is sent to them, and kept nowhere (what is kept has references, see references.py).

    What holds for every implementation, and is tested by one suite for all of them:
      * a name is either absent or holds all the bytes of exactly one writer: readers never see half a blob, whenever a
        writer is killed;
      * a blob is never changed; writing a taken name raises AlreadyInStore, and of several concurrent writers of one
        name exactly one returns without an error (stores that have no conditional write say so in their docs);
      * unless the name holds these very bytes: then they are written, and that is success. Clients and network file
        systems send a request again whose answer was lost, and then find what they have written themselves. So whoever
        claims a name must write what nobody else would;
      * after `write` returned, every process sees the blob in `exists`, `list` and `read`;
      * a failed call changes nothing that a reader can see.

    Raises: NotFoundInStore, AlreadyInStore, StoreForbidden, StoreFull, or StoreError for anything else, always with the
    store's URL and the name in the message. What a caller raises inside a `writer` or `reader` block stays as it is.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The address that `open_store` takes to open the same store again; secrets are never part of it."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Create `name` with these bytes, all or nothing."""
        with own_bytes_pass(self, name, lambda: io.BytesIO(data)), self.writer(name) as file:
            file.write(data)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Open `name` for streaming: a context manager whose file becomes visible, whole, when the block ends well.

        The file can `write`, `flush` and `tell`, not seek. When the block raises, or one of its writes failed, nothing
        becomes visible and nothing is left behind. A name that is taken when the block begins is refused at once.
        """
        check_name(name)
        with self._errors(name):
            if self._is_blob(name):
                raise already_in_store(name, self.url)
            staged = self._stage(name)
        file = StagedFile(staged.file, lambda: self._errors(name))
        try:
            yield file
            file.finish()
            with own_bytes_pass(self, name, staged.staged), self._errors(name):
                staged.commit()
        finally:
            # An error of the block is the one to hear of. What cannot be removed now is invisible: `sweep` finds it.
            with contextlib.suppress(Exception):
                staged.discard()

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All bytes of `name`."""

    @abstractmethod
    def reader(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open `name` for reading: a context manager with a seekable binary file."""

    @abstractmethod
    def size(self, name: str) -> int:
        """The number of bytes of `name`."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether `name` is a blob or a folder with a blob somewhere under it."""

    @abstractmethod
    def list(self, folder: str = "") -> list[str]:
        """The names of all blobs under `folder`, at any depth, sorted; empty when there are none."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove the blob `name`, or every blob under the folder `name`. Absent names are no error."""

    def fetch(self, name: str, target: Path) -> Path:
        """Copy the blob, or the folder, `name` to the local path `target`, which must not exist, and return it.

        `target` appears whole or not at all.
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
        """Remove what killed writers left behind more than `older_than` seconds ago; how many leftovers there were.

        Leftovers are never visible; they only take room. Younger ones may belong to a writer at work.
        """
        del older_than
        return 0

    def beside(self, url: str) -> Store:
        """The store at another address of the same server, opened with what this one was opened with."""
        from cerebro_spark.store.opening import reopened

        return reopened(url)

    def below(self, folder: str) -> Store:
        """The store in a folder of this one, opened with what this one was opened with."""
        return self.beside(f"{self.url.rstrip('/')}/{folder}")

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        """What `sweep` would remove: names below the store's root that are no blobs, each with its bytes."""
        del older_than
        return {}

    def local_path(self, name: str) -> Path | None:
        """Where the blob lies on this machine's own disk, if it does: readers may then open it in place."""
        check_name(name)
        return None

    @abstractmethod
    def _is_blob(self, name: str) -> bool:
        """Whether `name` is a blob; a folder is none."""

    @abstractmethod
    def _stage(self, name: str) -> Staged:
        """Open a file that will become `name` when it is committed."""

    @abstractmethod
    def _fetch_blob(self, name: str, path: Path) -> None:
        """Copy the bytes of the blob to a new local file."""

    def _settle(self, name: str) -> None:
        """See that a blob which was found in its place lasts, where that takes more than being there."""
        del name

    def _errors(self, name: str) -> AbstractContextManager[None]:
        """The block in which this store's client may fail: whatever it raises comes out as a StoreError."""
        return store_errors(name, self.url)

    def _fetch_all(self, name: str, staged: Path) -> None:
        if self._is_blob(name):
            self._fetch_blob(name, staged)
            return
        blobs = self.list(name)
        if not blobs:
            raise not_in_store(name, self.url)
        for blob in blobs:
            path = staged / check_name(blob).removeprefix(name + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fetch_blob(blob, path)


def _appear(name: str, staged: Path, target: Path) -> None:
    """Give `staged` its name in one step, never over something that came there meanwhile."""
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
        raise ConfigurationError(f"{name!r} cannot name a blob: {STAGING!r} is where a store keeps unfinished writes")
    if any(ord(letter) < 32 or 0xD800 <= ord(letter) < 0xE000 or ord(letter) == 127 for letter in name):
        raise ConfigurationError(f"{name!r} cannot name a blob: it holds control characters or halves of letters")
    return name
