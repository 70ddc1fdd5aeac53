"""The simple policies, kept to compare with: longest remaining trial first, and the paper's random choice.

Neither ever leaves a worker idle on purpose.
"""

from __future__ import annotations

import numpy as np

from cerebro_spark.dispatch.base import Changes, PolicyView, UnitChoice
from cerebro_spark.scheduling.board import Board, Bools


def longest_first(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
    """Give each idle worker the free trial with most left to train, the most loaded worker first."""
    board = view.board
    if not np.count_nonzero(eligible) or not np.count_nonzero(board.free):
        return []
    left = board.remaining(view.now)
    left += left * view.rng.random(left.size) * 1e-9
    free = board.free.copy()
    choices = []
    for worker in sort_by_load(view, eligible):
        rows = find_candidates(board, free, worker)
        if rows.size:
            trial = int(rows[left[rows].argmax()])
            free[trial] = False
            choices.append(UnitChoice(worker, trial, choose_column(view, worker, trial)))
    return choices


def random_choice(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
    """Give each idle worker any unit it can run, all equally likely: Algorithm 1 of the Cerebro paper."""
    board = view.board
    free = board.free.copy()
    choices = []
    for worker in np.flatnonzero(eligible):
        rows, columns = np.nonzero(board.may & free[:, None] & board.holds[worker])
        if rows.size:
            pick = int(view.rng.integers(rows.size))
            free[rows[pick]] = False
            choices.append(UnitChoice(int(worker), int(rows[pick]), int(columns[pick])))
    return choices


def find_candidates(board: Board, free: Bools, worker: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The free trials that have something to train on a partition of this worker."""
    (columns,) = board.holds[worker].nonzero()
    may = board.may[:, columns[0]] if columns.size == 1 else board.may[:, columns].any(axis=1)
    return (free & may).nonzero()[0]


def sort_by_load(view: PolicyView, eligible: Bools) -> list[int]:
    """Return the eligible workers, those with most work left first."""
    (workers,) = eligible.nonzero()
    if workers.size == 1:
        return [int(workers[0])]
    loads = view.board.loads(view.now, eligible)
    return sorted((int(w) for w in workers), key=lambda w: (-loads[w], w))


def choose_column(view: PolicyView, worker: int, trial: int) -> int:
    """Of the partitions that the trial could train on here, the one with most units left for each of its holders."""
    board = view.board
    (columns,) = (board.may[trial] & board.holds[worker]).nonzero()
    if columns.size == 1:
        return int(columns[0])
    waiting = board.todo[:, columns].sum(axis=0) / board.holders[columns]
    return int(columns[(waiting + view.rng.random(columns.size) * 1e-6).argmax()])
