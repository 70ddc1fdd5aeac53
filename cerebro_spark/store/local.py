"""A store in a folder of this machine, or of a network file system that all workers mount."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cerebro_spark.errors import ConfigurationError, StoreError
from cerebro_spark.store.base import NO_LINKS, STAGING, Store, check_name

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""The error numbers of `os.fsync` of a folder on a file system that puts names on disk by itself."""

_DURABLE: set[tuple[str, int]] = set()
"""Paths and inodes of folders whose names are known to be on disk."""


class LocalStore(Store):
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
        path = self._path(name)
        with self._errors(name):
            return path.read_bytes()

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        with self._errors(name):
            file = open(path, "rb")  # noqa: SIM115 (only errors of opening it are the store's)
        with file:
            yield file

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._errors(name):
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
            return path.stat().st_size

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with self._errors(name):
            return path.is_file() or next(self._files(path), None) is not None

    def list(self, folder: str = "") -> list[str]:
        base = self._path(folder) if folder else self.root
        with self._errors(folder):
            return sorted(path.relative_to(self.root).as_posix() for path in self._files(base))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._errors(name), suppress(FileNotFoundError, NotADirectoryError):
            # Rename first, so that readers never see half a folder.
            doomed = self._staging_path()
            os.rename(path, doomed)
            _remove(doomed)

    def sweep(self, older_than: float = 86_400.0) -> int:
        with self._errors(STAGING):
            leftovers = self._leftovers(older_than)
            for path in leftovers:
                _remove(path)
        return len(leftovers)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        with self._errors(STAGING), suppress(FileNotFoundError):
            return {f"{STAGING}/{path.name}": _size(path) for path in self._leftovers(older_than)}
        return {}  # a writer has just finished or swept them

    def local_path(self, name: str) -> Path | None:
        path = self._path(name)
        return path if path.exists() else None

    def _leftovers(self, older_than: float) -> tuple[Path, ...]:
        limit = time.time() - older_than
        try:
            staged = sorted((self.root / STAGING).iterdir())
        except FileNotFoundError:
            return ()
        return tuple(path for path in staged if _modified(path) <= limit)

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _is_blob(self, name: str) -> bool:
        return self._path(name).is_file()

    def _stage(self, name: str) -> _StagedLocalBlob:
        return _StagedLocalBlob(self._staging_path(), self._path(name), self.root, self.url)

    def _make_durable(self, name: str) -> None:
        _sync_folders(self._path(name).parent, self.root)

    def _fetch_blob(self, name: str, path: Path) -> None:
        shutil.copyfile(self._path(name), path)

    def _files(self, base: Path) -> Iterator[Path]:
        for folder, folders, files in os.walk(base, onerror=_raise_unless_gone):
            if Path(folder) == self.root and STAGING in folders:
                folders.remove(STAGING)
            yield from (Path(folder, file) for file in files)

    def _staging_path(self) -> Path:
        staging = self.root / STAGING
        if not staging.is_dir():
            staging.mkdir(parents=True, exist_ok=True)
            # The store's folder and those above it may be new too. Some of them may belong to other users.
            for folder in staging.parents:
                with suppress(PermissionError):
                    _sync(folder)
        return staging / uuid.uuid4().hex


class _StagedLocalBlob:
    """A file under a staging name. `commit` puts it on disk, links it to its own name, and puts that on disk too."""

    def __init__(self, staged: Path, target: Path, root: Path, url: str) -> None:
        self._staged = staged
        self._target = target
        self._root = root
        self._url = url
        self.file: BinaryIO = open(staged, "xb")  # noqa: SIM115 (it outlives this call)

    def commit(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._link()
        _sync_folders(self._target.parent, self._root)

    def staged(self) -> BinaryIO:
        return open(self._staged, "rb")

    def discard(self) -> None:
        self._staged.unlink(missing_ok=True)
        self.file.close()

    def _link(self) -> None:
        for _ in range(100):
            try:
                self._make_folder()
                os.link(self._staged, self._target)
                return
            except FileNotFoundError:
                continue  # another process deleted the folder between the two calls
            except OSError as error:
                if error.errno in NO_LINKS:
                    raise StoreError(
                        f"the file system under {self._url} has no hard links, which a store needs so that"
                        f" {self._target.name!r} appears whole and only once ({error}): choose another folder, or the"
                        " storage's own URL"
                    ) from error
                raise
        raise StoreError(f"{self._target} in {self._url}: another process keeps deleting its folder")

    def _make_folder(self) -> None:
        folder = self._target.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except NotADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a blob is in the way", str(folder)) from error
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


def _remove(doomed: Path) -> None:
    if doomed.is_dir():
        # A writer may link a file into the folder while it is removed: the next `sweep` removes the rest.
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    """Return when a file was last modified; one that is gone counts as new."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _size(path: Path) -> int:
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if not each.is_dir())


def _raise_unless_gone(error: OSError) -> None:
    """Ignore a folder that was deleted meanwhile, and a file in its place: they hold no blobs."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
