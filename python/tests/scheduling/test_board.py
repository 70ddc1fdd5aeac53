"""The board: only its own methods change it, and it says of a trial and a worker what was done with them."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import cerebro_spark
from cerebro_spark.scheduling.board import NEVER, Board
from cerebro_spark.scheduling.costs import CostModel

PACKAGE = Path(cerebro_spark.__file__).parent
OTHERS = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "board.py"]


def board(trials: int = 2, workers: int = 2, scripted: bool = False) -> Board:
    """Worker 0 holds column 0, and so on; every trial has two epochs to train."""
    made = Board(2, CostModel([1.0, 1.0]), scripted)
    for row in range(workers):
        made.costs.add_worker(made.add_worker(f"w{row}"))
        made.join(row, now=0.0)
        made.hold(row, row % 2, True)
    for row in range(trials):
        made.costs.add_trial(made.add_trial(f"t{row}"), 3.0)
        made.activate(row, later=1)
    return made


def arrays(made: Board) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {name: a for name, a in vars(made).items() if isinstance(a, np.ndarray) and not name.startswith("_")}


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("scripted", [False, True])
def test_what_it_shows_cannot_be_written(rows: int, scripted: bool) -> None:
    made = board(rows, rows, scripted)
    made.remaining(0.0)  # weighs everything anew
    shown = arrays(made)
    assert {"todo", "may", "free", "idle", "holds", "weight", "column_weight", "ready_at"} <= set(shown)
    for name, array in shown.items():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        assert np.shares_memory(array, vars(made).get(f"_{name}", array)), f"{name} is a view of what is written"


def private_uses(path: Path) -> list[str]:
    """Where a file reads or writes a private attribute of a board."""
    source = path.read_text()
    if "board" not in source:
        return []
    private = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    ]
    owners = [(node, ast.unparse(node.value)) for node in private]
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno} uses {owner}.{node.attr}"
        for node, owner in owners
        if owner.split(".")[-1].strip("_") == "board"
    ]


def test_nobody_reaches_behind_what_it_shows() -> None:
    assert len(OTHERS) > 100
    assert [use for path in OTHERS for use in private_uses(path)] == []


def test_a_unit_that_is_taken_back_is_as_if_it_had_never_been_assigned() -> None:
    made, twin = board(), board()
    made.start(worker=0, trial=1, column=0, now=2.0)
    assert made.is_training(1)
    assert not made.free[1]
    assert not made.idle[0]
    assert not made.todo[1, 0]
    assert made.until[1] == made.ready_at[0] == 5.0
    made.take_back(1, [0])
    made.set_idle(0, 0.0)
    assert not made.is_training(1)
    for name, array in arrays(twin).items():
        if name != "until":  # of a unit that does not run
            assert (arrays(made)[name] == array).all(), name


def test_an_epoch_goes_by() -> None:
    made = board()
    for column in (0, 1):
        made.start(column, 0, column, now=0.0)
        made.finish(0)
        made.set_idle(column, 3.0)
    assert made.open[0] == 0
    assert made.free[0]
    assert made.skip[0] == 1
    made.begin_epoch(0, later=0)
    assert (made.open[0], made.turn[0], made.skip[0]) == (2, 1, NEVER)
    made.deactivate(0)
    assert not made.active[0]
    assert not made.free[0]
    assert not made.is_training(0)
    assert made.remaining(3.0)[0] == 0.0


@pytest.mark.parametrize("foreseen", [True, False])
def test_an_epoch_that_was_not_foreseen_makes_plans_void_and_counts_as_any_other(foreseen: bool) -> None:
    made = board()
    if not foreseen:
        made.activate(0, later=0)
    for column in (0, 1):
        made.start(column, 0, column, now=0.0)
        made.finish(0)
        made.set_idle(column, now=3.0)
    before = made.layout
    made.begin_epoch(0, later=0)
    assert (made.layout == before) == foreseen
    assert made.remaining(3.0)[0] == made.remaining(3.0)[1] / 2 == 6.0


def test_a_worker_that_left_is_neither_there_nor_idle() -> None:
    made = board()
    made.leave(0)
    assert not made.live[0]
    assert not made.idle[0]
    made.join(0, now=7.0)
    made.occupy(0, now=8.0)
    assert made.live[0]
    assert not made.idle[0]
    assert made.ready_at[0] == 8.0
    made.set_idle(0, now=9.0)
    made.withdraw(0)
    assert made.live[0]
    assert not made.idle[0]


def test_of_those_that_may_take_a_unit_now_what_they_run_does_not_count() -> None:
    made = board()
    made.start(0, 0, 0, now=0.0)
    nobody, first = np.zeros(16, dtype=bool), np.zeros(16, dtype=bool)
    first[0] = True
    assert made.loads(1.0, nobody)[0] - made.loads(1.0, first)[0] == 2.0


def test_a_unit_that_is_taken_back_frees_only_a_trial_that_goes_on() -> None:
    made = board()
    for row in (0, 1):
        made.start(row, row, row, now=0.0)
    made.deactivate(1)
    for row in (0, 1):
        made.take_back(row, [row])
    assert made.free[:2].tolist() == [True, False]
