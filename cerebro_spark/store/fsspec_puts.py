"""How a new blob gets its name on each kind of fsspec file system. None of them ever shows half a blob under a name."""

from __future__ import annotations

import errno
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Protocols whose client uploads atomically, and only where there is nothing yet (`mode="create"`)."""

_TAGGED = frozenset({"s3", "s3a"})
_WRITER = "cerebro-writer"
_ATTEMPTS = 8


def has_folders(protocol: str) -> bool:
    """Whether folders are things of their own there, not just the beginnings of names."""
    return protocol not in CONDITIONAL and protocol != "memory"


def put_new(fs: Any, protocol: str, source: bytes | Path, path: str, staging: str) -> None:
    """Create `path` with the bytes of `source`, or raise FileExistsError when it exists."""
    if protocol in CONDITIONAL:
        _put_conditionally(fs, protocol, source, path)
    elif protocol == "memory":
        _put_in_memory(fs, source, path)
    else:
        _put_and_move(fs, source, path, staging)


def _put_conditionally(fs: Any, protocol: str, source: bytes | Path, path: str) -> None:
    """Upload on the condition that the name is free.

    An upload whose answer was lost is sent again by the client and then finds its own object: a tag tells it from
    another writer's. S3 also answers "conflict" while another conditional upload of the name is on its way: try again
    until it is clear who won.
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
    raise OSError(errno.EBUSY, "other writers of this name neither finished nor gave up", path)


def _put_in_memory(fs: Any, source: bytes | Path, path: str) -> None:
    """One `dict.setdefault`, which is atomic: the first writer's file stays."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(fs, path, source if isinstance(source, bytes) else source.read_bytes())
    if fs.store.setdefault(path, mine) is not mine:
        raise FileExistsError(errno.EEXIST, "exists already", path)


def _put_and_move(fs: Any, source: bytes | Path, path: str, staging: str) -> None:
    """Upload to a staging name and move: whole for readers, and exclusive where the file system's `mv` is."""
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
            continue  # it was there, and was deleted before it could be looked at
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
            # else somebody deleted the folder between the two calls
    raise OSError(errno.EBUSY, "its folder is deleted again and again by somebody else", path)


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
