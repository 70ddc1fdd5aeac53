"""Teams of workers and the homes of partitions: everything has its place, once, and teams are alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.scheduling.board import Board
from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.scheduling.homes import choose_homes
from cerebro_spark.scheduling.teams import TeamBoard, Teams, form_teams


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], list[str], list[float], int]:
    """The home of each column, the host and slowness of each worker, and the size of a team."""
    workers = draw(st.integers(1, 12))
    homes = draw(st.lists(st.integers(-1, workers - 1), min_size=1, max_size=24))
    hosts = draw(st.lists(st.sampled_from("abc"), min_size=workers, max_size=workers))
    slowness = draw(st.lists(st.floats(0.5, 4.0), min_size=workers, max_size=workers))
    return homes, hosts, slowness, draw(st.integers(1, 12))


def formed(cluster: tuple[list[int], list[str], list[float], int]) -> Teams:
    homes, hosts, slowness, size = cluster
    return form_teams(np.array(homes), hosts, np.array(slowness), range(len(hosts)), size)


@given(clusters())
def test_every_column_is_in_one_class_with_the_worker_that_is_its_home(
    cluster: tuple[list[int], list[str], list[float], int],
) -> None:
    teams, homes = formed(cluster), cluster[0]
    members = [member for members in teams.classes for member in members]
    assert sorted(members) == sorted((home, column) for column, home in enumerate(homes) if home >= 0)
    for number, pairs in enumerate(teams.classes):
        there = [worker for worker, _ in pairs]
        assert len(set(there)) == len(there), "a worker trains on one column at a time"
        assert set(there) <= set(teams.workers[teams.team_of[number]])


@given(clusters())
def test_teams_are_disjoint_and_none_is_larger_than_was_asked_for(
    cluster: tuple[list[int], list[str], list[float], int],
) -> None:
    teams, (homes, hosts, _, size) = formed(cluster), cluster
    workers = [worker for team in teams.workers for worker in team]
    assert sorted(workers) == sorted({home for home in homes if home >= 0})
    assert max(map(len, teams.workers), default=0) <= size
    assert teams.across_hosts == any(len({hosts[worker] for worker in team}) > 1 for team in teams.workers)


@given(st.integers(1, 12), st.integers(1, 12))
def test_on_one_host_of_workers_with_one_column_each_teams_are_as_few_as_can_be(workers: int, size: int) -> None:
    teams = formed((list(range(workers)), [str(row) for row in range(workers)], [1.0] * workers, size))
    lengths = [len(team) for team in teams.workers]
    assert len(lengths) == -(-workers // size)
    assert max(lengths) - min(lengths) <= 1


def test_workers_of_one_host_and_then_equally_fast_ones_are_together() -> None:
    teams = formed(([0, 1, 2, 3, 4, 5], ["a", "b", "a", "c", "d", "e"], [1.0, 3.0, 1.0, 1.0, 3.0, 1.0], 2))
    assert sorted(map(sorted, teams.workers)) == [[0, 2], [1, 4], [3, 5]]


def test_the_board_of_teams_says_what_the_teams_do() -> None:
    board = Board(4, CostModel([1.0] * 4))
    for row in range(4):
        board.costs.add_worker(board.add_worker(f"w{row}"))
        board.join(row, now=0.0)
        board.hold(row, row, True)
    for row in range(2):
        board.costs.add_trial(board.add_trial(f"t{row}"), 2.0)
        board.activate(row, later=1)
    teams = form_teams(np.arange(4), ["a"] * 4, np.ones(4), range(4), 2)
    board.start(0, 1, 0, now=0.0)
    seen = TeamBoard(board, teams, lambda row: 0.5, now=0.0)
    assert seen.open[:2].tolist() == [2, 2]
    assert seen.idle.tolist() == [False, True], "a team waits for all of its workers"
    assert seen.costs.seconds(0, 0, 0) == 4.0
    assert seen.members(0, 0) == [(0, 0), (1, 1)]
    assert seen.members(1, 0) == [(1, 1)], "only those whose column the trial lacks"


def test_a_team_takes_as_long_as_the_member_that_takes_longest() -> None:
    costs = CostModel([0.5, 1.5, 1.0])
    for row, speed in enumerate((1.0, 0.5, 2.0)):
        costs.add_worker(row, speed)
    teams = form_teams(np.arange(3), ["a"] * 3, costs.slowness, range(3), 3)
    assert teams.weights(costs).tolist() == [3.0]


@st.composite
def holders(draw: st.DrawFn) -> Board:
    """Workers that hold some columns each."""
    workers, columns = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    board = Board(columns, CostModel([1.0] * columns))
    for row in range(workers):
        board.costs.add_worker(board.add_worker(f"w{row}"))
        board.join(row, now=0.0)
        for column in draw(st.sets(st.integers(0, columns - 1))):
            board.hold(row, column, True)
    return board


@given(holders())
def test_the_home_of_a_column_is_one_of_its_holders(board: Board) -> None:
    homes = choose_homes(board)
    for column, home in enumerate(homes.tolist()):
        assert (home == -1) == (board.holders[column] == 0)
        assert home == -1 or board.holds[home, column]


@given(st.integers(1, 6), st.integers(1, 12))
def test_where_all_hold_all_no_worker_is_home_to_more_than_its_share(workers: int, columns: int) -> None:
    board = Board(columns, CostModel([1.0] * columns))
    for row in range(workers):
        board.add_worker(f"w{row}")
        board.join(row, now=0.0)
        for column in range(columns):
            board.hold(row, column, True)
    assert np.bincount(choose_homes(board)).max() == -(-columns // workers)
