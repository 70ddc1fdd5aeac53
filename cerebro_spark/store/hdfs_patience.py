"""A client of HDFS whose calls end. Those of the native client wait for ever for a node that answers no more."""

from __future__ import annotations

import errno
import io
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from typing import BinaryIO, TypeVar, cast

from cerebro_spark.store.files import FileStatus
from cerebro_spark.store.hdfs_clients import HdfsClient
from cerebro_spark.store.streams import RawReader
from cerebro_spark.store.webhdfs import WebHdfs

T = TypeVar("T")

# Seconds. A name node may be busy, and bytes are on their way through several data nodes; HDFS' own client gives both
# as many. Whoever reads had better ask again, and gets another data node.
_FOR_NAMES = 60.0
_TO_WRITE = 60.0
_TO_READ = 20.0
# Bytes and files that one wait is for.
PIECE = 4 << 20
_LISTED = 1000
# A data node that says nothing for so many seconds, and one more for each MiB, may be gone: others are asked, too. The
# name node says which ones, and may name the silent one again, so a read asks up to so many times.
SILENT = 1.0
_ASKED = 7
# Few bytes are known to take some time once so many times were measured; the last ones count. Data nodes that take so
# many times as long as usual are silent already, but not before so many seconds.
_KNOWN, _REMEMBERED = 8, 32
_UNUSUAL = 4.0
_LEAST_SILENT = 0.25


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
    return soonest(seconds, [act], seconds, nothing)


def soonest(seconds: float, acts: Sequence[Callable[[], T]], silent: float, nothing: str) -> T:
    """Return what the first of some calls returns that returns anything, or raise what the last one raises.

    Args:
        seconds: How long to wait in all.
        acts: Each is called in a thread of its own, which is left to itself when another one has returned.
        silent: Seconds without an answer after which the next one is called, beside those before it. From the fourth
            on that is twice as many, three times, and so on: all may only be slow.
        nothing: What the error says has not happened by then.

    Raises:
        TimeoutError: If the time is over.

    >>> soonest(5, [lambda: threading.Event().wait(1), lambda: "soon"], 0.01, "nothing was found")
    'soon'
    """
    outcomes: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()

    def call(act: Callable[[], T]) -> None:
        try:
            outcomes.put((act(),))
        except BaseException as error:
            outcomes.put(error)

    end, begun, failed = time.monotonic() + seconds, 0, 0
    while True:
        if begun < len(acts):
            threading.Thread(target=call, args=(acts[begun],), name="hdfs", daemon=True).start()
            begun += 1
        left = end - time.monotonic()
        try:
            pause = silent * max(1, begun - 2) if begun < len(acts) else left
            found = outcomes.get(timeout=max(0.0, min(left, pause)))
        except Empty:
            if begun == len(acts) or time.monotonic() >= end:
                raise TimeoutError(f"{nothing} within {seconds:g} s") from None
            continue
        if not isinstance(found, BaseException):
            return found[0]
        failed += 1
        if failed == begun:
            raise found


class Pace:
    """How long data nodes usually take to confirm a few bytes. Any thread may use it.

    >>> pace = Pace()
    >>> pace.silent
    1.0
    >>> for _ in range(8):
    ...     pace.note(0.1)
    >>> pace.silent
    0.4
    """

    def __init__(self) -> None:
        self._seconds: tuple[float, ...] = ()

    def note(self, seconds: float) -> None:
        """It took so many seconds."""
        self._seconds = (*self._seconds, seconds)[-_REMEMBERED:]

    @property
    def silent(self) -> float:
        """Seconds after which data nodes that have not confirmed a few bytes may be gone."""
        known = self._seconds
        if len(known) < _KNOWN:
            return SILENT
        return min(SILENT, max(_LEAST_SILENT, _UNUSUAL * statistics.median(known)))


