"""How well several workers train one trial together, as it is learnt. PURE.

An efficiency of 1 means that m workers take a unit of m partitions in the time in which one worker takes a unit of one.
It differs widely between models, so it is measured and never assumed: what was never tried counts as 1, and is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# So many measurements of a kin are provisional: the first group pays for what happens only once.
_PROVISIONAL = 2


class _Measured(NamedTuple):
    """The mean of the logarithms of what was measured, and of how many times."""

    log: float
    times: int


class Efficiencies:
    """The efficiencies by kin and number of workers, those within one host apart from those across hosts.

    Args:
        known: What is known beforehand, of one worker, of two, and so on. Beyond the last it stays. Empty by default.

    >>> efficiencies = Efficiencies()
    >>> efficiencies.estimate("mlp", 4)
    1.0
    >>> for _ in range(2): efficiencies.observe("mlp", 4, 0.5)
    >>> efficiencies.estimate("mlp", 4), round(efficiencies.estimate("mlp", 2), 2), efficiencies.estimate("cnn", 4)
    (0.5, 0.75, 0.5)
    """

    def __init__(self, known: Sequence[float] = ()) -> None:
        self._known = known
        self._measured: dict[tuple[str, bool], dict[int, _Measured]] = {}

    def observe(self, kin: str, workers: int, efficiency: float, across_hosts: bool = False) -> None:
        """Learn from a unit that so many workers trained together.

        Args:
            kin: The kin of the trial.
            workers: How many workers.
            efficiency: What one worker would have taken for its partition, divided by what the unit took.
            across_hosts: Whether they are on several hosts. Defaults to False.
        """
        known = self._measured.setdefault((kin, across_hosts), {})
        log, times = known.get(workers, _Measured(0.0, 0))
        known[workers] = _Measured(log + (math.log(max(efficiency, 1e-9)) - log) / (times + 1), times + 1)

    def correct(self, kin: str, factor: float) -> None:
        """Take a group of this kin for as many times as efficient as was measured: one worker takes so much longer."""
        for (other, _), known in self._measured.items():
            if other == kin:
                for workers, (log, times) in known.items():
                    known[workers] = _Measured(log + math.log(factor), times)

    def estimate(self, kin: str, workers: int, across_hosts: bool = False) -> float:
        """Return the efficiency that so many workers can be expected to have.

        Args:
            kin: The kin of the trial.
            workers: How many workers.
            across_hosts: Whether they are on several hosts. Then what was measured within hosts stands in where nothing
                else was. Defaults to False.

        Returns:
            What was measured; between and beyond what was measured it falls with every further worker by as much. A kin
            of which nothing was measured is expected to do as well as the best of the others; 1 if there is none.
        """
        if workers == 1:
            return 1.0
        known = self._measured.get((kin, across_hosts)) or self._measured.get((kin, False))
        if known:
            return _expect(known, workers)
        if self._known:
            return self._known[min(workers, len(self._known)) - 1]
        others = [_expect(other, workers) for (_, apart), other in self._measured.items() if apart == across_hosts]
        return max(others, default=1.0)


def _expect(known: Mapping[int, _Measured], workers: int) -> float:
    """Return the efficiency of so many workers by what is known of other numbers, or of this one."""
    nearest = min(known, key=lambda size: (abs(math.log(size / workers)), size))
    log = known[nearest].log
    if log < 0 and sum(one.times for one in known.values()) < _PROVISIONAL:
        log /= 2
    if nearest == workers:
        return math.exp(log)
    overhead = max(0.0, (math.exp(-log) - 1.0) / (nearest - 1))
    return 1.0 / (1.0 + overhead * (workers - 1))
