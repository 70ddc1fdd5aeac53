"""Every random order of rows, decided by a seed: the same on every machine, in every process and in every version."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_WORDS = 1 << 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seeded_generator(*key: str | int) -> np.random.Generator:
    """Return the random generator of a key.

    >>> int(seeded_generator("rows", 7).integers(1000)) == int(seeded_generator("rows", 7).integers(1000))
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def row_order(rows: int, seed: int, trial: str, epoch: int, partition: str) -> NDArray[np.int64]:
    """Return the order of the rows of one training unit.

    >>> row_order(4, seed=0, trial="t1", epoch=1, partition="train-00000").tolist() == list(range(4))
    False
    """
    return seeded_generator("rows", seed, trial, epoch, partition).permutation(rows)


def record_order(records: NDArray[Any], seed: int) -> NDArray[np.int64]:
    """Return a random order of records of whole 64-bit words that does not depend on the order they came in.

    >>> a = np.arange(5.0).view("V8")
    >>> sorted(record_order(a, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = _record_hashes(records, seed)
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    repeats = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    if not len(repeats):
        return order
    # Equal rows would stay together: give the second, third, ... of them keys of their own.
    starts = np.ones(len(ranked), np.bool_)
    starts[repeats] = False
    positions = np.arange(len(ranked))
    occurrence = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    again = np.argsort(_mix(ranked + occurrence.astype(np.uint64) * _GOLDEN), kind="stable")
    return order[again]


def hash_cell(cell: bytes) -> int:
    """Return what stands for an encoded cell in its record while records are put in order."""
    return int.from_bytes(hashlib.blake2b(cell, digest_size=8).digest(), "little", signed=True)


def _record_hashes(records: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    width = records.dtype.itemsize // 8
    words = records.view(np.uint64).reshape(len(records), width)
    draws = seeded_generator("record-hash", seed).integers(0, 2**63, size=width, dtype=np.uint64)
    factors = draws * np.uint64(2) + np.uint64(1)
    hashes = np.empty(len(records), np.uint64)
    step = max(1, _BLOCK_WORDS // width)
    for start in range(0, len(records), step):
        block = words[start : start + step]
        # Bring the high bits down: a product modulo 2**64 would lose what only they tell apart (0.0 and 1.0, say).
        block = block ^ (block >> np.uint64(32))
        block ^= block >> np.uint64(16)
        block ^= block >> np.uint64(8)
        hashes[start : start + step] = block @ factors
    return _mix(hashes)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64: every bit of the input moves every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
