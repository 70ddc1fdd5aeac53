"""The files behind `Store.writer` and `Store.reader`: what is staged, and what the caller writes to and reads from.

They turn errors of a client library into store errors. An error of the caller passes unchanged.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from cerebro_spark.errors import StoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# Makes the block in which a client may fail, see `Store._errors`.
ErrorContext = Callable[[], AbstractContextManager[None]]


class StagedBlob:
    """A blob that is being written to a local file. It becomes visible with `commit`.

    Args:
        path: The path of the file, which this process alone writes.
        publish: Called with the path of the whole file when the blob is committed. Raises FileExistsError if the blob's
            name is taken.
        sync: Whether the bytes must be on disk before `publish` is called.
    """

    def __init__(self, path: Path, publish: Callable[[Path], None], sync: bool = False) -> None:
        self._path = path
        self._publish = publish
        self._sync = sync
        self.file: BinaryIO = open(path, "wb")  # noqa: SIM115 (it outlives this call)

    def commit(self) -> None:
        """Make all bytes visible under the blob's name. Raises FileExistsError if the name is taken."""
        self.file.flush()
        if self._sync:
            os.fsync(self.file.fileno())
        self.file.close()
        self._publish(self._path)

    def staged(self) -> BinaryIO:
        """Open the written bytes for reading: needed when a commit failed."""
        return open(self._path, "rb")

    def discard(self) -> None:
        """Remove the staged bytes, whether they were committed or not."""
        self._path.unlink(missing_ok=True)
        self.file.close()


class BlobWriter(io.BufferedIOBase, BinaryIO):
    """The file that a `writer` block gets. It remembers a failed write, so that half a blob is never committed.

    Closing it inside the block, as some libraries do with the files they are given, only flushes.
    """

    def __init__(self, inner: BinaryIO, errors: ErrorContext) -> None:
        self._inner = inner
        self._errors = errors
        self._position = 0
        self._failure: StoreError | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: ReadableBuffer) -> int:
        if self.closed:
            raise ValueError("write to a closed file")
        count = memoryview(data).nbytes
        self._attempt(lambda: self._inner.write(data))
        self._position += count
        return count

    def flush(self) -> None:
        if not self.closed and self._failure is None:
            self._attempt(self._inner.flush)

    def finish(self) -> None:
        """Close the file, and raise the error of a failed write again, even if the block caught it."""
        self.close()
        if self._failure is not None:
            raise self._failure

    def _attempt(self, act: Callable[[], Any]) -> None:
        try:
            with self._errors():
                act()
        except StoreError as failure:
            self._failure = failure
            raise


class RawReader(io.RawIOBase):
    """A seekable file for reading. A subclass has `seek`, `tell`, and `_read`, which returns up to `count` bytes."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def _read(self, count: int) -> bytes:
        raise NotImplementedError


class _BlobReader(RawReader):
    """A seekable file of a client library. Its errors become store errors."""

    def __init__(self, inner: BinaryIO, errors: ErrorContext) -> None:
        self._inner = inner
        self._errors = errors

    def tell(self) -> int:
        return self._inner.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._errors():
            self._inner.seek(offset, whence)
            return self._inner.tell()

    def readall(self) -> bytes:
        return self._read(-1)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()

    def _read(self, count: int) -> bytes:
        with self._errors():
            return self._inner.read(count)


def open_reader(inner: BinaryIO, errors: ErrorContext) -> BinaryIO:
    """Return a buffered reader over a file of a client library. Closing it closes that file."""
    return cast(BinaryIO, io.BufferedReader(_BlobReader(inner, errors), buffer_size=1 << 20))
