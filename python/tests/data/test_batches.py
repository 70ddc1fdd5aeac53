"""The batches of a unit: seeded, complete, the same in every process, one copy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.data.shuffling import row_order
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.trainer import Feed

KEY: dict[str, Any] = {"seed": 3, "trial": "t1", "epoch": 2, "partition": "train-00001"}


@given(rows=st.integers(0, 300), size=st.integers(1, 64))
def test_every_row_comes_once_with_its_own_columns(rows: int, size: int) -> None:
    arrays = {"x": np.arange(rows * 2).reshape(rows, 2), "y": np.arange(rows)}
    feed = Feed(arrays, row_order(rows, **KEY), batch_size=size)
    seen = list(feed)
    assert len(seen) == len(feed.sizes)
    assert all(len(batch["y"]) == size for batch in seen[:-1])
    assert sorted(int(v) for batch in seen for v in batch["y"]) == list(range(rows))
    assert all((batch["x"][:, 0] == batch["y"] * 2).all() for batch in seen)


def test_each_part_of_the_key_changes_the_order_and_nothing_else_does() -> None:
    base = row_order(100, **KEY).tolist()
    assert row_order(100, **KEY).tolist() == base
    for part, other in {"seed": 4, "trial": "t2", "epoch": 3, "partition": "train-00002"}.items():
        assert row_order(100, **{**KEY, part: other}).tolist() != base


def test_another_process_sees_the_same_order() -> None:
    code = f"from cerebro_spark.data.shuffling import row_order; print(row_order(1000, **{KEY!r}).tolist())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(row_order(1000, **KEY).tolist())


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_batch_is_one_copy_that_may_be_written_to(shuffled: bool) -> None:
    """A cached array may not, and `input_fn` may work in place."""
    arrays = {"x": np.arange(10)}
    arrays["x"].flags.writeable = False
    for batch in Feed(arrays, row_order(10, **KEY) if shuffled else None, batch_size=4):
        assert not np.shares_memory(batch["x"], arrays["x"])
        assert batch["x"].base is None
        assert batch["x"].flags.writeable


def test_without_an_order_rows_come_as_they_are_stored() -> None:
    stored = list(Feed({"x": np.arange(10)}, batch_size=4))
    assert [batch["x"].tolist() for batch in stored] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_iterating_again_gives_the_same_batches() -> None:
    batches = Feed({"x": np.arange(10)}, row_order(10, **KEY), batch_size=3)
    assert [b["x"].tolist() for b in batches] == [b["x"].tolist() for b in batches]


def test_what_cannot_be_batched() -> None:
    with pytest.raises(ConfigurationError, match="batch_size is 0"):
        Feed({"x": np.arange(3)}, batch_size=0)
    with pytest.raises(DataError, match="as many rows as each other"):
        Feed({"x": np.arange(3), "y": np.arange(4)}, batch_size=2)


@pytest.mark.parametrize("order", [[0, 3], [-1, 2]])
def test_an_order_of_rows_that_are_not_there_is_refused(order: list[int]) -> None:
    with pytest.raises(DataError, match=rf"rows from {min(order)} to {max(order)}, but there are 3"):
        Feed({"x": np.arange(3)}, np.array(order), batch_size=2)
