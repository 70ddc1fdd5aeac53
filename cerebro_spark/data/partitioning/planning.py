"""Decide which rows go to which partition, from row counts and a seed alone. PURE: it never sees a row or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class Slice(NamedTuple):
    """`rows` rows of the chunk number `chunk`, from its row `start` on."""

    chunk: int
    start: int
    rows: int


def plan_partitions(staged: StagedRows, spec: PrepareSpec, slots: int) -> PartitionPlan:
    """Divide staged rows into training and validation partitions, as `spec` says.

    Args:
        staged: The rows, by their counts.
        spec: The arguments of `prepare`.
        slots: The number of partitions if `spec` gives none and there are as many rows.

    Raises:
        DataError: There are too few rows for the partitions or the validation that `spec` asks for.
    """
    rows = sum(chunk.train for chunk in staged.data)
    partitions = spec.partitions or max(1, min(slots, rows - validation_rows(rows, spec.validation_fraction)))
    if staged.validation is not None:
        planned = _plan_frames(staged.data, staged.validation, partitions, spec.seed)
    elif spec.validation_column is not None:
        planned = _plan_column(staged.data, partitions, spec.seed)
    else:
        planned = _plan_fraction(staged.data, spec.validation_fraction, partitions, spec.seed)
    return PartitionPlan(staged.columns, tuple(planned))


def _plan_fraction(chunks: Sequence[Chunk], fraction: float, partitions: int, seed: int) -> list[PlannedPartition]:
    """Draw training and validation partitions from the same rows; no validation if `fraction` is 0."""
    rows = sum(chunk.train for chunk in chunks)
    held_out = validation_rows(rows, fraction)
    if fraction and not held_out:
        raise DataError(f"validation is {fraction}, but that is 0 of {rows} rows: use a larger fraction")
    if rows and held_out == rows:
        raise DataError(
            f"validation is {fraction}, but that is all {rows} rows and leaves none to train on: use a smaller fraction"
        )
    train = _train_sizes(rows - held_out, partitions)
    sizes = train + _validation_sizes(held_out, partitions)
    drawn = _draw_pieces(chunks, [chunk.train for chunk in chunks], sizes, seed)
    return _named("train", drawn[: len(train)]) + _named("validation", drawn[len(train) :])


def _plan_column(chunks: Sequence[Chunk], partitions: int, seed: int) -> list[PlannedPartition]:
    """Draw validation partitions from the rows that a boolean column marks, training partitions from the others."""
    train = [chunk.train for chunk in chunks]
    marked = [chunk.held_out for chunk in chunks]
    if not sum(marked):
        raise DataError("the validation column is true in 0 rows: mark some, or pass a fraction")
    if not sum(train):
        raise DataError(
            f"the validation column is true in all {sum(marked)} rows, which leaves none to train on: mark fewer"
        )
    drawn = _draw_pieces(chunks, train, _train_sizes(sum(train), partitions), seed)
    others = _draw_pieces(chunks, marked, _validation_sizes(sum(marked), partitions), seed, starts=train)
    return _named("train", drawn) + _named("validation", others)


def _plan_frames(
    chunks: Sequence[Chunk], others: Sequence[Chunk], partitions: int, seed: int
) -> list[PlannedPartition]:
    """Draw training partitions from one frame's rows, validation partitions from the other's."""
    counts = [chunk.train for chunk in others]
    if not sum(counts):
        raise DataError("the validation data has 0 rows: pass a DataFrame that has some, or a fraction")
    drawn = _draw_pieces(others, counts, _validation_sizes(sum(counts), partitions), seed)
    return _plan_fraction(chunks, 0.0, partitions, seed) + _named("validation", drawn)


def _named(split: Split, drawn: Sequence[Sequence[Piece]]) -> list[PlannedPartition]:
    return [PlannedPartition(split, partition_id(split, number), tuple(pieces)) for number, pieces in enumerate(drawn)]


def _train_sizes(rows: int, partitions: int) -> list[int]:
    if rows < partitions:
        raise DataError(
            f"partitions is {partitions}, but there are only {rows} rows to train on:"
            f" use partitions={max(1, rows)} or fewer"
        )
    return partition_sizes(rows, partitions)


def _validation_sizes(rows: int, partitions: int) -> list[int]:
    return partition_sizes(rows, min(rows, partitions)) if rows else []


def _draw_pieces(
    chunks: Sequence[Chunk], counts: Sequence[int], sizes: Sequence[int], seed: int, starts: Sequence[int] = ()
) -> list[list[Piece]]:
    """Draw the pieces of each partition from `counts` rows of each chunk, which begin at `starts` (default: 0)."""
    first = starts or [0] * len(chunks)
    return [
        [Piece(chunks[cut.chunk], first[cut.chunk] + cut.start, cut.rows) for cut in slices]
        for slices in draw_slices(counts, sizes, seed)
    ]


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


def draw_slices(counts: Sequence[int], sizes: Sequence[int], seed: int) -> list[list[Slice]]:
    """Draw the slices of each partition, so that partition p gets exactly `sizes[p]` rows.

    Chunks hold their rows in random order. How many rows of each chunk go to each partition is drawn from the
    multivariate hypergeometric distribution, so that together every assignment of rows to partitions is equally
    likely, as if all rows had been shuffled in one place.

    >>> [sum(piece.rows for piece in slices) for slices in draw_slices([3, 3], [2, 2, 2], seed=0)]
    [2, 2, 2]
    """
    if sum(counts) != sum(sizes):
        raise ValueError(f"{sum(counts)} rows cannot fill partitions of {sum(sizes)} rows")
    generator = seeded_generator("deal", seed)
    room = np.asarray(sizes, dtype=np.int64)
    drawn: list[list[Slice]] = [[] for _ in sizes]
    for chunk, count in enumerate(counts):
        shares = _draw_shares(room, count, generator)
        room = room - shares
        start = 0
        for partition in np.flatnonzero(shares):
            rows = int(shares[partition])
            drawn[partition].append(Slice(chunk, start, rows))
            start += rows
    return drawn


def _draw_shares(room: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    total = int(room.sum())
    if total < _EXACT_DRAW_LIMIT:
        return generator.multivariate_hypergeometric(room, count, method="marginals")
    return _proportional_shares(room, count, total, generator)


def _proportional_shares(
    room: NDArray[np.int64], count: int, total: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    exact = [int(places) * count for places in room]
    shares = np.array([share // total for share in exact], dtype=np.int64)
    left = count - int(shares.sum())
    # A random tie-break among the largest remainders keeps any one partition from being favoured chunk after chunk.
    remainders = np.array([(share % total) / total for share in exact]) + generator.random(len(exact)) * 1e-9
    open_places = np.where(shares < room, remainders, -1.0)
    shares[np.argsort(-open_places, kind="stable")[:left]] += 1
    return shares
