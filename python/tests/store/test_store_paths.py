"""Names of things in a store: they sort, parse back, and refuse what no store could hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store import paths
from cerebro_spark.store.base import check_name
from cerebro_spark.types import Checkpoint


@given(st.lists(st.integers(1, 10**8 - 1), min_size=2, max_size=5))
def test_segments_sort_as_their_numbers(numbers: list[int]) -> None:
    names = [paths.log_segment("r1", number) for number in sorted(numbers)]
    assert names == sorted(names)
    assert [paths.segment(name) for name in names] == [
        paths.Segment(name, 0, number, number, joined=False)
        for name, number in zip(names, sorted(numbers), strict=True)
    ]


def test_everything_of_a_run_lies_in_its_folder() -> None:
    names = [
        paths.log_segment("r1", 1),
        paths.functions("r1"),
        paths.result("r1"),
        paths.checkpoint("r1", Checkpoint("t1", epoch=2, step=1, attempt=3)),
    ]
    assert all(check_name(name).startswith(paths.run_folder("r1") + "/") for name in names)
    assert names[3].startswith(paths.checkpoint_folder("r1", "t1") + "/")


@pytest.mark.parametrize(
    "name",
    [
        "runs/r1/log/7.jsonl",
        "runs/r1/log/000000000007.jsonl.tmp",
        "runs/r1/log/000000000007.0.jsonl",
        "runs/r1/functions.pkl",
        "",
    ],
)
def test_what_is_no_segment(name: str) -> None:
    assert paths.segment(name) is None


@pytest.mark.parametrize("run", ["", "a/b", "..", ".hidden", "a b", "ü", "a:b", "a\n"])
def test_ids_that_are_refused(run: str) -> None:
    with pytest.raises(ConfigurationError, match="the run id is"):
        paths.run_folder(run)


@pytest.mark.parametrize(("first", "last"), [(-1, None), (-1, 3), (5, 4)])
def test_segments_count_upwards_from_zero(first: int, last: int | None) -> None:
    with pytest.raises(ConfigurationError, match="count from 0"):
        paths.log_segment("r1", first, last)
