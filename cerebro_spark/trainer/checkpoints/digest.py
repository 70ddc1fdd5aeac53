"""Digests of training states. They are kept in event logs: what they count must never change.

They tell states apart and find damage. They need not withstand an attack: a user who can write checkpoints into the
store can write the log too. XXH3 is many times as fast as SHA-256, which took most of the time of a checkpoint off a
GPU. A digest begins with the name of its algorithm; those of older runs have none and are SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xxhash

from cerebro_spark.errors import CheckpointError
from cerebro_spark.trainer.checkpoints.arrays import StateArray
from cerebro_spark.types import DigestName

GENERATORS = "rng/"
"""The names of the arrays that hold states of random generators begin with it."""
_UNCOUNTED = ("rng", "trial", "versions")
_HASHES: dict[DigestName, Callable[[bytes], Any]] = {"sha256": hashlib.sha256, "xxh3": xxhash.xxh3_128}
DIGEST: DigestName = "xxh3"
"""The digest of runs that begin now."""


def digest_name(digest: str) -> DigestName:
    """Return the name of the algorithm that a digest was made by.

    Raises:
        CheckpointError: This version does not know it.

    >>> digest_name("xxh3:99aa06d3014798d86001c324468d497f"), digest_name("99aa06d3014798d86001c324468d497f")
    ('xxh3', 'sha256')
    """
    said = digest.rpartition(":")[0] or "sha256"
    for name in _HASHES:
        if name == said:
            return name
    raise CheckpointError(f"{digest!r} is a digest by {said!r}, but this version knows {', '.join(_HASHES)}: update it")


class StateDigest:
    """One digest over named arrays, in any order, and `meta`, the JSON part: learning rates, schedules, counters.

    Generators, the name of the trial and versions do not count: they do not say what was learned.
    """

    def __init__(self, meta: Any, name: DigestName = DIGEST) -> None:
        kept = {k: v for k, v in meta.items() if k not in _UNCOUNTED} if isinstance(meta, dict) else meta
        self._name = name
        self._parts: dict[str, bytes] = {}
        self._hash("\0meta", "meta|", json.dumps(kept, sort_keys=True).encode())

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Count an array, unless it is the state of a generator."""
        if not name.startswith(GENERATORS):
            self._hash(name, f"{name}|{dtype}|{list(shape)}|", data)

    def has(self, name: str) -> bool:
        return name in self._parts

    def hexdigest(self) -> str:
        total = _HASHES[self._name](b"".join(part for _, part in sorted(self._parts.items()))).hexdigest()[:32]
        return total if self._name == "sha256" else f"{self._name}:{total}"

    def _hash(self, name: str, label: str, data: memoryview | bytes) -> None:
        part = _HASHES[self._name](label.encode())
        part.update(data)
        self._parts[name] = part.digest()


def compute_digest(
    arrays: Sequence[StateArray],
    meta: Any,
    name: DigestName = DIGEST,
    write: Callable[[memoryview], None] | None = None,
) -> str:
    """Return the digest of a state, without its generators.

    Args:
        arrays: The arrays. Each is fetched, hashed and freed before the next one.
        meta: The JSON part of the state.
        name: The algorithm. Defaults to that of runs that begin now.
        write: Called with the bytes of each array. Default: nothing is written.

    Raises:
        CheckpointError: The bytes of an array do not fit its dtype and shape.

    >>> import io
    >>> from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
    >>> arrays = [StateArray("model/w", "U8", (2,), lambda: memoryview(bytes(2)))]
    >>> compute_digest(arrays, {"epoch": 1}) == write_checkpoint(io.BytesIO(), arrays, {"epoch": 1}).digest
    True
    """
    digest = StateDigest(meta, name)
    for array in arrays:
        # A call of its own: what it has copied off a device is freed before the next array is fetched.
        _add_array(digest, array, write)
    return digest.hexdigest()


def _add_array(digest: StateDigest, array: StateArray, write: Callable[[memoryview], None] | None) -> None:
    data = array.data()
    if data.nbytes != array.nbytes:
        raise CheckpointError(f"{array.name!r} has {data.nbytes} bytes, but its dtype and shape say {array.nbytes}")
    if data.nbytes:
        data = data.cast("B")
        digest.add(array.name, array.dtype, array.shape, data)
        if write is not None:
            write(data)


def compute_rest_digest(generators: Mapping[str, memoryview | bytearray], meta: Any) -> str:
    """Return a digest of what StateDigest does not count, so that damage to it is found too."""
    left_out = {key: meta.get(key) for key in _UNCOUNTED} if isinstance(meta, dict) else None
    total = hashlib.sha256(json.dumps(left_out, sort_keys=True).encode())
    for name, data in sorted(generators.items()):
        total.update(f"|{name}|".encode())
        total.update(data)
    return total.hexdigest()[:32]
