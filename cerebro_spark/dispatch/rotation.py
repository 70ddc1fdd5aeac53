"""Rotation: every trial visits the workers in ring order, one place behind its neighbour, and workers wait for it.

It is for trials that are about as many as workers. There a greedy choice is soon left with pairs that cannot be run
together, whatever it chooses; a rotation never is. It must not be used where trials cost very different times: all move
at the pace of the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cerebro_spark.dispatch.base import Changes, PolicyView, UnitChoice
from cerebro_spark.scheduling.board import NEVER, Board, Bools, Ints
from cerebro_spark.scheduling.homes import choose_homes


@dataclass(slots=True)
class Ring:
    """The plan for one layout: in `size` steps a turn, each trial comes to each partition at a step of its own.

    What comes next for a trial or a worker stays the same until it has come, so it is worked out once and remembered
    in `next_trial_unit` and `next_worker_unit`.
    """

    layout: int
    size: int
    home: Ints
    place: Ints
    start: Ints
    columns: dict[int, list[int]]
    steps: dict[int, Ints] = field(default_factory=dict)
    next_trial_unit: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_worker_unit: dict[int, tuple[int, int]] = field(default_factory=dict)

    def of_trial(self, board: Board, trial: int) -> tuple[int, int]:
        """The worker and the column to which a trial goes next in its epoch; (-1, -1) when nothing is left of it."""
        known = self.next_trial_unit.get(trial)
        if known is None:
            known = self.next_trial_unit[trial] = self._seek_for_trial(board, trial)
        return known

    def of_worker(self, board: Board, worker: int) -> tuple[int, int]:
        """The trial that a worker must serve next, and on which column; (-1, -1) when none will ever come."""
        known = self.next_worker_unit.get(worker)
        if known is None:
            known = self.next_worker_unit[worker] = self._seek_for_worker(board, worker)
        return known

    def started(self, choice: UnitChoice) -> None:
        """That unit is under way: look for the next one."""
        del self.next_trial_unit[choice.trial]
        del self.next_worker_unit[choice.worker]

    def _seek_for_trial(self, board: Board, trial: int) -> tuple[int, int]:
        columns = board.todo[trial].nonzero()[0]
        if not columns.size:
            return -1, -1
        column = int(columns[((self.start[trial] - self.place[columns]) % self.size).argmin()])
        return int(self.home[column]), column

    def _seek_for_worker(self, board: Board, worker: int) -> tuple[int, int]:
        best, found = NEVER, (-1, -1)
        for column in self.columns.get(worker, ()):
            steps = self.steps.get(column)
            if steps is None:
                steps = self.steps[column] = (self.start - self.place[column]) % self.size
            due = ~board.todo[:, column] * board.skip
            due += board.turn
            due *= self.size
            due += steps
            trial = int(due.argmin())
            if due[trial] < best:
                best, found = int(due[trial]), (trial, column)
        return found


def rotation(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
    """Start a unit only if it is the next one both of its worker and of its trial."""
    board = view.board
    ring = _ring(view)
    if changes.everything:
        workers = [worker for worker in ring.columns if eligible[worker]]
    else:
        homes = [ring.of_trial(board, trial)[0] for trial in changes.trials if board.free[trial]]
        workers = [w for w in dict.fromkeys([*changes.workers, *homes]) if w >= 0 and eligible[w]]
    choices = []
    for worker in workers:
        trial, column = ring.of_worker(board, worker)
        if trial >= 0 and board.free[trial] and ring.of_trial(board, trial) == (worker, column):
            choices.append(UnitChoice(worker, trial, column))
    for choice in choices:
        ring.started(choice)
    return choices


def _ring(view: PolicyView) -> Ring:
    ring: Ring | None = view.memo.get("ring")
    if ring is None or ring.layout != view.board.layout:
        ring = view.memo["ring"] = _draw(view.board)
    return ring


def _draw(board: Board) -> Ring:
    """Seat the partitions around a ring, those of one worker side by side."""
    home = choose_homes(board)
    columns: dict[int, list[int]] = {}
    for column in np.argsort(home, kind="stable"):
        if home[column] >= 0:
            columns.setdefault(int(home[column]), []).append(int(column))
    spacing = max((len(held) for held in columns.values()), default=1)
    place = np.zeros(board.columns, dtype=np.int64)
    for rank, held in enumerate(columns.values()):
        place[held] = rank * spacing + np.arange(len(held))
    slots = int(board.slot[board.active].max()) + 1 if board.active.any() else 1
    size = max(slots, len(columns)) * spacing
    return Ring(board.layout, size, home, place, board.slot * spacing + spacing - 1, columns)
