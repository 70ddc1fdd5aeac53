"""The files that `writer` and `reader` blocks hand out. They translate a client's errors, never the caller's."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from cerebro_spark.errors import StoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

Guard = Callable[[], AbstractContextManager[None]]


class StagedFile(io.BufferedIOBase, BinaryIO):
    """A file being written: it counts bytes, and remembers a failed write so that half a blob is never committed.

    Closing it inside the block (as some libraries do with the files they are given) only flushes.
    """

    def __init__(self, inner: BinaryIO, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard
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
        """End the writing: raises again what a write raised, also when the block caught it."""
        self.close()
        if self._failure is not None:
            raise self._failure

    def _attempt(self, act: Callable[[], Any]) -> None:
        try:
            with self._guard():
                act()
        except StoreError as failure:
            self._failure = failure
            raise


class _GuardedReader(io.RawIOBase):
    """A seekable file of a client library whose errors come out as store errors."""

    def __init__(self, inner: BinaryIO, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._inner.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._guard():
            self._inner.seek(offset, whence)
            return self._inner.tell()

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        with self._guard():
            data = self._inner.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        with self._guard():
            return self._inner.read(-1)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def guarded_reader(inner: BinaryIO, guard: Guard) -> BinaryIO:
    """A buffered reader over a client's file; it closes that file when it is closed."""
    return cast(BinaryIO, io.BufferedReader(_GuardedReader(inner, guard), buffer_size=1 << 20))
