"""Decide which rows go to which partition. PURE: counts and a seed in, slices out; it never sees a row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# NumPy's hypergeometric draws are exact below this population only.
_EXACT_DRAW_LIMIT = 10**9


class Slice(NamedTuple):
    """`rows` rows of the chunk number `chunk`, from its row `start` on."""

    chunk: int
    start: int
    rows: int


def generator(*key: str | int) -> np.random.Generator:
    """The random generator of this key: the same on every machine and in every process.

    >>> int(generator("rows", 7).integers(1000)) == int(generator("rows", 7).integers(1000))
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def partition_sizes(rows: int, partitions: int) -> list[int]:
    """Sizes that differ by at most one and add up to `rows`.

    >>> partition_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, longer = divmod(rows, partitions)
    return [size + 1] * longer + [size] * (partitions - longer)


def validation_rows(rows: int, fraction: float) -> int:
    """How many of `rows` rows a fraction is, rounded to the nearest.

    >>> validation_rows(1000, 0.25)
    250
    """
    return int(rows * fraction + 0.5)


def deal(counts: Sequence[int], sizes: Sequence[int], seed: int) -> list[list[Slice]]:
    """Give each partition its slices of the chunks, so that partition p gets exactly `sizes[p]` rows.

    Chunks hold their rows in random order. How many rows of each chunk go to each partition is drawn from the
    multivariate hypergeometric distribution, so that together every assignment of rows to partitions is equally
    likely, as if all rows had been shuffled in one place.

    >>> hands = deal([3, 3], [2, 2, 2], seed=0)
    >>> [sum(piece.rows for piece in hand) for hand in hands]
    [2, 2, 2]
    """
    if sum(counts) != sum(sizes):
        raise ValueError(f"{sum(counts)} rows cannot fill partitions of {sum(sizes)} rows")
    draw = generator("deal", seed)
    room = np.asarray(sizes, dtype=np.int64)
    hands: list[list[Slice]] = [[] for _ in sizes]
    for chunk, count in enumerate(counts):
        shares = _shares(room, count, draw)
        room = room - shares
        start = 0
        for partition in np.flatnonzero(shares):
            rows = int(shares[partition])
            hands[partition].append(Slice(chunk, start, rows))
            start += rows
    return hands


def _shares(room: NDArray[np.int64], count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    total = int(room.sum())
    if total < _EXACT_DRAW_LIMIT:
        return draw.multivariate_hypergeometric(room, count, method="marginals")
    return _proportional_shares(room, count, total, draw)


def _proportional_shares(
    room: NDArray[np.int64], count: int, total: int, draw: np.random.Generator
) -> NDArray[np.int64]:
    exact = [int(places) * count for places in room]
    shares = np.array([share // total for share in exact], dtype=np.int64)
    left = count - int(shares.sum())
    # A random tie-break among the largest remainders keeps any one partition from being favoured chunk after chunk.
    remainders = np.array([(share % total) / total for share in exact]) + draw.random(len(exact)) * 1e-9
    open_places = np.where(shares < room, remainders, -1.0)
    shares[np.argsort(-open_places, kind="stable")[:left]] += 1
    return shares
