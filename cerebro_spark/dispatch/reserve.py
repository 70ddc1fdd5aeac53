"""Reserve: the longest trial first, but a worker is held back for a critical trial that will need it before long.

It is for many trials, or trials and workers that differ. It must never hold a worker that has no time to lose, nor hold
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cerebro_spark.dispatch.base import Changes, PolicyView, UnitChoice
from cerebro_spark.dispatch.greedy import choose_column, find_candidates, sort_by_load
from cerebro_spark.scheduling.board import Board, Bools, Floats

# How many candidates, longest first, are tried for a worker before it stays idle for now.
_CONSIDERED = 4


@dataclass(slots=True)
class _Outlook:
    """What is expected, kept up to date while choices are made one after another."""

    now: float
    left: Floats
    loads: Floats
    bound: float
    free: Bools
    until: Floats
    ready: Floats


def reserve(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
    """Give each idle worker the free trial with most left, unless that would make a more critical trial late."""
    board = view.board
    if not np.count_nonzero(eligible) or not np.count_nonzero(board.free):
        return []
    outlook = _look_ahead(view, eligible)
    choices = []
    for worker in sort_by_load(view, eligible):
        trial = _choose(view, outlook, worker)
        if trial >= 0:
            column = choose_column(view, worker, trial)
            end = view.now + board.costs.seconds(trial, worker, column)
            outlook.free[trial] = False
            outlook.until[trial] = outlook.ready[worker] = end
            choices.append(UnitChoice(worker, trial, column))
    if not choices and not np.count_nonzero(board.live & ~eligible):
        return _anything(view, np.flatnonzero(eligible))
    return choices


def _look_ahead(view: PolicyView, eligible: Bools) -> _Outlook:
    board = view.board
    left = board.remaining(view.now)
    left += left * view.rng.random(left.size) * 1e-9
    loads = board.loads(view.now, eligible)
    bound = float(max(left.max(), loads.max()))
    until = np.maximum(board.until, view.now)
    ready = np.where(eligible, view.now, np.maximum(board.ready_at, view.now))
    return _Outlook(view.now, left, loads, bound, board.free.copy(), until, ready)


def _choose(view: PolicyView, outlook: _Outlook, worker: int) -> int:
    board = view.board
    rows = find_candidates(board, outlook.free, worker)
    if not rows.size:
        return -1
    expected = _expected_visitors(board, outlook, worker)
    left = outlook.left[rows]
    for _ in range(min(_CONSIDERED, rows.size)):
        best = int(left.argmax())
        trial = int(rows[best])
        if not _makes_late(board, outlook, worker, trial, expected):
            return trial
        left[best] = -1.0
    return -1


def _expected_visitors(board: Board, outlook: _Outlook, worker: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Trials now running elsewhere that will want this worker, soon enough for it to wait without being late itself."""
    slack = outlook.bound - outlook.loads[worker]
    soon = board.active & ~outlook.free & (outlook.until - outlook.now <= slack)
    (rows,) = soon.nonzero()
    wants = (board.todo[rows] & board.holds[worker]).any(axis=1) | ((board.later[rows] > 0) & (board.open[rows] == 0))
    return np.asarray(rows[wants], dtype=np.intp)


def _makes_late(
    board: Board, outlook: _Outlook, worker: int, trial: int, visitors: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> bool:
    """Whether some visitor with more left than `trial` would find no worker in time if `trial` started here now."""
    end = outlook.now + float(board.costs.cost[trial] * board.costs.slowness[worker])
    rows = visitors[(outlook.left[visitors] > outlook.left[trial]) & (outlook.until[visitors] < end)]
    for row in rows:
        holds = board.holds & board.todo[row] if board.open[row] else board.holds
        others = board.live & holds.any(axis=1)
        others[worker] = False
        elsewhere = float(outlook.ready[others].min()) if np.count_nonzero(others) else np.inf
        delay = min(end, elsewhere) - outlook.until[row]
        if delay > max(0.0, outlook.bound - outlook.left[row]):
            return True
    return False


def _anything(view: PolicyView, workers: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[UnitChoice]:
    """All workers wait for a trial that another worker would have to run first: start the longest one."""
    for worker in workers:
        rows = find_candidates(view.board, view.board.free, int(worker))
        if rows.size:
            trial = int(rows[view.board.remaining(view.now)[rows].argmax()])
            return [UnitChoice(int(worker), trial, choose_column(view, int(worker), trial))]
    return []
