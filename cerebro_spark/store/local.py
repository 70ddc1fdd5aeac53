"""A store in a folder of this machine, or of a network file system that all workers mount."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cerebro_spark.errors import ConfigurationError, StoreError
from cerebro_spark.store.base import NO_LINKS, STAGING
from cerebro_spark.store.files import FileStatus, FileStore, move_new
from cerebro_spark.store.streams import StagedBlob

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""The error numbers of `os.fsync` of a folder on a file system that puts names on disk by itself."""

_DURABLE: set[tuple[str, int]] = set()
"""Paths and inodes of folders whose names are known to be on disk."""


class LocalStore(FileStore):
    """Blobs as files under one folder.

    A blob is written under a staging name, synced, then linked to its own name. It survives a power cut: its bytes are
    on disk before its name is, and its name and the folders above it before `write` returns. The hard link makes a name
    appear at once, and only if it is free. A file system without hard links (some FUSE mounts) raises StoreError.

    Args:
        root: The folder. It is created when the first blob is written.

    Raises:
        ConfigurationError: If `root`, or a folder above it, is a file.

    Examples:
        >>> import tempfile
        >>> store = LocalStore(tempfile.mkdtemp())
        >>> store.write("a/b", b"hello")
        >>> store.list("a"), store.read("a/b")
        (['a/b'], b'hello')
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(os.fspath(root))))
        # The folder need not exist yet. A file in its place would fail only with the first write.
        existing = next((place for place in (self.root, *self.root.parents) if os.path.exists(place)), None)
        if existing is not None and not os.path.isdir(existing):
            raise ConfigurationError(f"'{existing}' is a file, but a store is a folder: give the path of a folder")

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    def read(self, name: str) -> bytes:
        with self._errors(name):
            return Path(self._path(name)).read_bytes()

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        with self._errors(name):
            file = open(self._path(name), "rb")  # noqa: SIM115 (only errors of opening it are the store's)
        with file:
            yield file

    def local_path(self, name: str) -> Path | None:
        path = Path(self._path(name))
        return path if path.exists() else None

    @property
    def _root(self) -> str:
        return str(self.root).rstrip("/")

    def _status(self, path: str) -> FileStatus | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStatus(path, stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime)

    def _files(self, folder: str) -> Iterator[str]:
        for place, folders, files in os.walk(folder or "/", onerror=_raise_unless_gone):
            if place.rstrip("/") == self._root and STAGING in folders:
                folders.remove(STAGING)
            yield from (os.path.join(place, file) for file in files)

    def _staged(self) -> Iterator[FileStatus]:
        staging = Path(self._staging)
        for path in sorted(staging.iterdir()) if staging.is_dir() else ():
            with suppress(FileNotFoundError):  # a writer has just finished it, or swept it
                yield FileStatus(str(path), path.is_dir(), _size(path), path.lstat().st_mtime)

    def _delete(self, path: str) -> None:
        # Rename first, so that readers never see half a folder.
        doomed = self._staging_path()
        with suppress(FileNotFoundError, NotADirectoryError):
            os.rename(path, doomed)
        if doomed.is_dir():
            # A writer may link a file into the folder while it is removed: the next `sweep` removes the rest.
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            doomed.unlink(missing_ok=True)

    def _stage(self, name: str) -> StagedBlob:
        target = Path(self._path(name))

        def publish(staged: Path) -> None:
            move_new(lambda: _make_folder(target.parent), lambda: self._link(staged, target), staged.exists)
            self._make_durable(name)

        return StagedBlob(self._staging_path(), publish, sync=True)

    def _link(self, staged: Path, target: Path) -> None:
        try:
            os.link(staged, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise StoreError(
                f"the file system under {self.url} has no hard links, which a store needs so that {target.name!r}"
                f" appears whole and only once ({error}): choose another folder, or the storage's own URL"
            ) from error

    def _make_durable(self, name: str) -> None:
        _sync_folders(Path(self._path(name)).parent, self.root)

    def _fetch_blob(self, name: str, path: Path) -> None:
        shutil.copyfile(self._path(name), path)

    def _staging_path(self) -> Path:
        staging = Path(self._staging)
        if not staging.is_dir():
            staging.mkdir(parents=True, exist_ok=True)
            # The store's folder and those above it may be new too. Some of them may belong to other users.
            for folder in staging.parents:
                with suppress(PermissionError):
                    _sync(folder)
        return staging / uuid.uuid4().hex


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        if not folder.is_file():
            # It was deleted between mkdir's attempt and mkdir's check whether it is a folder.
            raise FileNotFoundError(errno.ENOENT, "deleted meanwhile", str(folder)) from error
        raise


def _sync_folders(folder: Path, root: Path) -> None:
    """Put a new name on disk, with all folders between it and the store's root.

    Any of these folders may be new, and the process that made it may have died before it synced it. A folder that this
    process has synced is known by its inode and not synced again: that would flush the disk even if nothing changed.
    """
    _sync(folder)
    for place in (folder, *folder.parents):
        if place == root:
            return
        with suppress(FileNotFoundError):
            entry = str(place), place.stat().st_ino
            if entry not in _DURABLE:
                _sync(place.parent)
                _DURABLE.add(entry)


def _sync(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted meanwhile
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if not each.is_dir())


def _raise_unless_gone(error: OSError) -> None:
    """Ignore a folder that was deleted meanwhile, and a file in its place: they hold no blobs."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
