"""Creates a blob on each kind of fsspec file system. No reader ever sees half a blob."""

from __future__ import annotations

import errno
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from cerebro_spark.store.files import move_new

CONDITIONAL = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
"""Protocols whose client uploads atomically, and only if the name is free (`mode="create"`)."""

_TAGGED = frozenset({"s3", "s3a"})
_WRITER = "cerebro-writer"
_ATTEMPTS = 8


def has_folders(protocol: str) -> bool:
    """Return whether the file system has real folders, not only names with slashes."""
    return protocol not in CONDITIONAL and protocol != "memory"


def upload_new(fs: Any, protocol: str, source: bytes | memoryview | Path, path: str, staging: str) -> None:
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


def _put_conditionally(fs: Any, protocol: str, source: bytes | memoryview | Path, path: str) -> None:
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


def _put_in_memory(fs: Any, source: bytes | memoryview | Path, path: str) -> None:
    """Use `dict.setdefault`, which is atomic: the file of the first writer stays."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(fs, path, source.read_bytes() if isinstance(source, Path) else bytes(source))
    if fs.store.setdefault(path, mine) is not mine:
        raise FileExistsError(errno.EEXIST, "exists already", path)


def _put_and_move(fs: Any, source: bytes | memoryview | Path, path: str, staging: str) -> None:
    """Upload to a staging name and move it. Two writers cannot both succeed if the file system's `mv` is exclusive."""
    staged = f"{staging}/{uuid.uuid4().hex}"
    fs.makedirs(staging, exist_ok=True)
    try:
        _upload(fs, source, staged)
        move_new(
            lambda: _make_folder(fs, path.rpartition("/")[0]),
            lambda: _move(fs, staged, path),
            lambda: _exists(fs, staged),
        )
    except BaseException:
        with suppress(FileNotFoundError):
            fs.rm_file(staged)
        raise


def _make_folder(fs: Any, folder: str) -> None:
    try:
        fs.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        if not fs.isfile(folder):
            raise FileNotFoundError(errno.ENOENT, "deleted before fsspec looked at it", folder) from error
        raise


def _move(fs: Any, staged: str, path: str) -> None:
    if _exists(fs, path):
        raise FileExistsError(errno.EEXIST, "exists already", path)
    fs.mv(staged, path)


def _upload(fs: Any, source: bytes | memoryview | Path, path: str, **options: Any) -> None:
    if isinstance(source, Path):
        fs.put_file(str(source), path, **options)
    else:
        fs.pipe_file(path, bytes(source), **options)


def _exists(fs: Any, path: str) -> bool:
    fs.invalidate_cache()
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    return True
