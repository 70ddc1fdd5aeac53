"""How long units take: given beforehand, or learnt as they are measured. PURE: it never looks at a clock.

A unit's seconds are modelled as `cost[trial] * slowness[worker] * size[partition]`. The logarithms of the first two are
fitted as units end, each new measurement moving an estimate less than the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A trial that was never measured is taken for one of the costly ones: it is then started, and so measured, early, and
# a long trial that starts late is the one mistake that cannot be made good.
_UNMEASURED_QUANTILE = 0.9
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
        self._log_cost: Floats = np.full(16, np.nan)
        self._seen_cost: Floats = np.zeros(16)
        self._log_slow: Floats = np.zeros(16)
        self._seen_slow: Floats = np.zeros(16)
        self._guessed = 1.0
        self.slowness: Floats = np.ones(16)
        self.cost: Floats = np.ones(16)
        self._unmeasured: NDArray[np.bool_] = np.zeros(16, dtype=np.bool_)
        self.version = 0

    def add_trial(self, row: int, cost: float | None = None) -> None:
        """A trial takes this row; `cost` are its seconds a unit of size 1 on a worker of slowness 1, if known."""
        self._grow_trials(row)
        if cost is not None:
            self._log_cost[row] = np.log(cost)
            self._seen_cost[row] = _SURE
            self._set_cost(row)
        elif np.isnan(self._log_cost[row]):
            self._unmeasured[row] = True
            self.cost[row] = self._guessed

    def add_worker(self, row: int, speed: float | None = None) -> None:
        """A worker takes this row, forgetting whoever had it; `speed` is known, or taken for average."""
        self._grow_workers(row)
        self._log_slow[row] = 0.0 if speed is None else -np.log(speed)
        self._seen_slow[row] = 0.0 if speed is None else _SURE
        self.slowness[row] = np.exp(self._log_slow[row])
        self.version += 1

    def observe(self, trial: int, worker: int, column: int, seconds: float) -> None:
        """A training unit took so long."""
        measured = np.log(max(seconds, 1e-9) / self.sizes[column])
        if np.isnan(self._log_cost[trial]):
            self._log_cost[trial] = measured - self._log_slow[worker]
            self._seen_cost[trial] = 1.0
            self._set_cost(trial)
            self._guess_unmeasured()
            return
        self._seen_cost[trial] += 1.0
        self._seen_slow[worker] += 1.0
        residual = measured - self._log_cost[trial] - self._log_slow[worker]
        to_trial, to_worker = 1.0 / self._seen_cost[trial], 1.0 / self._seen_slow[worker]
        scale = residual / max(1.0, to_trial + to_worker)
        self._log_cost[trial] += scale * to_trial
        self._log_slow[worker] += scale * to_worker
        self._set_cost(trial)
        slowness = np.exp(self._log_slow[worker])
        if abs(slowness / self.slowness[worker] - 1.0) > 0.01:
            self.slowness[worker] = slowness
            self.version += 1

    def seconds(self, trial: int, worker: int, column: int) -> float:
        """The expected seconds of a training unit."""
        return float(self.cost[trial] * self.slowness[worker] * self.sizes[column])

    def measured(self, trial: int) -> bool:
        """Whether the trial's cost is known or was measured at least once."""
        return not self._unmeasured[trial]

    def worker_speeds(self, rows: list[int]) -> list[float]:
        """Relative speeds, 1 for a worker that was never compared with others."""
        return [float(1.0 / self.slowness[row]) for row in rows]

    def speed_is_sure(self, row: int, measurements: int) -> bool:
        """Whether a worker's speed rests on that many measurements (or was given)."""
        return bool(self._seen_slow[row] >= measurements)

    def _set_cost(self, row: int) -> None:
        self.cost[row] = np.exp(self._log_cost[row])
        self._unmeasured[row] = False

    def _guess_unmeasured(self) -> None:
        """Called when a trial was measured for the first time: what the others may cost is now better known."""
        if self._unmeasured.any():
            measured = self._log_cost[~np.isnan(self._log_cost)]
            self._guessed = float(np.exp(np.quantile(measured, _UNMEASURED_QUANTILE))) * (1 + 1e-9)
            self.cost[self._unmeasured] = self._guessed

    def _grow_trials(self, row: int) -> None:
        while row >= self.cost.size:
            self._log_cost = np.concatenate([self._log_cost, np.full(self.cost.size, np.nan)])
            self._seen_cost = np.concatenate([self._seen_cost, np.zeros(self.cost.size)])
            self._unmeasured = np.concatenate([self._unmeasured, np.zeros(self.cost.size, dtype=np.bool_)])
            self.cost = np.concatenate([self.cost, np.ones(self.cost.size)])

    def _grow_workers(self, row: int) -> None:
        while row >= self.slowness.size:
            self._log_slow = np.concatenate([self._log_slow, np.zeros(self.slowness.size)])
            self._seen_slow = np.concatenate([self._seen_slow, np.zeros(self.slowness.size)])
            self.slowness = np.concatenate([self.slowness, np.ones(self.slowness.size)])
