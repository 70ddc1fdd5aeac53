"""Policies: only legal choices, no needless idleness, and near the bound where it can be reached."""

from __future__ import annotations

import numpy as np
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.dispatch import POLICIES, Changes, PolicyView, get_policy
from cerebro_spark.dispatch.rearrangement import find_steinitz_order, make_circular_orders
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.scheduling.board import Board
from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.simulation import Scenario, simulate


def make_view(trials: int, workers: int, columns: int, seed: int) -> PolicyView:
    """A board in the middle of things."""
    rng = np.random.default_rng(seed)
    board = Board(columns, CostModel([1.0] * columns))
    for number in range(workers):
        row = board.add_worker(f"w{number}")
        board.costs.add_worker(row, float(rng.uniform(0.5, 2)))
        board.join(row, now=0.0)
    for column in range(columns):
        for worker in rng.choice(workers, int(rng.integers(1, workers + 1)), replace=False):
            board.hold(int(worker), column, True)
    for number in range(trials):
        row = board.add_trial(f"t{number}")
        board.costs.add_trial(row, float(rng.uniform(1, 9)))
        board.activate(row, later=int(rng.integers(0, 3)))
    for trial, column in zip(rng.permutation(trials)[:workers], rng.integers(0, columns, workers), strict=False):
        worker = int(np.flatnonzero(board.holds[:, column])[0])
        if board.idle[worker]:
            board.start(worker, int(trial), int(column), now=0.0)
    return PolicyView(board, rng)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99), st.booleans())
def test_choices_are_legal(name: str, trials: int, workers: int, columns: int, seed: int, busy: bool) -> None:
    view = make_view(trials, workers, columns, seed)
    board = view.board
    before = (board.todo.copy(), board.free.copy(), board.idle.copy())
    eligible = board.live & ~board.idle if busy else board.idle
    choices = POLICIES[name](view, Changes(everything=True), eligible)
    for choice in choices:
        assert eligible[choice.worker]
        assert board.free[choice.trial]
        assert board.holds[choice.worker, choice.column]
        assert board.todo[choice.trial, choice.column]
    assert len({c.worker for c in choices}) == len(choices) == len({c.trial for c in choices})
    for array, copy in zip((board.todo, board.free, board.idle), before, strict=True):
        assert (array == copy).all(), "a policy changes nothing"


@pytest.mark.parametrize("name", ["longest-first", "random"])
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=drawn(40), deadline=None)
def test_greedy_policies_leave_nobody_idle_who_could_work(name: str, trials: int, workers: int, seed: int) -> None:
    view = make_view(trials, workers, 4, seed)
    board = view.board
    choices = POLICIES[name](view, Changes(everything=True), board.idle)
    free = board.free.copy()
    free[[c.trial for c in choices]] = False
    for worker in set(np.flatnonzero(board.idle)) - {c.worker for c in choices}:
        assert not (board.todo & free[:, None] & board.holds[worker]).any()


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'best'.*hopper.*random"):
        get_policy("best")


@given(st.integers(1, 14), st.integers(1, 5), st.integers(0, 99))
@settings(deadline=None)
def test_steinitz_keeps_partial_sums_small(count: int, dimension: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).uniform(-1, 1, (count, dimension))
    vectors -= vectors.mean(axis=0)
    order = find_steinitz_order(vectors)
    assert sorted(order) == list(range(count))
    longest = np.abs(vectors).max()
    assert np.abs(np.cumsum(vectors[order], axis=0)).max() <= dimension * longest + 1e-6


def test_rearrangement_is_optimal_where_its_theorem_says_so() -> None:
    """Loads of at least (p^2 + p - 1) times the longest unit: the makespan equals the busiest worker's load."""
    outcome = simulate(Scenario(trials=64, workers=4, epochs=1, policy="rearrangement", known_costs=True))
    assert outcome.ratio == pytest.approx(1.0)


@given(st.integers(1, 10), st.integers(1, 4), st.integers(0, 50))
@settings(max_examples=drawn(40), deadline=None)
def test_circular_orders_are_permutations(trials: int, workers: int, seed: int) -> None:
    times = np.random.default_rng(seed).uniform(0.1, 5, (trials, workers))
    assert all(sorted(order) == list(range(trials)) for order in make_circular_orders(times))


@pytest.mark.parametrize(("trials", "workers"), [(8, 8), (12, 12), (6, 8), (9, 8)])
def test_the_default_is_near_the_bound_when_trials_are_about_as_many_as_workers(trials: int, workers: int) -> None:
    scenario = Scenario(trials=trials, workers=workers, epochs=4, jitter=0.02)
    assert simulate(scenario).ratio < 1.03
    greedy = simulate(Scenario(trials=trials, workers=workers, epochs=4, jitter=0.02, policy="longest-first"))
    assert simulate(scenario).makespan < greedy.makespan


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_the_default_is_near_the_bound_on_a_mixed_cluster(known: bool) -> None:
    scenario = Scenario(trials=16, workers=8, epochs=5, jitter=0.05, heterogeneous=True, known_costs=known)
    ratios = [simulate(scenario, seed).ratio for seed in range(5)]
    assert np.mean(ratios) < (1.03 if known else 1.06)
