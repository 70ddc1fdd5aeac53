"""Creates a blob on HDFS: a staging file, closed, then renamed. It never renames over an existing file."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from cerebro_spark.errors import StoreError
from cerebro_spark.store.files import move_new
from cerebro_spark.store.hdfs_clients import hdfs_error_kind
from cerebro_spark.store.hdfs_patience import PIECE, NewFile, PatientClient

# By attempt, the seconds to wait for a few bytes. Healthy data nodes take milliseconds; one that is gone without a word
# must not keep a driver from its log for a minute. If all are slow, later attempts have the time.
_PATIENCE = (4.0, 4.0, 4.0, 8.0, 16.0, 30.0, 60.0, 60.0)
# A name node hands out a data node that was just killed until it misses it. Such a node refuses at once, so that many
# attempts take no time: they go on for so many seconds at least, with pauses that double so many times.
_REFUSED_FOR = 20.0
_DOUBLED = 4
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
    """Write the staging file, and return its path; start again if a data node is dead that counts as alive.

    The native client continues without a node that dies in the middle of a block, but fails, or waits for ever, if the
    first node of a new block does not answer. The next attempt gets other nodes, and a file of its own: an attempt that
    waited may still go on.
    """
    size = block_size(source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes)
    began, last = time.monotonic(), len(_PATIENCE) - 1
    for attempt in count():
        path, file = f"{staged}-{attempt}", None
        try:
            file = client.create(path, size, _PATIENCE[min(attempt, last)])
            _write(file, source)
            return path
        except BaseException as error:
            if file is not None:
                file.abandon()
            client.delete(path)  # this is allowed for an open file, and ends its lease
            # Without a file the error is the name node's, and final.
            repeats = file is not None and _is_of_data_nodes(error)
            if not repeats or (attempt >= last and time.monotonic() - began >= _REFUSED_FOR):
                raise
        time.sleep(random.uniform(0.05, 0.1) * 2 ** min(attempt, _DOUBLED))
    raise AssertionError("an attempt returns or raises")


def _is_of_data_nodes(error: BaseException) -> bool:
    return isinstance(error, OSError | RuntimeError) and hdfs_error_kind(error) is StoreError


def _write(file: NewFile, source: bytes | memoryview | Path) -> None:
    for piece in _pieces(source):
        file.write(piece)
    file.close()


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
