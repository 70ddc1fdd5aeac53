"""How many workers a trial gets: never more than help, never a size with which all would be done later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.scheduling.board import Floats, Ints
from cerebro_spark.scheduling.group_sizes import Prospects, candidate_sizes, choose_sizes, share_idle


def prospects(units: Floats, sizes: list[int], efficiency: Floats, running: float = 0.0, workers: int = 0) -> Prospects:
    """What trials take that have so many units of one second left, where teams are in nobody's way."""
    speed = np.array(sizes) * efficiency
    ends, spent = units[:, None] / speed, units[:, None] / efficiency
    workers = workers or max(sizes)
    in_teams = np.maximum(ends.max(axis=0), spent.sum(axis=0) / workers)
    waits = np.where(np.array(sizes) > 1, float(len(units) > 1), 0.0) / efficiency * np.ones_like(ends)
    return Prospects(np.array(sizes), ends, spent, waits, in_teams, units.sum() / workers, running)


def lasts(seen: Prospects, columns: Ints, workers: int) -> float:
    rows = np.arange(len(columns))
    return float(max(seen.ends[rows, columns].max(), seen.spent[rows, columns].sum() / workers))


def efficiencies(overhead: float) -> Floats:
    return 1.0 / (1.0 + overhead * np.arange(8))


trials = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=20).map(np.array)
overheads = st.floats(0.0, 0.5)


@given(st.integers(1, 60), st.integers(1, 70))
def test_sizes_that_would_be_of_no_use_are_not_considered(columns: int, most: int) -> None:
    sizes = candidate_sizes(columns, most)
    assert sizes[0] == 1
    assert max(sizes) <= max(1, min(columns, most))
    units = [-(-columns // size) for size in sizes]
    assert len(set(units)) == len(units), "each makes another number of units"
    assert set(units) == {-(-columns // size) for size in range(1, min(columns, most) + 1)}, "and none is left out"


@given(trials, overheads)
def test_a_choice_is_never_worse_than_single_workers(units: Floats, overhead: float) -> None:
    seen = prospects(units, list(range(1, 9)), efficiencies(overhead))
    chosen = choose_sizes(seen, 8, before=0)
    assert lasts(seen, chosen, 8) <= float(seen.in_teams[0]) * (1 + 1e-9)


@given(trials, overheads)
def test_all_of_one_size_is_the_best_size(units: Floats, overhead: float) -> None:
    """From nothing, no size for all promises more than what was chosen, but for what teams may wait."""
    seen = prospects(units, list(range(1, 9)), efficiencies(overhead))
    chosen = choose_sizes(seen, 8, before=None)
    waits = float(seen.waits.max())
    assert lasts(seen, chosen, 8) <= float(seen.in_teams.min()) + waits + 1e-9


@given(trials)
def test_groups_that_gain_nothing_are_not_formed(units: Floats) -> None:
    sizes = list(range(1, 9))
    seen = prospects(units, sizes, 1.0 / np.array(sizes))
    assert set(choose_sizes(seen, 8, before=0).tolist()) == {0}
    assert set(share_idle(seen, 8, 0).tolist()) == {0}


def test_one_trial_gets_all_workers_and_many_get_one_each() -> None:
    sizes = list(range(1, 9))
    assert choose_sizes(prospects(np.array([8.0]), sizes, efficiencies(0.1)), 8, before=0).tolist() == [7]
    assert choose_sizes(prospects(np.full(16, 8.0), sizes, efficiencies(0.1)), 8, before=0).tolist() == [0] * 16


def test_what_is_a_little_better_changes_nothing() -> None:
    """Every change costs some waiting, and what is expected is not that exact."""
    seen = prospects(np.array([8.0]), [1, 2], np.array([1.0, 0.52]))
    assert choose_sizes(seen, 2, before=0).tolist() == [0]
    assert choose_sizes(prospects(np.array([8.0]), [1, 2], np.array([1.0, 0.6])), 2, before=0).tolist() == [1]


def test_a_trial_that_outlasts_the_others_gets_more_of_them() -> None:
    seen = prospects(np.array([200.0, *[9.0] * 300]), [1, 2, 4], np.array([1, 0.7, 0.6]), workers=32)
    chosen = choose_sizes(seen, 32, before=0)
    assert chosen[0] > 0
    assert set(chosen[1:].tolist()) == {0}


def test_two_trials_that_cannot_run_at_once_count_one_after_the_other() -> None:
    """A group of all workers and a single one are in each other's way: with pairs both go on at the same time."""
    units, sizes = np.array([5.4, 2.7]), [1, 2, 4]
    seen = prospects(units, sizes, np.array([1.0, 0.625, 0.526]))
    assert choose_sizes(seen, 4, before=0).tolist() in ([1, 1], [2, 2])


def test_groups_of_more_than_half_of_the_workers_count_one_after_the_other() -> None:
    """Three trials on five workers: in groups of three each would be done in a third, one after another."""
    seen = prospects(np.full(3, 9.0), [1, 3], np.ones(2), workers=5)
    seen.in_teams[1] = 9.0
    assert choose_sizes(seen, 5, before=0).tolist() == [0, 0, 0]


def test_no_trial_of_which_nothing_can_be_trained_by_groups_gets_one() -> None:
    seen = prospects(np.array([50.0, 8.0]), [1, 2], np.array([1.0, 1.0]))
    seen.ends[1, 1] = np.inf
    seen.in_teams[1] = np.inf
    assert choose_sizes(seen, 2, before=0)[1] == 0
    assert share_idle(seen, 4, 0)[1] == 0


@given(trials, overheads, st.integers(1, 24), st.integers(0, 30))
def test_a_search_that_asks_for_more_shares_only_workers_that_would_idle(
    units: Floats, overhead: float, workers: int, expected: int
) -> None:
    seen = prospects(units, list(range(1, 9)), efficiencies(overhead))
    columns = share_idle(seen, workers, expected)
    present, sizes = max(len(units), expected), seen.sizes[columns]
    a_team_each = len(set(sizes.tolist())) == 1 and -(-workers // int(sizes[0])) >= present
    assert a_team_each or int((sizes - 1).sum()) <= max(0, workers - present)
    assert (seen.ends[np.arange(len(units)), columns] <= seen.ends[:, 0]).all(), "none is slower for it"


@given(trials, st.integers(1, 24))
def test_the_longest_trials_get_most_of_what_would_idle(units: Floats, workers: int) -> None:
    seen = prospects(units, list(range(1, 9)), np.ones(8))
    sizes = seen.sizes[share_idle(seen, workers, 0)]
    for one in range(len(units)):
        for other in range(len(units)):
            assert units[one] <= units[other] or sizes[one] >= sizes[other] - 1


@pytest.mark.parametrize("running", [0.0, 100.0])
def test_teams_that_can_begin_at_once_do_not_count_a_whole_wait(running: float) -> None:
    """Two alike trials on four workers: pairs are best, unless they had to wait long until they can form."""
    seen = prospects(np.array([8.0, 8.0]), [1, 2, 4], np.array([1.0, 0.83, 0.76]), running)
    seen.waits[:, 2] = 0.0
    assert set(choose_sizes(seen, 4, before=0).tolist()) == {1 if running == 0.0 else 2}
