"""What checks count of a column stays exact, however many shapes its rows have and however it was split."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.data.input.checks import ColumnCheck, list_problems, raise_problems
from cerebro_spark.data.input.columns import SourceType
from cerebro_spark.errors import DataError


def ragged(shapes: int, rows: int) -> ColumnCheck:
    """A column of so many shapes, one of which most rows have."""
    check = ColumnCheck("feature")
    check.types[SourceType("float32", (1,))] += 10_000
    for size in range(2, shapes + 1):
        check.types[SourceType("float32", (size,))] += rows
    return check


@given(shapes=st.integers(2, 60), rows=st.integers(1, 9), splits=st.integers(1, 3))
def test_every_odd_row_is_counted(shapes: int, rows: int, splits: int) -> None:
    merged = ColumnCheck("feature")
    for _ in range(splits):
        check = ragged(shapes, rows)
        check.drop_rare_types()
        assert len(check.types) <= 16
        merged.add(check)
    with pytest.raises(DataError, match=rf" {splits * rows * (shapes - 1)} rows differ \(float32 \(2,\)"):
        raise_problems(list_problems({"x": merged}))


def test_a_check_does_not_grow_with_its_shapes() -> None:
    sizes = []
    for shapes in (100, 10_000):
        check = ragged(shapes, 1)
        check.drop_rare_types()
        sizes.append(len(pickle.dumps(check)))
    assert abs(sizes[0] - sizes[1]) < 100


def test_a_clean_column_has_one_type_and_no_bad_row() -> None:
    check = ragged(1, 1)
    assert check.clean
    assert check.bad.total() == 0
    check.bad.update(nulls=2, rounded=3)
    assert check.bad.total() == 5
    assert not check.clean
