"""A client of HDFS whose calls end. Those of the native client wait for ever for a node that answers no more."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from queue import Empty, SimpleQueue
from typing import BinaryIO, TypeVar, cast

from cerebro_spark.store.files import FileStatus
from cerebro_spark.store.hdfs_clients import HdfsClient
from cerebro_spark.store.streams import RawReader

T = TypeVar("T")

# Seconds. A name node may be busy, and bytes are on their way through several data nodes; HDFS' own client gives both
# as many. Whoever reads had better ask again, and gets another data node.
_FOR_NAMES = 60.0
_TO_WRITE = 60.0
_TO_READ = 20.0
# The least bytes in a second that data nodes take who are well.
_SLOWEST = 100_000
# Bytes and files that one wait is for.
PIECE = 4 << 20
_LISTED = 1000


def within(seconds: float, act: Callable[[], T], nothing: str) -> T:
    """Return what `act` returns, or raise what it raises.

    Args:
        seconds: How long to wait for it.
        act: Called in a thread of its own, which is left to itself when the time is over.
        nothing: What the error says has not happened by then.

    Raises:
        TimeoutError: If the time is over.

    >>> within(5, lambda: 1 + 1, "sums were found")
    2
    """
    outcome: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()

    def call() -> None:
        try:
            outcome.put((act(),))
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=call, name="hdfs", daemon=True).start()
    try:
        found = outcome.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"{nothing} within {seconds:g} s") from None
    if isinstance(found, BaseException):
        raise found
    return found[0]


class PatientClient:
    """Calls another client, each time for so long only. A call that took too long raises TimeoutError.

    What was asked for may still happen: a call that waits cannot be taken back.

    Args:
        client: The client to call.
    """

    def __init__(self, client: HdfsClient) -> None:
        self._client = client

    # The methods of HdfsClient.

    def status(self, path: str) -> FileStatus | None:
        return _answer(lambda: self._client.status(path))

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        found = self._client.list_folder(folder)
        while some := _answer(lambda: tuple(islice(found, _LISTED))):
            yield from some

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _PatientReader(_answer(lambda: self._client.open(path))))

    def create(self, path: str, block_size: int, patience: float) -> NewFile:
        return NewFile(_answer(lambda: self._client.create(path, block_size)), patience)

    def make_folder(self, path: str) -> None:
        _answer(lambda: self._client.make_folder(path))

    def rename_new(self, source: str, target: str) -> None:
        _answer(lambda: self._client.rename_new(source, target))

    def delete(self, path: str) -> None:
        _answer(lambda: self._client.delete(path))


def _answer(act: Callable[[], T]) -> T:
    return within(_FOR_NAMES, act, "the name node did not answer")


class _PatientReader(RawReader):
    """A file whose bytes come piece by piece. After a wait that was too long it cannot be used."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def read(self, count: int | None = -1) -> bytes:
        return self.readall() if count is None or count < 0 else b"".join(self._pieces(count))

    def readall(self) -> bytes:
        return b"".join(self._pieces(None))

    def _read(self, count: int) -> bytes:
        return self.read(count)

    def _pieces(self, count: int | None) -> Iterator[bytes]:
        """Yield that many bytes, or all; fewer if the file ends before."""
        left = count
        while left is None or left > 0:
            piece = self._piece(PIECE if left is None else min(left, PIECE))
            if not piece:
                return
            yield piece
            left = None if left is None else left - len(piece)

    def _piece(self, count: int) -> bytes:
        return within(_TO_READ, lambda: self._file.read(count), "the data nodes sent no bytes")


class NewFile:
    """A file that is being written. It is whole only when `close` has returned.

    Args:
        file: The client's file.
        patience: How many seconds to wait for a few bytes; more have more time, but never more than a minute.
    """

    def __init__(self, file: BinaryIO, patience: float) -> None:
        self._file = file
        self._patience = patience
        self._limit = min(_TO_WRITE, patience)

    def write(self, piece: bytes) -> None:
        """Add bytes, of which there should be few enough to be sent in a minute."""
        # A small last piece waits behind those that are still on their way.
        self._limit = max(self._limit, min(_TO_WRITE, self._patience + len(piece) / _SLOWEST))
        within(self._limit, lambda: self._file.write(piece), "the data nodes took no bytes")

    def close(self) -> None:
        """Make the file whole."""
        within(self._limit, self._file.close, "the data nodes did not confirm the last bytes")

    def abandon(self) -> None:
        """Never close the file, not even when Python frees it: that could wait for a dead data node."""
        if isinstance(self._file, io.RawIOBase):
            # It counts as closed from now on, but what the client does to close it is not done.
            io.RawIOBase.close(self._file)
