"""Which rows go to which partition: every row once, sizes within one, nothing favoured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.data.partitioning import planning
from cerebro_spark.data.partitioning.planning import Piece, draw_pieces, partition_sizes, validation_rows
from cerebro_spark.data.partitioning.staging import Chunk
from cerebro_spark.data.shuffling import seeded_generator

COUNTS = st.lists(st.integers(0, 400), min_size=1, max_size=12)


def draw(counts: list[int], sizes: list[int], seed: int) -> list[list[Piece]]:
    """Draw from chunks of so many rows; the name of each is its number."""
    chunks = [Chunk(str(number), 0, count, 0, {}) for number, count in enumerate(counts)]
    return draw_pieces([Piece(chunk, 0, chunk.train) for chunk in chunks], sizes, seed)


@settings(deadline=None)
@given(counts=COUNTS, partitions=st.integers(1, 9), seed=st.integers(-(2**63), 2**63))
def test_every_row_is_drawn_exactly_once(counts: list[int], partitions: int, seed: int) -> None:
    sizes = partition_sizes(sum(counts), partitions)
    drawn = draw(counts, sizes, seed)
    taken = [
        (int(cut.chunk.blob), row)
        for pieces in drawn
        for cut in pieces
        for row in range(cut.start, cut.start + cut.rows)
    ]
    assert sorted(taken) == [(chunk, row) for chunk, count in enumerate(counts) for row in range(count)]
    assert [sum(cut.rows for cut in pieces) for pieces in drawn] == sizes


@given(rows=st.integers(0, 10**12), partitions=st.integers(1, 5000))
def test_sizes_differ_by_at_most_one(rows: int, partitions: int) -> None:
    sizes = partition_sizes(rows, partitions)
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(counts=COUNTS, partitions=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_same_seed_draws_the_same(counts: list[int], partitions: int, seed: int) -> None:
    sizes = partition_sizes(sum(counts), partitions)
    assert draw(counts, sizes, seed) == draw(counts, sizes, seed)


def test_another_seed_draws_otherwise() -> None:
    sizes = partition_sizes(1000, 4)
    assert draw([500, 500], sizes, 1) != draw([500, 500], sizes, 2)


@settings(deadline=None)
@given(counts=COUNTS, partitions=st.integers(1, 9))
def test_a_population_too_large_for_exact_draws_is_still_drawn_whole(counts: list[int], partitions: int) -> None:
    counts = [count * 10**9 + 7 for count in counts]
    sizes = partition_sizes(sum(counts), partitions)
    drawn = draw(counts, sizes, 0)
    assert [sum(cut.rows for cut in pieces) for pieces in drawn] == sizes
    for chunk, count in enumerate(counts):
        assert sum(cut.rows for pieces in drawn for cut in pieces if cut.chunk.blob == str(chunk)) == count


def test_shares_are_hypergeometric() -> None:
    """The share of a chunk that falls to one partition is spread as a shuffle of all rows would spread it."""
    from scipy import stats

    shares = [draw([30, 70], [50, 50], seed)[0][0].rows for seed in range(2000)]
    expected = stats.hypergeom(100, 50, 30)
    observed = np.bincount(shares, minlength=31)
    inner = slice(10, 21)
    wanted = expected.pmf(np.arange(31)) * len(shares)
    p = stats.chisquare(observed[inner], wanted[inner] * observed[inner].sum() / wanted[inner].sum()).pvalue
    assert p > 1e-4


def test_a_draw_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot fill partitions of 4"):
        draw([3], [4], 0)


@pytest.mark.parametrize(("rows", "fraction", "expected"), [(10, 0.25, 3), (1000, 0.2, 200), (3, 0.1, 0), (7, 0.5, 4)])
def test_a_fraction_is_rounded_to_the_nearest_row(rows: int, fraction: float, expected: int) -> None:
    assert validation_rows(rows, fraction) == expected


def test_generators_are_those_of_every_other_machine() -> None:
    """Pinned: a change here would change every partition and every batch that was ever made."""
    assert seeded_generator("rows", 0, "t1", 1, "train-00000").permutation(8).tolist() == PINNED
    assert seeded_generator("a", "b").integers(2**32) != seeded_generator("ab").integers(2**32)
    assert seeded_generator(1).integers(2**32) != seeded_generator("1").integers(2**32)


PINNED = [3, 1, 5, 4, 7, 2, 0, 6]


def test_the_exact_limit_is_what_numpy_takes() -> None:
    draw = seeded_generator("limit")
    room = np.array([planning._EXACT_DRAW_LIMIT - 1, 0])
    assert draw.multivariate_hypergeometric(room, 5, method="marginals").sum() == 5
