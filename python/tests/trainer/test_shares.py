"""The shares of the members of a group, whatever their partitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.trainer.feed import Feed, batch_sizes
from cerebro_spark.trainer.shares import Mixture, ShareFeed, split_steps

ROWS = st.lists(st.integers(0, 120), min_size=1, max_size=6)


@given(rows=ROWS)
def test_one_more_row_is_of_one_member(rows: list[int]) -> None:
    mixture = Mixture(rows)
    counts = np.array([mixture.count(first) for first in range(sum(rows) + 1)])
    assert counts[0].tolist() == [0] * len(rows)
    assert counts[-1].tolist() == rows
    more = np.diff(counts, axis=0)
    assert ((more == 0) | (more == 1)).all()
    assert (more.sum(axis=1) == 1).all()


@given(rows=ROWS, batch_size=st.integers(1, 90), smallest=st.integers(1, 3))
def test_all_members_take_the_steps_of_one_trainer(rows: list[int], batch_size: int, smallest: int) -> None:
    members = [split_steps(rows, batch_size, smallest, rank) for rank in range(len(rows))]
    sizes = batch_sizes(sum(rows), batch_size, smallest)
    assert {len(steps) for steps in members} == {len(sizes)}
    for size, steps in zip(sizes, zip(*members, strict=True), strict=True):
        assert {step.total for step in steps} == {size}
        assert sum(step.rows for step in steps) == size
        assert abs(sum(step.weight for step in steps) - 1) < 1e-9
        for step, own in zip(steps, rows, strict=True):
            assert step.rows >= 0
            assert abs(step.rows - own * size / sum(rows)) < len(rows) + 1, "as its partition is to all rows"


@given(rows=ROWS, batch_size=st.integers(1, 90), seed=st.integers(0, 9))
def test_every_row_is_given_once_in_the_order_of_its_member(rows: list[int], batch_size: int, seed: int) -> None:
    for rank, own in enumerate(rows):
        order = np.random.default_rng(seed).permutation(own)
        steps = split_steps(rows, batch_size, 2, rank)
        feed = ShareFeed(Feed({"x": np.arange(own)}, order, batch_size=batch_size), steps)
        batches = [batch["x"] for batch in feed]
        assert [len(batch) for batch in batches] == [step.rows for step in steps if step.rows]
        assert np.array_equal(np.concatenate([np.empty(0, int), *batches]), order)


def test_equal_partitions_give_equal_shares() -> None:
    shares = [[step.rows for step in split_steps([128, 128, 128, 128], 64, 1, rank)] for rank in range(4)]
    assert shares == [[16] * 8] * 4


def test_a_small_partition_is_not_in_every_batch() -> None:
    shares = [[step.rows for step in split_steps([30, 2], 8, 1, rank)] for rank in range(2)]
    assert shares == [[8, 7, 8, 7], [0, 1, 0, 1]]