class PatientClient:
    """Calls another client, each time for so long only. A call that took too long raises TimeoutError.

    What was asked for may still happen: a call that waits cannot be taken back.

    Args:
        client: The client to call.
        detour: Another way to write and read, if the client cannot leave out a data node. Defaults to None.

    Attributes:
        detour: That way.
        pace: How long its data nodes usually take for a few bytes.
    """

    def __init__(self, client: HdfsClient, detour: WebHdfs | None = None) -> None:
        self._client = client
        self.detour = detour
        self.pace = Pace()

    # The methods of HdfsClient.

    def status(self, path: str) -> FileStatus | None:
        return _answer(lambda: self._client.status(path))

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        found = self._client.list_folder(folder)
        while some := _answer(lambda: tuple(islice(found, _LISTED))):
            yield from some

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _PatientReader(lambda: self._client.open(path), path, self.detour))

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
    """A file whose bytes come piece by piece. After a wait that was too long it cannot be used.

    Args:
        open_file: Opens the file, as often as it is called. Its bytes never change.
        path: Its path.
        detour: Another way to its bytes, if there is one.
    """

    def __init__(self, open_file: Callable[[], BinaryIO], path: str, detour: WebHdfs | None) -> None:
        self._open_file = open_file
        self._path = path
        self._detour = detour
        self._file: BinaryIO | _Around = _answer(open_file)
        self._size = self._file.seek(0, os.SEEK_END) or self._file.tell()  # some clients' `seek` returns nothing
        self._file.seek(0)

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
        place, file = self._file.tell(), self._file

        def go_on() -> tuple[BinaryIO | _Around, bytes]:
            return file, file.read(count)

        def begin_anew() -> tuple[BinaryIO | _Around, bytes]:
            other = self._open_file()
            other.seek(place)
            return other, other.read(count)

        def go_around() -> tuple[BinaryIO | _Around, bytes]:
            if self._detour is None or not self._detour.is_open:
                return begin_anew()
            other = _Around(self._detour, self._path, self._size)
            other.seek(place)
            return other, other.read(count)

        # Whoever begins anew may be sent to the same data node, above all to that of this host.
        acts = [go_on, *[go_around, begin_anew] * (_ASKED // 2)]
        silent = SILENT + max(0, min(count, self._size - place)) / (1 << 20)
        self._file, piece = soonest(_TO_READ, acts, silent, "the data nodes sent no bytes")
        return piece


class _Around:
    """A file that is read by way of other hosts' data nodes.

    Args:
        detour: How it is read.
        path: Its path.
        size: Its bytes.
    """

    def __init__(self, detour: WebHdfs, path: str, size: int) -> None:
        self._detour = detour
        self._path = path
        self._size = size
        self._place = 0

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def read(self, count: int) -> bytes:
        wanted = min(count, self._size - self._place)
        if wanted <= 0:
            return b""
        piece = self._detour.read(self._path, self._place, wanted, _TO_READ)
        if len(piece) != wanted:
            raise OSError(errno.EIO, f"WebHDFS sent {len(piece)} bytes for {wanted}")
        self._place += wanted
        return piece


class NewFile:
    """A file that is being written. It is whole only when `close` has returned.

    Args:
        file: The client's file.
        patience: How many seconds to wait for a few bytes; a whole piece has twice the time. It is never more than a
            minute.
    """

    def __init__(self, file: BinaryIO, patience: float) -> None:
        self._file = file
        self._patience = patience
        self._limit = min(_TO_WRITE, patience)

    def write(self, piece: bytes) -> None:
        """Add bytes, a piece of them at most."""
        # A small last piece waits behind those that are still on their way.
        self._limit = max(self._limit, min(_TO_WRITE, self._patience * (1 + len(piece) / PIECE)))
        within(self._limit, lambda: self._file.write(piece), "the data nodes took no bytes")

    def close(self) -> None:
        """Make the file whole."""
        within(self._limit, self._file.close, "the data nodes did not confirm the last bytes")

    def abandon(self) -> None:
        """Never close the file, not even when Python frees it: that could wait for a dead data node."""
        if isinstance(self._file, io.RawIOBase):
            # It counts as closed from now on, but what the client does to close it is not done.
            io.RawIOBase.close(self._file)
