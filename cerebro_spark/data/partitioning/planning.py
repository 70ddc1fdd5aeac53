"""Decide which rows go to which partition, from row counts and a seed alone. PURE: it never sees a row or a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.dataset import partition_id
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.partitioning.spec import PrepareSpec
from cerebro_spark.data.partitioning.staging import Chunk, StagedRows
from cerebro_spark.data.shuffling import seeded_generator
from cerebro_spark.errors import DataError
from cerebro_spark.types import PartitionId, Split

# NumPy's hypergeometric draws are exact below this population only.
_EXACT_DRAW_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a staged chunk: `rows` of them, from its row `start` on."""

    chunk: Chunk
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition that is still to be written, and the pieces it is made of."""

    split: Split
    id: PartitionId
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """All partitions that are to be written, those of training first, and the columns they have."""

    columns: tuple[Column, ...]
    partitions: tuple[PlannedPartition, ...]


def plan_partitions(staged: StagedRows, spec: PrepareSpec, slots: int) -> PartitionPlan:
    """Divide staged rows into training and validation partitions, as `spec` says.

    Args:
        staged: The rows, by their counts.
        spec: The arguments of `prepare`.
        slots: The number of partitions if `spec` gives none and there are as many rows.

    Raises:
        DataError: There are too few rows for the partitions or the validation that `spec` asks for.
    """
    data = [Piece(chunk, 0, chunk.train) for chunk in staged.data]
    marked = _find_marked(staged, spec)
    rows = _count_rows(data)
    held_out = _count_held_out(rows, spec.validation_fraction)
    partitions = spec.partitions or max(1, min(slots, rows - held_out))
    sizes = _train_sizes(rows - held_out, partitions) + _validation_sizes(held_out, partitions)
    drawn = draw_pieces(data, sizes, spec.seed)
    drawn += draw_pieces(marked, _validation_sizes(_count_rows(marked), partitions), spec.seed)
    return PartitionPlan(staged.columns, _named("train", drawn[:partitions]) + _named("validation", drawn[partitions:]))


def _find_marked(staged: StagedRows, spec: PrepareSpec) -> list[Piece]:
    """Return the rows that are for validation alone: all of a second frame, or those that a boolean column marks."""
    if staged.validation is not None:
        marked = [Piece(chunk, 0, chunk.train) for chunk in staged.validation]
        if not _count_rows(marked):
            raise DataError("the validation data has 0 rows: pass a DataFrame that has some, or a fraction")
        return marked
    if spec.validation_column is None:
        return []
    marked = [Piece(chunk, chunk.train, chunk.held_out) for chunk in staged.data]
    if not _count_rows(marked):
        raise DataError("the validation column is true in 0 rows: mark some, or pass a fraction")
    if not any(chunk.train for chunk in staged.data):
        raise DataError(
            f"the validation column is true in all {_count_rows(marked)} rows, which leaves none to train on: mark"
            " fewer"
        )
    return marked


def _count_held_out(rows: int, fraction: float) -> int:
    held_out = validation_rows(rows, fraction)
    if fraction and not held_out:
        raise DataError(f"validation is {fraction}, but that is 0 of {rows} rows: use a larger fraction")
    if rows and held_out == rows:
        raise DataError(
            f"validation is {fraction}, but that is all {rows} rows and leaves none to train on: use a smaller fraction"
        )
    return held_out


def _count_rows(pieces: Iterable[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def _named(split: Split, drawn: Sequence[Sequence[Piece]]) -> tuple[PlannedPartition, ...]:
    return tuple(
        PlannedPartition(split, partition_id(split, number), tuple(pieces)) for number, pieces in enumerate(drawn)
    )


def _train_sizes(rows: int, partitions: int) -> list[int]:
    if rows < partitions:
        raise DataError(
            f"partitions is {partitions}, but there are only {rows} rows to train on:"
            f" use partitions={max(1, rows)} or fewer"
        )
    return partition_sizes(rows, partitions)


def _validation_sizes(rows: int, partitions: int) -> list[int]:
    return partition_sizes(rows, min(rows, partitions)) if rows else []


def partition_sizes(rows: int, partitions: int) -> list[int]:
    """Return sizes that differ by at most one and add up to `rows`.

    >>> partition_sizes(10, 4)
    [3, 3, 2, 2]
    """
    size, longer = divmod(rows, partitions)
    return [size + 1] * longer + [size] * (partitions - longer)


def validation_rows(rows: int, fraction: float) -> int:
    """Return how many of `rows` rows a fraction is, rounded to the nearest.

    >>> validation_rows(1000, 0.25)
    250
    """
    return int(rows * fraction + 0.5)


def draw_pieces(whole: Sequence[Piece], sizes: Sequence[int], seed: int) -> list[list[Piece]]:
    """Cut pieces up and draw those of each partition, so that partition p gets exactly `sizes[p]` rows.

    Chunks hold their rows in random order. How many rows of each piece go to each partition is drawn from the
    multivariate hypergeometric distribution, so that together every assignment of rows to partitions is equally
    likely, as if all rows had been shuffled in one place.

    >>> chunk = Chunk("blob", 0, train=6, held_out=0, heaps={})
    >>> [sum(piece.rows for piece in pieces) for pieces in draw_pieces([Piece(chunk, 0, 6)], [2, 2, 2], seed=0)]
    [2, 2, 2]
    """
    if _count_rows(whole) != sum(sizes):
        raise ValueError(f"{_count_rows(whole)} rows cannot fill partitions of {sum(sizes)} rows")
    generator = seeded_generator("deal", seed)
    room = np.asarray(sizes, dtype=np.int64)
    drawn: list[list[Piece]] = [[] for _ in sizes]
    for piece in whole:
        shares = _draw_shares(room, piece.rows, generator)
        room = room - shares
        start = piece.start
        for partition in np.flatnonzero(shares):
            rows = int(shares[partition])
            drawn[partition].append(Piece(piece.chunk, start, rows))
            start += rows
    return drawn


def _draw_shares(room: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    total = int(room.sum())
    if total < _EXACT_DRAW_LIMIT:
        return generator.multivariate_hypergeometric(room, count, method="marginals")
    exact = [int(places) * count for places in room]
    shares = np.array([share // total for share in exact], dtype=np.int64)
    left = count - int(shares.sum())
    # A random tie-break among the largest remainders keeps any one partition from being favoured chunk after chunk.
    remainders = np.array([(share % total) / total for share in exact]) + generator.random(len(exact)) * 1e-9
    open_places = np.where(shares < room, remainders, -1.0)
    shares[np.argsort(-open_places, kind="stable")[:left]] += 1
    return shares
