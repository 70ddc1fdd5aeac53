"""Digests of training states. They are kept in event logs: what they count must never change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cerebro_spark.trainer.checkpoints.arrays import StateArray

GENERATORS = "rng/"
"""The names of the arrays that hold states of random generators begin with it."""
_UNCOUNTED = ("rng", "trial", "versions")
_THREAD_BYTES = 1 << 20


class StateDigest:
    """One digest over named arrays, in any order, and the JSON part of the state.

    Large arrays are hashed in a thread while the caller goes on. Generators, the name of the trial and versions do not
    count: they do not say what was learned.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._parts: dict[str, bytes | Future[bytes]] = {}

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Count an array, unless it is the state of a generator. It must not change before `wait`."""
        if name.startswith(GENERATORS):
            return
        label = f"{name}|{dtype}|{list(shape)}|"
        if len(data) < _THREAD_BYTES:
            self._parts[name] = _hash_array(label, data)
            return
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._parts[name] = self._pool.submit(_hash_array, label, data)

    def add_meta(self, meta: Any) -> None:
        """Count the JSON part: learning rates, schedules, counters."""
        kept = {k: v for k, v in meta.items() if k not in _UNCOUNTED} if isinstance(meta, dict) else meta
        self._parts["\0meta"] = _hash_array("meta|", memoryview(json.dumps(kept, sort_keys=True).encode()))

    def has(self, name: str) -> bool:
        return name in self._parts

    def wait(self) -> None:
        """Wait until every array added so far is hashed, so that its memory may be freed."""
        for name, part in self._parts.items():
            if isinstance(part, Future):
                self._parts[name] = part.result()

    def hexdigest(self) -> str:
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
        total = hashlib.sha256()
        for _, part in sorted(self._parts.items()):
            total.update(part if isinstance(part, bytes) else part.result())
        return total.hexdigest()[:32]


def compute_digest(arrays: Sequence[StateArray], meta: Any) -> str:
    """Return the digest that a checkpoint of this state would have, without writing one.

    >>> import io
    >>> from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
    >>> arrays = [StateArray("model/w", "U8", (2,), lambda: memoryview(bytes(2)))]
    >>> compute_digest(arrays, {"epoch": 1}) == write_checkpoint(io.BytesIO(), arrays, {"epoch": 1}).digest
    True
    """
    digest = StateDigest()
    digest.add_meta(meta)
    for array in arrays:
        data = array.data()
        if data.nbytes:
            digest.add(array.name, array.dtype, array.shape, as_bytes(data))
            digest.wait()
    return digest.hexdigest()


def compute_rest_digest(generators: Mapping[str, memoryview | bytearray], meta: Any) -> str:
    """Return a digest of what StateDigest does not count, so that damage to it is found too."""
    left_out = {key: meta.get(key) for key in _UNCOUNTED} if isinstance(meta, dict) else None
    total = hashlib.sha256(json.dumps(left_out, sort_keys=True).encode())
    for name, data in sorted(generators.items()):
        total.update(f"|{name}|".encode())
        total.update(data)
    return total.hexdigest()[:32]


def as_bytes(data: memoryview) -> memoryview:
    """Return a view of the same memory whose items are single bytes."""
    return data.cast("B") if data.format != "B" or data.ndim != 1 else data


def _hash_array(label: str, data: memoryview) -> bytes:
    # SHA-256, because processors have instructions for it: three times as fast here as blake2b.
    part = hashlib.sha256(label.encode())
    part.update(data)
    return part.digest()
