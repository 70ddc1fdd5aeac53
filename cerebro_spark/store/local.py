"""A store in a folder of this machine (or of a network file system all workers mount). It never leaves half a file."""

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
"""What `os.fsync` of a folder says where the file system has no such thing, and writes names down by itself."""

_LASTING: set[tuple[str, int]] = set()
"""Folders of which this process knows that their names are on disk."""


class LocalStore(Store):
    """Blobs as files under one folder, each written under a staging name, synced, then linked to its own.

    A blob that was written outlives a power cut: its bytes are on disk before its name is, and its name, with the
    folders above it, before `write` returns.

    The link is what makes a name appear at once, and only where there was none; a file system without hard links (some
    FUSE mounts) is refused with an error that says so.

    >>> import tempfile
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> store.write("a/b", b"hello")
    >>> store.list("a"), store.read("a/b")
    (['a/b'], b'hello')
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(os.fspath(root))))
        # The folder itself need not exist yet; what is in its way would be heard of only by the first write.
        there = next((place for place in (self.root, *self.root.parents) if os.path.exists(place)), None)
        if there is not None and not os.path.isdir(there):
            raise ConfigurationError(f"'{there}' is a file, but a store is a folder: give the path of a folder")

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
            file = open(path, "rb")  # noqa: SIM115 (only opening it is the store's to fail)
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
            # Out of sight in one step, then removed at leisure: readers never see half a folder.
            doomed = self._staging_path()
            os.rename(path, doomed)
            _remove(doomed)

    def sweep(self, older_than: float = 86_400.0) -> int:
        limit = time.time() - older_than
        count = 0
        with self._errors(STAGING), suppress(FileNotFoundError):
            for entry in os.scandir(self.root / STAGING):
                if entry.stat(follow_symlinks=False).st_mtime <= limit:
                    _remove(Path(entry.path))
                    count += 1
        return count

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        limit = time.time() - older_than
        with self._errors(STAGING), suppress(FileNotFoundError):
            entries = sorted(os.scandir(self.root / STAGING), key=lambda entry: entry.name)
            old = [entry for entry in entries if entry.stat(follow_symlinks=False).st_mtime <= limit]
            return {f"{STAGING}/{entry.name}": _size(Path(entry.path)) for entry in old}
        return {}

    def local_path(self, name: str) -> Path | None:
        path = self._path(name)
        return path if path.exists() else None

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _is_blob(self, name: str) -> bool:
        return self._path(name).is_file()

    def _stage(self, name: str) -> _StagedLocalFile:
        return _StagedLocalFile(self._staging_path(), self._path(name), self.root, self.url)

    def _settle(self, name: str) -> None:
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
            # The store's own folder, and those above it, may be new as well; they need not be ours to open.
            for folder in staging.parents:
                with suppress(PermissionError):
                    _sync(folder)
        return staging / uuid.uuid4().hex


class _StagedLocalFile:
    """A file under a staging name, linked to its own when it is whole and on disk; then the name is put on disk too."""

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
                continue  # somebody deleted the folder between the two calls
            except OSError as error:
                if error.errno in NO_LINKS:
                    raise StoreError(
                        f"the file system under {self._url} has no hard links, which {self._target.name!r} needs to"
                        f" appear whole and only once ({error}): choose another folder, or the storage's own URL"
                    ) from error
                raise
        raise StoreError(f"{self._target} in {self._url}: its folder is deleted again and again by somebody else")

    def _make_folder(self) -> None:
        folder = self._target.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except NotADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a blob is in the way", str(folder)) from error
        except FileExistsError as error:
            if not folder.is_file():
                # It was there for `mkdir`, and gone when `mkdir` looked whether it is a folder.
                raise FileNotFoundError(errno.ENOENT, "deleted meanwhile", str(folder)) from error
            raise


def _sync_folders(folder: Path, root: Path) -> None:
    """Put a new name on disk, with all folders between it and the store's root: any of them may be as new as it is.

    Whoever made one may not have come so far as to do so. What this process has once put there, or seen put there, is
    known by its inode and not done again: it costs a flush of the disk, also where nothing has changed.
    """
    _sync(folder)
    for place in (folder, *folder.parents):
        if place == root:
            return
        with suppress(FileNotFoundError):
            entry = str(place), place.stat().st_ino
            if entry not in _LASTING:
                _sync(place.parent)
                _LASTING.add(entry)


def _sync(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return  # deleted meanwhile, and all in it
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def _remove(doomed: Path) -> None:
    if doomed.is_dir():
        # A writer that was just linking a file into the folder may keep it from being empty: `sweep` comes again.
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink()


def _size(path: Path) -> int:
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if not each.is_dir())


def _raise_unless_gone(error: OSError) -> None:
    """A folder that vanished, or a file where a folder was asked for, holds no blobs; a forbidden one is an error."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
