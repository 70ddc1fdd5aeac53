"""How a new blob gets its name on HDFS: staged, closed, renamed. It never renames over an existing file."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from cerebro_spark.errors import StoreError
from cerebro_spark.store.hdfs_clients import HdfsClient, failure_kind

_PIECE = 4 << 20
_ATTEMPTS = 8
_MIB, _GIB = 1 << 20, 1 << 30


def put_new(client: HdfsClient, source: bytes | memoryview | Path, staged: str, target: str) -> None:
    """Create `target` with the bytes of `source`, by way of `staged`, or raise FileExistsError when it exists."""
    try:
        _upload(client, source, staged)
        _rename(client, staged, target)
    except BaseException:
        # Deleting an open file is allowed and ends its lease; closing it could hang on a dead data node.
        client.delete(staged)
        raise


def _upload(client: HdfsClient, source: bytes | memoryview | Path, staged: str) -> None:
    """Write the staging file, anew when a data node that the name node believes in is dead.

    The native client goes on without a node that dies in the middle of a block, but gives up when the first node of a
    new block does not answer: another try is given other nodes.
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
            if failure_kind(error) is not StoreError or attempt == _ATTEMPTS - 1:
                raise
        client.delete(staged)
        time.sleep(random.uniform(0.05, 0.1) * 2**attempt)


def block_size(size: int) -> int:
    """Blocks so large that the whole blob is one, up to 1 GiB: then it lies whole on each of its hosts.

    A worker on such a host reads all of its partition from its own disk, and an upload depends on one choice of nodes.

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


def _rename(client: HdfsClient, staged: str, target: str) -> None:
    for attempt in range(20):
        try:
            client.make_folder(target.rpartition("/")[0])
            client.rename_new(staged, target)
            return
        except FileNotFoundError:
            if client.info(staged) is None:
                raise
        # Somebody deleted the target's folder between the two calls: fall out of step with them.
        time.sleep(random.uniform(0, 0.001 * (attempt + 1)))
    raise OSError(f"the folder of {target} is deleted again and again by somebody else")
