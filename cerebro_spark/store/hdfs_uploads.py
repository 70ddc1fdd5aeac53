"""Creates a blob on HDFS: a staging file, closed, then renamed. It never renames over an existing file."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from cerebro_spark.errors import StoreError
from cerebro_spark.store.files import move_new
from cerebro_spark.store.hdfs_clients import hdfs_error_kind
from cerebro_spark.store.hdfs_patience import PIECE, NewFile, PatientClient
from cerebro_spark.store.webhdfs import WebHdfs

_log = logging.getLogger(__name__)

# By attempt, the seconds to wait for a few bytes. Healthy data nodes take milliseconds; one that is gone without a word
# must not keep a driver from its log for a minute. If all are slow, later attempts have the time.
_PATIENCE = (4.0, 4.0, 4.0, 8.0, 16.0, 30.0, 60.0, 60.0)
# A name node hands out a data node that was just killed until it misses it. Such a node refuses at once, so that many
# attempts take no time: they go on for so many seconds at least, with pauses that double so many times.
_REFUSED_FOR = 20.0
_DOUBLED = 4
# What is no larger than that is sent to other data nodes, too, when nobody has confirmed it for a while: so many times
# at once. The name node chooses them by chance, and where one of four is gone every second choice has it. The whiles
# double with every second attempt, so many times: all may only be slow.
_FEW = 1 << 20
_AT_ONCE = 6
_SLOWER = 2
_MIB, _GIB = 1 << 20, 1 << 30


def upload_new(client: PatientClient, source: bytes | memoryview | Path, staged: str, target: str) -> None:
    """Create a file with the bytes of `source`.

    Args:
        client: The connection to HDFS.
        source: The bytes, or a local file.
        staged: The path to write to first.
        target: The path of the new file.

    Raises:
        FileExistsError: If `target` exists.
    """
    written = _upload(client, source, staged)
    try:
        move_new(
            lambda: client.make_folder(target.rpartition("/")[0]),
            lambda: client.rename_new(written, target),
            lambda: client.status(written) is not None,
        )
    except BaseException:
        client.delete(written)
        raise


def _upload(client: PatientClient, source: bytes | memoryview | Path, staged: str) -> str:
    """Write a staging file, and return its path; start again if a data node is dead that counts as alive.

    The native client continues without a node that dies in the middle of a block, but fails, or waits for ever, if the
    first node of a new block does not answer. The next attempt gets other nodes, and a file of its own: an attempt that
    waited may still go on. Every second attempt takes the detour, if there is one: the name node would name the data
    node of this host again, as long as it does not know that it is dead.
    """
    return _Attempts(client, source, staged).until_one_succeeds()


class _Attempts:
    """Writes staging files until one is whole, and deletes the others.

    Args:
        client: The connection to HDFS.
        source: What is written.
        staged: What the paths of the files begin with.
    """

    def __init__(self, client: PatientClient, source: bytes | memoryview | Path, staged: str) -> None:
        self._client = client
        self._source = source
        self._staged = staged
        size = source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes
        self._block_size = block_size(size)
        self._at_once = _AT_ONCE if size <= _FEW else 1
        self._began = time.monotonic()
        self._count = 0
        self._running: list[_Attempt] = []
        self._error: BaseException | None = None
        """Why the last attempt failed that the client made itself."""
        self._ended: SimpleQueue[tuple[_Attempt, BaseException | None]] = SimpleQueue()

    def until_one_succeeds(self) -> str:
        """Return the path of a file that is whole. Raises the error of the last attempt if none is."""
        try:
            while True:
                self._start()
                ended = self._wait()
                if ended is None:
                    continue  # nobody has answered for a while: one more beside those that wait
                attempt, error = ended
                if error is None:
                    if attempt.is_detour:
                        _log.info("%s was written over WebHDFS: data nodes that were named first fail", attempt.path)
                    return attempt.path
                attempt.give_up()
                if not attempt.is_detour or self._error is None:
                    self._error = error
                if not self._may_go_on(attempt, error):
                    raise self._error
                time.sleep(random.uniform(0.05, 0.1) * 2 ** min(self._count - 1, _DOUBLED))
        finally:
            for attempt in self._running:
                attempt.give_up()

    def _start(self) -> None:
        patience = _PATIENCE[min(self._count, len(_PATIENCE) - 1)]
        detour = self._client.detour if self._count % 2 else None
        if detour is not None and not detour.is_open:
            detour = None
        attempt = _Attempt(self._client, f"{self._staged}-{self._count}", self._block_size, patience, detour)
        self._count += 1
        self._running.append(attempt)

        def write() -> None:
            began = time.monotonic()
            try:
                attempt.write(self._source)
            except BaseException as error:
                self._ended.put((attempt, error))
            else:
                if self._at_once > 1 and not attempt.is_detour:
                    self._client.pace.note(time.monotonic() - began)
                self._ended.put((attempt, None))

        if self._at_once == 1:
            write()
        else:
            threading.Thread(target=write, name="hdfs upload", daemon=True).start()

    def _wait(self) -> tuple[_Attempt, BaseException | None] | None:
        """Return the next attempt that ends, with its error; None if another one is to begin meanwhile."""
        try:
            ended = self._ended.get(timeout=self._pause if len(self._running) < self._at_once else None)
        except Empty:
            return None
        self._running.remove(ended[0])
        return ended

    @property
    def _pause(self) -> float:
        """Seconds after which another attempt begins beside those that wait."""
        return self._client.pace.silent * 2.0 ** min((self._count - 1) // 2, _SLOWER)

    def _may_go_on(self, attempt: _Attempt, error: BaseException) -> bool:
        if not attempt.is_detour and not (attempt.has_file and _is_of_data_nodes(error)):
            return False  # it is the name node's, and final
        return self._count < len(_PATIENCE) or time.monotonic() - self._began < _REFUSED_FOR


class _Attempt:
    """One attempt to write a staging file. Another thread than that which writes may give it up.

    Args:
        client: The connection to HDFS.
        path: The path of the file.
        size: The size of its block.
        patience: How many seconds data nodes may take for a few bytes.
        detour: What writes the file, if it is not the client.
    """

    def __init__(
        self, client: PatientClient, path: str, size: int, patience: float, detour: WebHdfs | None = None
    ) -> None:
        self.path = path
        self._client = client
        self._size = size
        self._patience = patience
        self._detour = detour
        self._lock = threading.Lock()
        self._file: NewFile | None = None
        self._given_up = False

    @property
    def has_file(self) -> bool:
        """Whether the name node has made the file."""
        return self._file is not None

    @property
    def is_detour(self) -> bool:
        """Whether another way is tried, whose errors say nothing of the client's own."""
        return self._detour is not None

    def write(self, source: bytes | memoryview | Path) -> None:
        """Write the whole file."""
        if self._detour is not None:
            self._detour.write(self.path, source, self._size, self._patience)
            with self._lock:
                late = self._given_up
            if late:  # it was deleted before it was there
                self._delete()
            return
        file = self._client.create(self.path, self._size, self._patience)
        with self._lock:
            self._file = file
            late = self._given_up
        if late:  # it was given up, and deleted, before it was made
            self._delete()
            return
        for piece in _pieces(source):
            file.write(piece)
        file.close()

    def give_up(self) -> None:
        """Delete the file, whether it is whole or still being written."""
        with self._lock:
            self._given_up, file = True, self._file
        if file is not None:
            file.abandon()
        self._delete()

    def _delete(self) -> None:
        # This is allowed for an open file, and ends its lease.
        self._client.delete(self.path)


def _is_of_data_nodes(error: BaseException) -> bool:
    return isinstance(error, OSError | RuntimeError) and hdfs_error_kind(error) is StoreError


def block_size(size: int) -> int:
    """Return a block size that makes the whole blob one block, up to 1 GiB.

    Then each of its hosts has all of it: a worker there reads its partition from its own disk, and an upload depends on
    one choice of nodes only.

    >>> block_size(10), block_size(300_000_000) // 2**20, block_size(5 * 2**30) // 2**20
    (1048576, 287, 1024)
    """
    return min(max(-(-size // _MIB), 1) * _MIB, _GIB)


def _pieces(source: bytes | memoryview | Path) -> Iterator[bytes]:
    """Yield the bytes in pieces that are copies.

    For a memoryview the native client needs a core eight times as long, and lets no other thread run meanwhile.
    """
    if isinstance(source, Path):
        with open(source, "rb") as file:
            while piece := file.read(PIECE):
                yield piece
    else:
        view = memoryview(source).cast("B")
        for start in range(0, len(view), PIECE):
            yield bytes(view[start : start + PIECE])
