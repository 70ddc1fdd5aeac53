"""Batches: seeded, complete, the same in every process, one copy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.data.loading.batches import Batches, row_order
from cerebro_spark.errors import ConfigurationError, DataError

KEY = {"seed": 3, "trial": "t1", "epoch": 2, "partition": "train-00001"}


@given(rows=st.integers(0, 300), size=st.integers(1, 64))
def test_every_row_comes_once_with_its_own_columns(rows: int, size: int) -> None:
    arrays = {"x": np.arange(rows * 2).reshape(rows, 2), "y": np.arange(rows)}
    batches = Batches(arrays, size, **KEY)  # type: ignore[arg-type]
    seen = list(batches)
    assert len(seen) == len(batches)
    assert all(len(batch["y"]) == size for batch in seen[:-1])
    assert sorted(int(v) for batch in seen for v in batch["y"]) == list(range(rows))
    assert all((batch["x"][:, 0] == batch["y"] * 2).all() for batch in seen)


def test_each_part_of_the_key_changes_the_order_and_nothing_else_does() -> None:
    base = row_order(100, **KEY).tolist()  # type: ignore[arg-type]
    assert row_order(100, **KEY).tolist() == base  # type: ignore[arg-type]
    for part, other in {"seed": 4, "trial": "t2", "epoch": 3, "partition": "train-00002"}.items():
        assert row_order(100, **{**KEY, part: other}).tolist() != base  # type: ignore[arg-type]


def test_another_process_sees_the_same_order() -> None:
    code = f"from cerebro_spark.data.loading.batches import row_order; print(row_order(1000, **{KEY!r}).tolist())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(row_order(1000, **KEY).tolist())  # type: ignore[arg-type]


def test_a_batch_is_a_copy_and_an_unshuffled_one_a_view() -> None:
    arrays = {"x": np.arange(10)}
    shuffled = next(iter(Batches(arrays, 4, **KEY)))  # type: ignore[arg-type]
    assert not np.shares_memory(shuffled["x"], arrays["x"])
    assert shuffled["x"].base is None
    stored = list(Batches(arrays, 4, shuffle=False))
    assert [batch["x"].tolist() for batch in stored] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(np.shares_memory(batch["x"], arrays["x"]) for batch in stored)


def test_iterating_again_gives_the_same_batches() -> None:
    batches = Batches({"x": np.arange(10)}, 3, **KEY)  # type: ignore[arg-type]
    assert [b["x"].tolist() for b in batches] == [b["x"].tolist() for b in batches]


def test_what_cannot_be_batched() -> None:
    with pytest.raises(ConfigurationError, match="batch_size is 0"):
        Batches({"x": np.arange(3)}, 0)
    with pytest.raises(DataError, match="as many rows as each other"):
        Batches({"x": np.arange(3), "y": np.arange(4)}, 2)
