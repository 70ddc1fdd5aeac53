"""Blobs on their way to a store, in temporary files of this machine; and those that dead processes left there.

Bytes on the way over a network cannot be sent twice; a file can.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cerebro_spark.store.streams import StagedBlob

_PREFIX = "cerebro-upload-"


class SpooledBlob(StagedBlob):
    """A blob in a temporary file. The file is locked until the blob is discarded: so it shows that it is in use.

    Args:
        handle: A handle of the file, which is closed with the blob.
        path: The path of the file.
        upload: Called with that path when the blob is committed.
    """

    def __init__(self, handle: int, path: Path, upload: Callable[[Path], None]) -> None:
        self._lock = os.fdopen(handle, "rb")
        with suppress(OSError):  # not every file system has locks; without one its age protects the file
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        super().__init__(path, upload)

    def discard(self) -> None:
        super().discard()
        self._lock.close()


def spool(upload: Callable[[Path], None]) -> StagedBlob:
    """Return a blob in a temporary file, for stores whose upload may have to be repeated."""
    handle, path = tempfile.mkstemp(prefix=_PREFIX)
    return SpooledBlob(handle, Path(path), upload)


def find_abandoned(older_than: float) -> dict[Path, int]:
    """Return the temporary files of this user that nobody writes or uploads any more, with their bytes.

    Args:
        older_than: The seconds since the last write from which on a file counts.
    """
    found = {}
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(FileNotFoundError):  # its upload has ended meanwhile
            about = path.lstat()
            mine = stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()
            if mine and time.time() - about.st_mtime >= older_than and not _is_locked(path):
                found[path] = about.st_size
    return found


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
