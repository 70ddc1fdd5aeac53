"""How long units take: given beforehand, or learnt as they are measured. PURE: it never looks at a clock.

A unit's seconds are modelled as `cost[trial] * slowness[worker] * size[partition]`. The logarithms of the first two are
fitted as units end, each new measurement moving an estimate less than the one before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A trial that was never measured counts as one of the costly ones: then it starts, and is measured, early. A long trial
# that starts late is the one mistake that no later choice can correct.
_UNMEASURED_QUANTILE = 0.9
# As many measurements as that: a cost or speed that was given does not change any more.
_SURE = 1e9


class CostModel:
    """Estimates by row, for the trials, workers and columns (training partitions) of a board.

    >>> model = CostModel(sizes=[1.0, 1.0])
    >>> model.add_trial(0); model.add_worker(0)
    >>> model.observe(trial=0, worker=0, column=1, seconds=3.0)
    >>> round(float(model.seconds(0, 0, 0)), 6)
    3.0
    """

    def __init__(self, sizes: list[float]) -> None:
        self.sizes: Floats = np.asarray(sizes, dtype=np.float64)
        self.slowness: Floats = np.ones(16)
        self.cost: Floats = np.ones(16)
        self.version = 0
        self._sizes = list(sizes)
        self._guess = 1.0
        self._log_cost: list[float | None] = []
        self._seen_cost: list[float] = []
        self._log_slow: list[float] = []
        self._seen_slow: list[float] = []

    def add_trial(self, row: int, cost: float | None = None) -> None:
        """Add a trial in the next row; `cost` is its seconds for a unit of size 1 at slowness 1, if known."""
        self.cost = _with_room(self.cost, row)
        self.cost[row] = self._guess if cost is None else cost
        self._log_cost.append(None if cost is None else math.log(cost))
        self._seen_cost.append(0.0 if cost is None else _SURE)

    def add_worker(self, row: int, speed: float | None = None) -> None:
        """Estimate the worker in this row, or the next, anew: from its `speed` if known, else as an average one."""
        self.slowness = _with_room(self.slowness, row)
        if row == len(self._log_slow):
            self._log_slow.append(0.0)
            self._seen_slow.append(0.0)
        self._log_slow[row] = 0.0 if speed is None else -math.log(speed)
        self._seen_slow[row] = 0.0 if speed is None else _SURE
        self.slowness[row] = math.exp(self._log_slow[row])
        self.version += 1

    def observe(self, trial: int, worker: int, column: int, seconds: float) -> None:
        """Learn from a training unit that took `seconds`."""
        measured = math.log(max(seconds, 1e-9) / self._sizes[column])
        expected = self._log_cost[trial]
        if expected is None:
            self._log_cost[trial] = measured - self._log_slow[worker]
            self._seen_cost[trial] = 1.0
            self.cost[trial] = math.exp(measured - self._log_slow[worker])
            self._guess_unmeasured()
            return
        self._seen_cost[trial] += 1.0
        self._seen_slow[worker] += 1.0
        to_trial, to_worker = 1.0 / self._seen_cost[trial], 1.0 / self._seen_slow[worker]
        scale = (measured - expected - self._log_slow[worker]) / max(1.0, to_trial + to_worker)
        self._log_cost[trial] = expected + scale * to_trial
        self._log_slow[worker] += scale * to_worker
        self.cost[trial] = math.exp(expected + scale * to_trial)
        self._revise_slowness(worker)

    def seconds(self, trial: int, worker: int, column: int) -> float:
        """The expected seconds of a training unit."""
        return float(self.cost[trial]) * float(self.slowness[worker]) * self._sizes[column]

    def measured(self, trial: int) -> bool:
        """Whether the trial's cost is known or was measured at least once."""
        return self._log_cost[trial] is not None

    def speed(self, row: int) -> float:
        """The relative speed of a worker, 1 for one that was never compared with others."""
        return 1.0 / float(self.slowness[row])

    def speed_is_sure(self, row: int, measurements: int) -> bool:
        """Whether a worker's speed rests on that many measurements (or was given)."""
        return self._seen_slow[row] >= measurements

    def _revise_slowness(self, worker: int) -> None:
        """Publish only changes that matter: after each the whole board is weighed anew."""
        slowness = math.exp(self._log_slow[worker])
        if abs(slowness / float(self.slowness[worker]) - 1.0) > 0.01:
            self.slowness[worker] = slowness
            self.version += 1

    def _guess_unmeasured(self) -> None:
        """Guess the costs of unmeasured trials anew, after one was measured for the first time."""
        unmeasured = [row for row, log in enumerate(self._log_cost) if log is None]
        if unmeasured:
            known = [log for log in self._log_cost if log is not None]
            self._guess = math.exp(float(np.quantile(known, _UNMEASURED_QUANTILE))) * (1 + 1e-9)
            self.cost[unmeasured] = self._guess


def _with_room(array: Floats, row: int) -> Floats:
    """Return the array, twice as long if it lacks this row."""
    return array if row < array.size else np.concatenate([array, np.ones(array.size)])
