"""Digests of training states. They are kept in event logs: what they count must never change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cerebro_spark.errors import CheckpointError
from cerebro_spark.trainer.checkpoints.arrays import StateArray

GENERATORS = "rng/"
"""The names of the arrays that hold states of random generators begin with it."""
_UNCOUNTED = ("rng", "trial", "versions")
_THREAD_BYTES = 1 << 20


class StateDigest:
    """One digest over named arrays, in any order, and `meta`, the JSON part: learning rates, schedules, counters.

    Large arrays are hashed in a thread while the caller goes on. Generators, the name of the trial and versions do not
    count: they do not say what was learned.
    """

    def __init__(self, meta: Any) -> None:
        self._pool: ThreadPoolExecutor | None = None
        kept = {k: v for k, v in meta.items() if k not in _UNCOUNTED} if isinstance(meta, dict) else meta
        text = json.dumps(kept, sort_keys=True).encode()
        self._parts = {"\0meta": _hash_array("meta|", memoryview(text))}
        self._hashing: dict[str, Future[bytes]] = {}

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Count an array, unless it is the state of a generator. It must not change before `wait`."""
        if name.startswith(GENERATORS):
            return
        label = f"{name}|{dtype}|{list(shape)}|"
        if len(data) < _THREAD_BYTES:
            self._parts[name] = _hash_array(label, data)
            return
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._hashing[name] = self._pool.submit(_hash_array, label, data)

    def has(self, name: str) -> bool:
        return name in self._parts or name in self._hashing

    def wait(self) -> None:
        """Wait until every array added so far is hashed, so that its memory may be freed."""
        self._parts |= {name: part.result() for name, part in self._hashing.items()}
        self._hashing.clear()

    def hexdigest(self) -> str:
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
        return hashlib.sha256(b"".join(part for _, part in sorted(self._parts.items()))).hexdigest()[:32]


def compute_digest(arrays: Sequence[StateArray], meta: Any, write: Callable[[memoryview], None] | None = None) -> str:
    """Return the digest of a state, without its generators.

    Args:
        arrays: The arrays. Each is fetched, hashed and freed before the next one.
        meta: The JSON part of the state.
        write: Called with the bytes of each array while they are hashed. Default: nothing is written.

    Raises:
        CheckpointError: The bytes of an array do not fit its dtype and shape.

    >>> import io
    >>> from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
    >>> arrays = [StateArray("model/w", "U8", (2,), lambda: memoryview(bytes(2)))]
    >>> compute_digest(arrays, {"epoch": 1}) == write_checkpoint(io.BytesIO(), arrays, {"epoch": 1}).digest
    True
    """
    digest = StateDigest(meta)
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
        digest.wait()


def compute_rest_digest(generators: Mapping[str, memoryview | bytearray], meta: Any) -> str:
    """Return a digest of what StateDigest does not count, so that damage to it is found too."""
    left_out = {key: meta.get(key) for key in _UNCOUNTED} if isinstance(meta, dict) else None
    total = hashlib.sha256(json.dumps(left_out, sort_keys=True).encode())
    for name, data in sorted(generators.items()):
        total.update(f"|{name}|".encode())
        total.update(data)
    return total.hexdigest()[:32]


def _hash_array(label: str, data: memoryview) -> bytes:
    # SHA-256, because processors have instructions for it: three times as fast here as blake2b.
    part = hashlib.sha256(label.encode())
    part.update(data)
    return part.digest()
