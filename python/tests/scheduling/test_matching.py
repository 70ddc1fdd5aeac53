"""Workers and columns: as many are matched as there can be."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.scheduling.matching import Matching

tables = st.dictionaries(st.integers(0, 4), st.lists(st.integers(0, 4), unique=True, max_size=4), max_size=5)


def largest(table: dict[int, list[int]]) -> int:
    """How many workers can have a column at the same time, by trying all ways."""
    workers = sorted(table)
    ways = permutations(range(5), len(workers))
    return max((sum(c in table[w] for w, c in zip(workers, way, strict=True)) for way in ways), default=0)


@given(tables)
def test_as_many_are_matched_as_can_be_each_with_a_column_of_its_own(table: dict[int, list[int]]) -> None:
    matching = Matching(table)
    seated = [worker for worker in table if matching.add(worker)]
    pairs = matching.pairs()
    assert [worker for worker, _ in pairs] == seated
    assert all(column in table[worker] for worker, column in pairs)
    assert len({column for _, column in pairs}) == len(pairs) == largest(table)


def test_a_worker_without_columns_finds_none() -> None:
    matching = Matching({0: [], 1: [3]})
    assert [matching.add(worker) for worker in (0, 1)] == [False, True]
    assert matching.pairs() == [(1, 3)]


def test_its_best_column_is_taken_if_it_is_free() -> None:
    matching = Matching({0: [2, 1], 1: [2, 0]})
    assert matching.add(0)
    assert matching.pairs() == [(0, 2)]
    assert matching.add(1)
    assert dict(matching.pairs()) == {0: 1, 1: 2}, "and given up for a worker that has no other"
