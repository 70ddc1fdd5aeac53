"""The board on which a scheduler plays: trials, workers and training partitions as arrays that a policy reads at once.

PURE. It keeps count and never decides. Rows of trials and of workers are numbers given out in order of arrival; columns
are the training partitions in the order of the settings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.scheduling.costs import CostModel

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# A number of turns that no run will ever see.
NEVER = 2**40
# Boards of up to so many cells get exact loads at every decision.
_FRESH_CELLS = 4096


class Board:
    """Arrays are longer than what is in use; unused rows are all False or zero, so that no policy need look.

    Trials: `todo[t, c]` the unit of its current epoch is neither done nor assigned; `open[t]` how many such there are;
    `active[t]` it has training units left, running ones included; `free[t]` it could start one now; `later[t]` whole
    epochs to come after the current one; `skip[t]` the turns until it comes back to a partition it has
    done, 1 or never; `turn[t]` epochs on the common clock of a rotation; `slot[t]` its place in the
    rotation; `weight[t]` the remaining units, each weighed by the slowness of the partition's holders; `until[t]` when
    its unit is expected to end.

    `may[t, c]` is where it may go next: anywhere in `todo`; a trial that follows a script, to one partition at most.

    `layout` changes with everything but the regular progress of trials: plans drawn for another layout are void.

    Workers: `holds[w, c]`; `idle[w]` it could start a unit now; `live[w]`; `ready_at[w]` when it is expected
    to be idle.
    """

    def __init__(self, columns: int, costs: CostModel, scripted: bool = False) -> None:
        self.columns = columns
        self.costs = costs
        self.trials = 0
        self.workers = 0
        self.todo: Bools = np.zeros((16, columns), dtype=np.bool_)
        self.active: Bools = np.zeros(16, dtype=np.bool_)
        self.free: Bools = np.zeros(16, dtype=np.bool_)
        self.open: Ints = np.zeros(16, dtype=np.int64)
        self.later: Ints = np.zeros(16, dtype=np.int64)
        self.skip: Ints = np.full(16, NEVER)
        self.turn: Ints = np.zeros(16, dtype=np.int64)
        self.slot: Ints = np.zeros(16, dtype=np.int64)
        self.weight: Floats = np.zeros(16)
        self.until: Floats = np.zeros(16)
        self.holds: Bools = np.zeros((16, columns), dtype=np.bool_)
        self.idle: Bools = np.zeros(16, dtype=np.bool_)
        self.live: Bools = np.zeros(16, dtype=np.bool_)
        self.ready_at: Floats = np.zeros(16)
        self.column_weight: Floats = costs.sizes.copy()
        self.holders: Ints = np.zeros(columns, dtype=np.int64)
        self.pointed: Bools | None = np.zeros((16, columns), dtype=np.bool_) if scripted else None
        self.layout = 0
        self._weighed = -1
        self._starts = self._loaded_at = 0
        self._loaded = -1
        self._loads: Floats = np.zeros(16)
        self._slots: set[int] = set()

    # -- trials

    def add_trial(self) -> int:
        row, self.trials = self.trials, self.trials + 1
        if row >= self.active.size:
            for name in ("todo", "active", "free", "open", "later", "turn", "slot", "weight", "until"):
                setattr(self, name, _doubled(getattr(self, name)))
            self.skip = np.concatenate([self.skip, np.full(self.skip.size, NEVER)])
            if self.pointed is not None:
                self.pointed = np.concatenate([self.pointed, np.zeros_like(self.pointed)])
        return row

    @property
    def may(self) -> Bools:
        return self.todo if self.pointed is None else self.pointed

    def point(self, row: int, column: int | None) -> None:
        """The trial, which follows a script, may next go to this partition, or nowhere for now."""
        assert self.pointed is not None
        self.pointed[row] = False
        if column is not None:
            self.pointed[row, column] = True

    def activate(self, row: int, later: int) -> None:
        """The trial has an epoch to train, and `later` epochs after it."""
        if not self.active[row]:
            slot = next(s for s in range(len(self._slots) + 1) if s not in self._slots)
            self._slots.add(slot)
            self.slot[row] = slot
            self.turn[row] = self._turn_for_newcomer()
            self.active[row] = self.free[row] = True
            self.todo[row] = True
            self.open[row] = self.columns
        self.later[row] = later
        self.skip[row] = 1 if later else NEVER
        self.layout += 1
        self._weigh(row)

    def deactivate(self, row: int) -> None:
        """The trial has nothing to train for now."""
        if self.active[row]:
            if self.open[row] or self.later[row]:
                self.layout += 1
            self._slots.discard(int(self.slot[row]))
            self.active[row] = self.free[row] = False
            self.todo[row] = False
            self.open[row] = self.later[row] = 0
            self.skip[row] = NEVER
            self.weight[row] = 0.0

    def next_epoch(self, row: int) -> None:
        self.todo[row] = True
        self.open[row] = self.columns
        self.later[row] -= 1
        self.skip[row] = 1 if self.later[row] else NEVER
        self.turn[row] += 1

    def _turn_for_newcomer(self) -> int:
        """Behind everybody who has begun a turn: a newcomer must not make a rotation wait for it."""
        if not self.active.any():
            return 0
        turns = self.turn[self.active]
        begun = self.open[self.active] < self.columns
        return int((turns + begun).max())

    # -- workers

    def add_worker(self) -> int:
        row, self.workers = self.workers, self.workers + 1
        self.layout += 1
        if row >= self.idle.size:
            for name in ("holds", "idle", "live", "ready_at"):
                setattr(self, name, _doubled(getattr(self, name)))
        return row

    def hold(self, worker: int, column: int, held: bool) -> None:
        if self.holds[worker, column] != held:
            self.holds[worker, column] = held
            self.holders[column] += 1 if held else -1
            self.layout += 1
            self._weighed = -1

    # -- units

    def start(self, worker: int, trial: int, column: int, now: float) -> None:
        """A training unit was assigned."""
        begins = max(now, float(self.ready_at[worker]))
        self.todo[trial, column] = False
        self.open[trial] -= 1
        self.free[trial] = False
        self._starts += 1
        self.idle[worker] = False
        self.weight[trial] -= self.column_weight[column]
        self.until[trial] = self.ready_at[worker] = begins + self.costs.seconds(trial, worker, column)

    def take_back(self, trial: int, column: int) -> None:
        """An assigned training unit did not happen."""
        self.todo[trial, column] = True
        self.open[trial] += 1
        self.free[trial] = bool(self.active[trial])
        self.layout += 1
        self.weight[trial] += self.column_weight[column]

    def remaining(self, now: float) -> Floats:
        """By trial: the expected seconds until it has trained all it was asked for, the running unit included."""
        self.reweigh()
        left = self.costs.cost[: self.weight.size] * self.weight
        running = self.active & ~self.free
        left[running] += np.maximum(self.until[running] - now, 0.0)
        return left

    def loads(self, now: float) -> Floats:
        """By worker: the expected seconds of all units it must still do, shared evenly among a partition's holders.

        On a large board they are worked out anew only after some dozens of starts: a load is the sum of so many units
        that a few make no difference.
        """
        self.reweigh()
        if self._loaded != self.layout or self._starts - self._loaded_at > self.todo.size // _FRESH_CELLS:
            self._loaded, self._loaded_at = self.layout, self._starts
            cost = self.costs.cost[: self.weight.size]
            by_column = (cost @ self.todo + cost @ self.later) * self.costs.sizes / np.maximum(self.holders, 1)
            self._loads = self.costs.slowness[: self.idle.size] * (self.holds @ by_column)
        return self._loads + np.maximum(self.ready_at - now, 0.0) * (self.live & ~self.idle)

    def reweigh(self) -> None:
        """Bring the weights up to date after the estimates of worker speeds, or the holders, have changed."""
        if self._weighed == self.costs.version:
            return
        self._weighed = self.costs.version
        slow = self.costs.slowness[: self.idle.size]
        average = (slow @ self.holds) / np.maximum(self.holders, 1)
        self.column_weight = np.where(self.holders > 0, average, 1.0) * self.costs.sizes
        self.weight = self.todo @ self.column_weight + self.later * self.column_weight.sum()

    def _weigh(self, row: int) -> None:
        self.weight[row] = self.todo[row] @ self.column_weight + self.later[row] * self.column_weight.sum()


def _doubled(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([array, np.zeros_like(array)])
