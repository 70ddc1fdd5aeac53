"""The board: trials, workers and training partitions as arrays, so that a policy can look at all of them at once.

PURE. The board keeps count and never decides. A trial and a worker each have a row, numbered in order of arrival. A
column is a training partition, in the order of the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.types import TrialId, WorkerId

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Array = TypeVar("_Array", bound=NDArray[np.generic])

# A number of turns that no run will ever see.
NEVER = 2**40
# Boards of up to this many cells get exact loads at every decision.
_FRESH_CELLS = 4096
# Arrays start with this many rows and double when they are full.
_ROWS = 16


class Board:
    """What a policy needs to know, as arrays that are longer than what is in use: unused rows are False or zero.

    The arrays are read-only views; only the methods of this class change what is in them. What a trial has done and is
    asked for is recorded in its TrialRecord, what a worker has to do in its WorkerRecord: here is only what policies
    choose by.

    Of each trial (row `t`) and column `c`:
        todo[t, c]: the unit of its current epoch is neither done nor assigned.
        may[t, c]: it may train there next; the same as `todo` unless the trial follows a script.
        open[t]: how many units are in `todo`.
        active[t]: it has units left to train, a running one included.
        free[t]: it could start a unit now. A trial that is active and not free runs one.
        later[t]: whole epochs to come after the current one.
        skip[t]: turns until it returns to a partition that it has done: 1, or NEVER.
        turn[t]: epochs on the common clock of a rotation.
        slot[t]: its place in the rotation.
        weight[t]: its remaining units, each weighed by the slowness of the partition's holders.
        until[t]: when its running unit is expected to end.

    Of each worker (row `w`) and column `c`:
        holds[w, c]: it holds the partition.
        live[w]: it is there.
        idle[w]: it could start a unit now.
        ready_at[w]: when it is expected to be idle.

    Of each column: `holders[c]` is how many workers hold it, `column_weight[c]` its size times their mean slowness.

    `layout` changes with everything but the regular progress of trials: a plan made for another layout is void.
    """

    def __init__(self, columns: int, costs: CostModel, scripted: bool = False) -> None:
        self.columns = columns
        self.costs = costs
        self.layout = 0
        self.trial_ids: list[TrialId] = []
        self.worker_ids: list[WorkerId] = []
        self._todo: Bools = np.zeros((_ROWS, columns), dtype=np.bool_)
        self._pointed: Bools | None = np.zeros((_ROWS, columns), dtype=np.bool_) if scripted else None
        self._open: Ints = np.zeros(_ROWS, dtype=np.int64)
        self._active: Bools = np.zeros(_ROWS, dtype=np.bool_)
        self._free: Bools = np.zeros(_ROWS, dtype=np.bool_)
        self._later: Ints = np.zeros(_ROWS, dtype=np.int64)
        self._skip: Ints = np.full(_ROWS, NEVER)
        self._turn: Ints = np.zeros(_ROWS, dtype=np.int64)
        self._slot: Ints = np.zeros(_ROWS, dtype=np.int64)
        self._weight: Floats = np.zeros(_ROWS)
        self._until: Floats = np.zeros(_ROWS)
        self._holds: Bools = np.zeros((_ROWS, columns), dtype=np.bool_)
        self._live: Bools = np.zeros(_ROWS, dtype=np.bool_)
        self._idle: Bools = np.zeros(_ROWS, dtype=np.bool_)
        self._ready_at: Floats = np.zeros(_ROWS)
        self._holders: Ints = np.zeros(columns, dtype=np.int64)
        self._column_weight: Floats = costs.sizes.copy()
        self._weighed = -1
        self._starts = self._loaded_at = 0
        self._loaded = -1
        self._loads: Floats = np.zeros(_ROWS)
        self._slots: set[int] = set()
        self._show_trials()
        self._show_workers()

    def _show_trials(self) -> None:
        """Publish the arrays of trials as views through which nothing can be written."""
        self.todo, self.active, self.free = _view(self._todo), _view(self._active), _view(self._free)
        self.may = self.todo if self._pointed is None else _view(self._pointed)
        self.open, self.later, self.skip = _view(self._open), _view(self._later), _view(self._skip)
        self.turn, self.slot = _view(self._turn), _view(self._slot)
        self.weight, self.until = _view(self._weight), _view(self._until)

    def _show_workers(self) -> None:
        self.holds, self.live, self.idle = _view(self._holds), _view(self._live), _view(self._idle)
        self.ready_at, self.holders = _view(self._ready_at), _view(self._holders)
        self.column_weight = _view(self._column_weight)

    # -- trials

    def add_trial(self, trial: TrialId) -> int:
        """Give a new trial a row, and return it."""
        row = len(self.trial_ids)
        self.trial_ids.append(trial)
        if row >= self._active.size:
            self._grow("todo", "active", "free", "open", "later", "turn", "slot", "weight", "until")
            self._skip = np.concatenate([self._skip, np.full(self._skip.size, NEVER)])
            if self._pointed is not None:
                self._grow("pointed")
            self._show_trials()
        return row

    def is_training(self, trial: int) -> bool:
        """Return whether the trial runs a training unit, or has one assigned."""
        return bool(self._active[trial]) and not self._free[trial]

    def point(self, trial: int, columns: Sequence[int]) -> None:
        """Let a trial that follows a script train next on these columns, all at once, or on none for now."""
        assert self._pointed is not None
        self._pointed[trial] = False
        self._pointed[trial, list(columns)] = True

    def activate(self, trial: int, later: int, done: Sequence[int] = (), turn: int | None = None) -> None:
        """Give the trial an epoch to train, and `later` epochs after it.

        Args:
            trial: The row of the trial.
            later: How many epochs follow the current one.
            done: The columns that are not open any more, for a trial that begins in the middle of an epoch.
            turn: Its turn in a rotation; None for that of a newcomer.
        """
        if not self._active[trial]:
            slot = next(s for s in range(len(self._slots) + 1) if s not in self._slots)
            self._slots.add(slot)
            self._slot[trial] = slot
            self._turn[trial] = self._turn_for_newcomer() if turn is None else turn
            self._active[trial] = self._free[trial] = True
            self._open_epoch(trial)
            for column in done:
                self._todo[trial, column] = False
                self._open[trial] -= 1
        self._set_later(trial, later)
        self.layout += 1
        self._weigh(trial)

    def deactivate(self, trial: int) -> None:
        """Take the trial, which runs no unit, off the board: it has nothing to train for now."""
        if self._active[trial]:
            if self._open[trial] or self._later[trial]:
                self.layout += 1
            self._slots.discard(int(self._slot[trial]))
            self._active[trial] = self._free[trial] = False
            self._todo[trial] = False
            self._open[trial] = 0
            self._set_later(trial, 0)
            self._weight[trial] = 0.0

    def hand_over(self, trial: int, heir: int) -> None:
        """Let another row, which is not active, take the place of this one with all that it has to do."""
        taken = [self._todo, self._open, self._active, self._free, self._later, self._skip, self._turn, self._slot]
        for array in (*taken, self._weight, self._until):
            array[heir] = array[trial]
        self._active[trial] = self._free[trial] = False
        self._todo[trial] = False
        self._open[trial] = 0
        self._set_later(trial, 0)
        self._weight[trial] = 0.0
        self.layout += 1

    def close_ranks(self) -> None:
        """Give out the places in a rotation anew, in their order, without the gaps that were left."""
        (rows,) = self._active.nonzero()
        for slot, row in enumerate(sorted(rows, key=lambda row: int(self._slot[row]))):
            self._slot[row] = slot
        self._slots = set(range(rows.size))
        self.layout += 1

    def begin_epoch(self, trial: int, later: int) -> None:
        """Open all units of the trial's next epoch, which `later` epochs follow.

        Those of a bundle end an epoch one after another. Until the last one has, it may seem that none follows.
        """
        foreseen = self._later[trial] == later + 1
        self._open_epoch(trial)
        self._set_later(trial, later)
        self._turn[trial] += 1
        if not foreseen:
            self.layout += 1
            self._weigh(trial)

    def _open_epoch(self, trial: int) -> None:
        self._todo[trial] = True
        self._open[trial] = self.columns

    def _set_later(self, trial: int, later: int) -> None:
        self._later[trial] = later
        self._skip[trial] = 1 if later else NEVER

    def _turn_for_newcomer(self) -> int:
        """Return a turn behind all that have begun: a rotation must not wait for a newcomer."""
        if not np.count_nonzero(self._active):
            return 0
        turns = self._turn[self._active]
        begun = self._open[self._active] < self.columns
        return int((turns + begun).max())

    # -- workers

    def add_worker(self, worker: WorkerId) -> int:
        """Give a new worker a row, and return it. The worker is not there before `join`."""
        row = len(self.worker_ids)
        self.worker_ids.append(worker)
        self.layout += 1
        if row >= self._idle.size:
            self._grow("holds", "idle", "live", "ready_at")
            self._show_workers()
        return row

    def join(self, worker: int, now: float) -> None:
        """The worker is there, and idle."""
        self._live[worker] = True
        self.set_idle(worker, now)

    def leave(self, worker: int) -> None:
        """The worker is gone. What it held must be released as well."""
        self._live[worker] = self._idle[worker] = False

    def withdraw(self, worker: int) -> None:
        """Give the worker nothing new."""
        self._idle[worker] = False

    def set_idle(self, worker: int, now: float) -> None:
        """The worker has nothing to do."""
        self._idle[worker] = True
        self._ready_at[worker] = now

    def occupy(self, worker: int, now: float) -> None:
        """The worker has something to do that is short and no training unit: an evaluation."""
        self._idle[worker] = False
        self._ready_at[worker] = max(now, float(self._ready_at[worker]))

    def hold(self, worker: int, column: int, held: bool) -> None:
        """The worker holds the partition from now on, or no longer."""
        if self._holds[worker, column] != held:
            self._holds[worker, column] = held
            self._holders[column] += 1 if held else -1
            self.layout += 1
            self._weighed = -1

    # -- units

    def start(self, worker: int, trial: int, column: int, now: float) -> None:
        """Assign a training unit."""
        begins = max(now, float(self._ready_at[worker]))
        self._take(worker, trial, column)
        self._until[trial] = self._ready_at[worker] = begins + self.costs.seconds(trial, worker, column)

    def start_group(self, members: Sequence[tuple[int, int]], trial: int, now: float, seconds: float) -> None:
        """Assign a training unit to several workers, each with its column; they begin when all are there.

        Args:
            members: The workers, and their columns.
            trial: The trial.
            now: The time.
            seconds: What the unit is expected to take them.
        """
        begins = max(now, *(float(self._ready_at[worker]) for worker, _ in members))
        for worker, column in members:
            self._take(worker, trial, column)
            self._ready_at[worker] = begins + seconds
        self._until[trial] = begins + seconds

    def _take(self, worker: int, trial: int, column: int) -> None:
        """Give a worker an open column of a trial."""
        self._todo[trial, column] = False
        self._open[trial] -= 1
        self._free[trial] = False
        self._starts += 1
        self._idle[worker] = False
        self._weight[trial] -= self._column_weight[column]

    def finish(self, trial: int) -> None:
        """The trial's training unit ended well."""
        self._free[trial] = True

    def take_back(self, trial: int, columns: Sequence[int]) -> None:
        """An assigned training unit, of one column or several, did not happen: it is open again."""
        for column in columns:
            self._todo[trial, column] = True
            self._weight[trial] += self._column_weight[column]
        self._open[trial] += len(columns)
        self._free[trial] = bool(self._active[trial])
        self.layout += 1

    # -- what is expected

    def remaining(self, now: float) -> Floats:
        """Return, by trial, the expected seconds until all it was asked for is trained, its running unit included."""
        self.reweigh()
        left = self.costs.cost[: self._weight.size] * self._weight
        left += np.maximum(self._until - now, 0.0) * (self._active & ~self._free)
        return left

    def loads(self, now: float, eligible: Bools) -> Floats:
        """Return, by worker, the expected seconds of all its units, shared evenly among a partition's holders.

        What a worker runs now counts, except for the `eligible`: they are compared by what they could take next.
        """
        self.reweigh()
        # A load is the sum of many units, so that a few make no difference: a large board is added up now and then.
        if self._loaded != self.layout or self._starts - self._loaded_at > self._todo.size // _FRESH_CELLS:
            self._loaded, self._loaded_at = self.layout, self._starts
            cost = self.costs.cost[: self._weight.size]
            by_column = (cost @ self._todo + cost @ self._later) * self.costs.sizes / np.maximum(self._holders, 1)
            self._loads = self.costs.slowness[: self._idle.size] * (self._holds @ by_column)
        return self._loads + np.maximum(self._ready_at - now, 0.0) * (self._live & ~eligible)

    def reweigh(self) -> None:
        """Bring the weights up to date after the estimated speeds of workers, or the holders, have changed."""
        if self._weighed == self.costs.version:
            return
        self._weighed = self.costs.version
        slow = self.costs.slowness[: self._idle.size]
        average = (slow @ self._holds) / np.maximum(self._holders, 1)
        self._column_weight = np.where(self._holders > 0, average, 1.0) * self.costs.sizes
        self._weight = self._todo @ self._column_weight + self._later * self._column_weight.sum()
        self.column_weight, self.weight = _view(self._column_weight), _view(self._weight)

    def _weigh(self, trial: int) -> None:
        self._weight[trial] = self._todo[trial] @ self._column_weight + self._later[trial] * self._column_weight.sum()

    def _grow(self, *names: str) -> None:
        for name in names:
            array = getattr(self, f"_{name}")
            setattr(self, f"_{name}", np.concatenate([array, np.zeros_like(array)]))


def _view(array: _Array) -> _Array:
    view = array.view()
    view.flags.writeable = False
    return view
