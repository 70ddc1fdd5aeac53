"""Creates a blob on each kind of fsspec file system. No reader ever sees half a blob."""

from __future__ import annotations

import errno
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Protocols whose client uploads atomically, and only if the name is free (`mode="create"`)."""

_TAGGED = frozenset({"s3", "s3a"})
_WRITER = "cerebro-writer"
_ATTEMPTS = 8


def has_folders(protocol: str) -> bool:
    """Return whether the file system has real folders, not only names with slashes."""
    return protocol not in CONDITIONAL and protocol != "memory"


def upload_new(fs: Any, protocol: str, source: bytes | Path, path: str, staging: str) -> None:
    """Create a file with the bytes of `source`.

    Args:
        fs: The fsspec file system.
        protocol: Its protocol, such as "s3".
        source: The bytes, or a local file.
        path: The path of the new file.
        staging: The folder for unfinished files, used where an upload is not atomic.

    Raises:
        FileExistsError: If `path` exists.
    """
    if protocol in CONDITIONAL:
        _put_conditionally(fs, protocol, source, path)
    elif protocol == "memory":
        _put_in_memory(fs, source, path)
    else:
        _put_and_move(fs, source, path, staging)


def _put_conditionally(fs: Any, protocol: str, source: bytes | Path, path: str) -> None:
    """Upload on the condition that the name is free.

    A client repeats an upload whose answer was lost, and then finds its own object: a tag distinguishes it from that of
    another writer. S3 answers "conflict" while another conditional upload of the name is under way: try again until one
    of them has succeeded.
    """
    writer = uuid.uuid4().hex
    tag = {"Metadata": {_WRITER: writer}} if protocol in _TAGGED else {}
    for attempt in range(_ATTEMPTS):
        try:
            _upload(fs, source, path, mode="create", **tag)
            return
        except (PermissionError, FileNotFoundError):
            raise
        except OSError as error:
            if _exists(fs, path):
                if tag and fs.metadata(path, refresh=True).get(_WRITER) == writer:
                    return
                raise FileExistsError(errno.EEXIST, "exists already", path) from error
            if error.errno != errno.EBUSY and "ConditionalRequestConflict" not in repr(error.__cause__):
                raise
        time.sleep(0.05 * 2**attempt)
    raise OSError(errno.EBUSY, "other writers of this name did not finish", path)


def _put_in_memory(fs: Any, source: bytes | Path, path: str) -> None:
    """Use `dict.setdefault`, which is atomic: the file of the first writer stays."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(fs, path, source if isinstance(source, bytes) else source.read_bytes())
    if fs.store.setdefault(path, mine) is not mine:
        raise FileExistsError(errno.EEXIST, "exists already", path)


def _put_and_move(fs: Any, source: bytes | Path, path: str, staging: str) -> None:
    """Upload to a staging name and move it. Two writers cannot both succeed if the file system's `mv` is exclusive."""
    staged = f"{staging}/{uuid.uuid4().hex}"
    fs.makedirs(staging, exist_ok=True)
    try:
        _upload(fs, source, staged)
        _move_new(fs, staged, path)
    except BaseException:
        with suppress(FileNotFoundError):
            fs.rm_file(staged)
        raise


def _move_new(fs: Any, staged: str, path: str) -> None:
    folder = path.rpartition("/")[0]
    for _ in range(_ATTEMPTS):
        try:
            fs.makedirs(folder, exist_ok=True)
        except FileExistsError:
            if fs.isfile(folder):
                raise
            continue  # it existed, and was deleted before fsspec looked at it
        except FileNotFoundError:
            continue  # a folder above it was deleted while it was made
        except NotADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a file is in the way", path) from error
        try:
            if _exists(fs, path):
                raise FileExistsError(errno.EEXIST, "exists already", path)
            fs.mv(staged, path)
            return
        except NotADirectoryError as error:
            raise FileExistsError(errno.EEXIST, "a file is in the way", path) from error
        except FileNotFoundError:
            if not _exists(fs, staged):
                raise
            # else another process deleted the folder between the two calls
    raise OSError(errno.EBUSY, "another process keeps deleting its folder", path)


def _upload(fs: Any, source: bytes | Path, path: str, **options: Any) -> None:
    if isinstance(source, bytes):
        fs.pipe_file(path, source, **options)
    else:
        fs.put_file(str(source), path, **options)


def _exists(fs: Any, path: str) -> bool:
    fs.invalidate_cache()
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    return True
