"""Writes checkpoint files, streamed array by array. It never pickles, and never shows half a file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from cerebro_spark.trainer.checkpoints.arrays import StateArray
from cerebro_spark.trainer.checkpoints.digest import DIGEST, GENERATORS, compute_digest, compute_rest_digest
from cerebro_spark.trainer.checkpoints.header import encode_header
from cerebro_spark.types import DigestName

_CHUNK_BYTES = 4 << 20


class SavedCheckpoint(NamedTuple):
    """What was written.

    Attributes:
        bytes: The length of the file.
        digest: The digest of the training state in it: weights, optimizer state, learning rates, schedule and
            counters. Generators, versions and the name of the trial do not count.
    """

    bytes: int
    digest: str


def write_checkpoint(
    target: Path | BinaryIO, arrays: Sequence[StateArray], meta: Any, digest: DigestName = DIGEST
) -> SavedCheckpoint:
    """Write the arrays and the JSON part `meta` of a training state.

    Args:
        target: A path, which appears whole or not at all, or a file open for binary writing.
        arrays: The arrays. Each is fetched once it is written, one at a time.
        meta: Anything that JSON can hold.
        digest: The algorithm of the digest. Defaults to that of runs that begin now.

    Returns:
        The size of the file and the digest of the state.

    Raises:
        CheckpointError: Two arrays have one name, or the bytes of one do not fit its dtype and shape.

    >>> import io
    >>> from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
    >>> file = io.BytesIO()
    >>> data = memoryview(bytes(8))
    >>> saved = write_checkpoint(file, [StateArray("model/w", "F32", (2,), lambda: data)], {"epoch": 1})
    >>> with open_checkpoint(file.getvalue()) as reader:
    ...     reader.meta, reader.spec("model/w")
    ({'epoch': 1}, ('F32', (2,)))
    """
    if not isinstance(target, Path):
        return _write(target, arrays, meta, digest)
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(staged, "xb", buffering=0) as file:
            saved = _write(file, arrays, meta, digest)
            os.fsync(file.fileno())
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)
    return saved


def _write(file: BinaryIO, arrays: Sequence[StateArray], meta: Any, name: DigestName) -> SavedCheckpoint:
    generators = [array for array in arrays if array.name.startswith(GENERATORS) and array.nbytes]
    rest_digest = compute_rest_digest({array.name: array.data().cast("B") for array in generators}, meta)
    header = encode_header(arrays, meta, rest_digest)
    _write_all(file, memoryview(header))
    digest = compute_digest(arrays, meta, name, partial(_write_all, file))
    return SavedCheckpoint(len(header) + sum(array.nbytes for array in arrays), digest)


def _write_all(file: BinaryIO, data: memoryview) -> None:
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        while len(chunk):
            chunk = chunk[file.write(chunk) or 0 :]
