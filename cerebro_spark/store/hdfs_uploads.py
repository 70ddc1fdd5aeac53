"""Creates a blob on HDFS: a staging file, closed, then renamed. It never renames over an existing file."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from cerebro_spark.errors import StoreError
from cerebro_spark.store.files import move_new
from cerebro_spark.store.hdfs_clients import HdfsClient, hdfs_error_kind

_PIECE = 4 << 20
_ATTEMPTS = 8
_MIB, _GIB = 1 << 20, 1 << 30


def upload_new(client: HdfsClient, source: bytes | memoryview | Path, staged: str, target: str) -> None:
    """Create a file with the bytes of `source`.

    Args:
        client: The connection to HDFS.
        source: The bytes, or a local file.
        staged: The path to write to first.
        target: The path of the new file.

    Raises:
        FileExistsError: If `target` exists.
    """
    try:
        _upload(client, source, staged)
        move_new(
            lambda: client.make_folder(target.rpartition("/")[0]),
            lambda: client.rename_new(staged, target),
            lambda: client.status(staged) is not None,
        )
    except BaseException:
        # Deleting an open file is allowed and ends its lease; closing it could hang on a dead data node.
        client.delete(staged)
        raise


def _upload(client: HdfsClient, source: bytes | memoryview | Path, staged: str) -> None:
    """Write the staging file; start again if a data node is dead that the name node takes for alive.

    The native client continues without a node that dies in the middle of a block, but fails if the first node of a new
    block does not answer. The next attempt gets other nodes.
    """
    size = block_size(source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes)
    for attempt in range(_ATTEMPTS):
        file = client.create(staged, size)  # an error here is the name node's, and final
        try:
            for piece in _pieces(source):
                file.write(piece)
            file.close()
            return
        except (OSError, RuntimeError) as error:
            if hdfs_error_kind(error) is not StoreError or attempt == _ATTEMPTS - 1:
                raise
        client.delete(staged)
        time.sleep(random.uniform(0.05, 0.1) * 2**attempt)


def block_size(size: int) -> int:
    """Return a block size that makes the whole blob one block, up to 1 GiB.

    Then each of its hosts has all of it: a worker there reads its partition from its own disk, and an upload depends on
    one choice of nodes only.

    >>> block_size(10), block_size(300_000_000) // 2**20, block_size(5 * 2**30) // 2**20
    (1048576, 287, 1024)
    """
    return min(max(-(-size // _MIB), 1) * _MIB, _GIB)


def _pieces(source: bytes | memoryview | Path) -> Iterator[bytes | memoryview]:
    if isinstance(source, Path):
        with open(source, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    else:
        view = memoryview(source).cast("B")
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
