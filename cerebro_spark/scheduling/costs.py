"""How long units take: given beforehand, or learnt as they are measured. PURE: it never looks at a clock.

A unit's seconds are modelled as `cost[trial] * slowness[worker] * size[partition]`. The logarithms of the first two are
fitted as units end, each new measurement moving an estimate less than the one before. Units that are computed together
take the sum of their costs, divided by what is gained by that (see `gains.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.scheduling.gains import Gains

Floats = NDArray[np.float64]

# A trial that was never measured counts as one of the costly ones: then it starts, and is measured, early. A long trial
# that starts late is the one mistake that no later choice can correct.
_UNMEASURED_QUANTILE = 0.9
# As many measurements as that: a cost or speed that was given does not change any more.
_SURE = 1e9
# A smaller gain is not worth that bundles are harder to spread over workers than single trials.
_LEAST_GAIN = math.log(1.05)


class CostModel:
    """Estimates by row, for the trials, workers and columns (training partitions) of a board.

    >>> model = CostModel(sizes=[1.0, 1.0])
    >>> model.add_trial(0); model.add_worker(0)
    >>> model.observe([0], worker=0, column=1, seconds=3.0)
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
        self._gains = Gains()
        self._estimates: dict[str, float] = {}
        """The logarithms of what was estimated before a unit was measured, by kin."""
        self._kin: list[str] = []
        self._log_cost: list[float | None] = []
        self._seen_cost: list[float] = []
        self._log_slow: list[float] = []
        self._seen_slow: list[float] = []

    def add_trial(self, row: int, cost: float | None = None, kin: str = "") -> None:
        """Add a trial in the next row; `cost` is its seconds for a unit of size 1 at slowness 1, if known."""
        self.cost = _with_room(self.cost, row)
        self._kin.append(kin)
        self._log_cost.append(None if cost is None else math.log(cost))
        self._seen_cost.append(0.0 if cost is None else _SURE)
        self.cost[row] = self._unmeasured_cost(kin) if cost is None else cost
        if cost is not None and self._gains.is_new(kin):
            self._gains.settle(kin, 1, 0.0)

    def estimate(self, kin: str, seconds: float) -> None:
        """Expect units of this kin to cost about as much, until one of them is measured."""
        self._estimates[kin] = math.log(max(seconds, 1e-9))
        self._guess_unmeasured()

    def set_kin(self, row: int, kin: str) -> None:
        """The trial is of this kin from now on."""
        self._kin[row] = kin

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

    def observe(self, trials: Sequence[int], worker: int, column: int, seconds: float, width: int = 1) -> None:
        """Learn from training units of one kin that took `seconds` in all, of which `width` were computed at once."""
        measured = math.log(max(seconds, 1e-9) / self._sizes[column])
        kin = self._kin[trials[0]]
        if self._gains.is_new(kin):
            self._gains.settle(kin, width, 0.0)
        gain = self._gains.log(kin, width)
        known = self._gains.is_known(kin, width)
        if all(self._log_cost[trial] is None for trial in trials) and (known or self._mean_of(kin) is None):
            share = measured - self._log_slow[worker] + gain
            self._measure(trials, share if len(trials) == 1 else share - math.log(len(trials)))
        elif not known:
            # Neither a trial nor the worker is slower than was thought: this is what the width does.
            self._gains.settle(kin, width, self._sum_of(trials) + self._log_slow[worker] - measured)
            self._guess_unmeasured()
        else:
            self._correct(trials, worker, kin, width, measured + gain)
        for trial in trials:
            self.cost[trial] = self.together([trial])

    def _measure(self, trials: Sequence[int], log_cost: float) -> None:
        """Set the cost of trials that were never measured before."""
        for trial in trials:
            self._log_cost[trial] = log_cost
            self._seen_cost[trial] = 1.0
        self._guess_unmeasured()

    def _correct(self, trials: Sequence[int], worker: int, kin: str, width: int, measured: float) -> None:
        """Let trials, worker and gain share the deviation of a measurement from what was expected."""
        expected = self._sum_of(trials)
        self._seen_slow[worker] += 1.0
        for trial in trials:
            self._seen_cost[trial] += 1.0
        to_trial = sum(1.0 / self._seen_cost[trial] for trial in trials) / len(trials)
        to_worker, to_gain = 1.0 / self._seen_slow[worker], self._gains.weigh(kin, width)
        scale = (measured - expected - self._log_slow[worker]) / max(1.0, to_trial + to_worker + to_gain)
        for trial in trials:
            known = self._log_cost[trial]
            assert known is not None
            self._log_cost[trial] = known + scale * (1.0 / self._seen_cost[trial])
        self._log_slow[worker] += scale * to_worker
        self._gains.move(kin, width, -scale * to_gain)
        self._revise_slowness(worker)

    def _sum_of(self, trials: Sequence[int]) -> float:
        """Return the logarithm of the trials' costs in all; one that was never measured costs as much as its kin."""
        if any(self._log_cost[trial] is None for trial in trials):
            mean = self._mean_of(self._kin[trials[0]])
            for trial in trials:
                self._log_cost[trial] = mean if self._log_cost[trial] is None else self._log_cost[trial]
        logs = [log for log in map(self._log_cost.__getitem__, trials) if log is not None]
        return logs[0] if len(logs) == 1 else math.log(sum(map(math.exp, logs)))

    def _mean_of(self, kin: str) -> float | None:
        """Return the mean of the logarithms of the costs of this kin, as far as they are known."""
        logs = [log for log, other in zip(self._log_cost, self._kin, strict=True) if kin == other and log is not None]
        return sum(logs) / len(logs) if logs else None

    def together(self, trials: Sequence[int]) -> float:
        """Return the expected cost of units of one kin that are computed together; of a single trial, its own."""
        kin = self._kin[trials[0]]
        logs = [self._log_cost[trial] for trial in trials]
        gain = self._gains.log(kin, len(trials))
        if len(trials) == 1 and logs[0] is not None:
            return math.exp(logs[0] - gain)
        guess = self._unmeasured_cost(kin)
        # What was never measured is guessed as it would be alone.
        alone = math.exp(self._gains.log(kin, 1))
        return sum(guess * alone if log is None else math.exp(log) for log in logs) / math.exp(gain)

    def show(self, row: int, trials: Sequence[int]) -> None:
        """Let a row stand for these trials, of one kin: its cost is theirs."""
        self.cost[row] = self.together(trials)

    def seconds(self, trial: int, worker: int, column: int) -> float:
        """The expected seconds of a training unit, or of those of all trials for which the row stands."""
        return float(self.cost[trial]) * float(self.slowness[worker]) * self._sizes[column]

    def seconds_alone(self, trial: int, worker: int, column: int) -> float:
        """The expected seconds of a training unit that runs by itself."""
        return self.together([trial]) * float(self.slowness[worker]) * self._sizes[column]

    def measured(self, trial: int) -> bool:
        """Whether the trial's cost is known or was measured at least once."""
        return self._log_cost[trial] is not None

    def measured_alone(self, trial: int) -> bool:
        """Whether the cost is known that the trial has by itself."""
        return self._log_cost[trial] is not None and self._gains.is_known(self._kin[trial], 1)

    def gains_nothing(self, kin: str, width: int) -> bool:
        """Whether it is known that units of this kin are hardly faster at this width than by themselves."""
        known = self._gains.is_known(kin, 1) and self._gains.is_known(kin, width)
        return known and self._gains.log(kin, width) - self._gains.log(kin, 1) < _LEAST_GAIN

    def is_new(self, trial: int) -> bool:
        """Whether nothing is known of the costs of this trial and its kin."""
        return self._gains.is_new(self._kin[trial])

    def is_unknown(self, trial: int) -> bool:
        """Whether nothing of this trial and its kin was measured, nor estimated."""
        return self.is_new(trial) and self._kin[trial] not in self._estimates

    def is_estimated(self, trial: int) -> bool:
        """Whether what is known of this trial and its kin is an estimate alone."""
        return self.is_new(trial) and self._kin[trial] in self._estimates

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
            known = [log for log in self._log_cost if log is not None] or list(self._estimates.values())
            self._guess = math.exp(float(np.quantile(known, _UNMEASURED_QUANTILE))) * (1 + 1e-9)
            guesses = {kin: self._unmeasured_cost(kin) for kin in {self._kin[row] for row in unmeasured}}
            self.cost[unmeasured] = [guesses[self._kin[row]] for row in unmeasured]

    def _unmeasured_cost(self, kin: str) -> float:
        """Guess the cost, alone, of a trial that was never measured: that of its kin, or that of a costly one.

        What was estimated of its kin is corrected by how far other estimates were off.
        """
        known = self._known_log(kin)
        if known is None and kin in self._estimates:
            known = self._estimates[kin] + self._bias()
        return self._guess if known is None else math.exp(known)

    def _known_log(self, kin: str) -> float | None:
        """Return the logarithm of what trials of this kin cost alone on average, as measured; None if none was."""
        mean = None if self._gains.is_new(kin) or not kin else self._mean_of(kin)
        return None if mean is None else mean - self._gains.log(kin, 1)

    def _bias(self) -> float:
        """Return by how much units took longer than was estimated, where they were measured: a logarithm."""
        pairs = [(self._known_log(kin), log) for kin, log in self._estimates.items()]
        off = [known - log for known, log in pairs if known is not None]
        return sum(off) / len(off) if off else 0.0


def _with_room(array: Floats, row: int) -> Floats:
    """Return the array, twice as long if it lacks this row."""
    return array if row < array.size else np.concatenate([array, np.ones(array.size)])
