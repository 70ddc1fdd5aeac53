"""How well several workers train a trial together, from pilots in which they did. PURE.

What a group takes has two parts, as what one worker takes has: so much for each unit (its members find each other),
and so much for each step. So pilots of groups train units of two lengths, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from statistics import fmean, median
from typing import Any

from cerebro_spark.events import UnitFinished
from cerebro_spark.planning.cost import Cost
from cerebro_spark.planning.pilot import PilotRecord
from cerebro_spark.scheduling.efficiencies import Efficiencies
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.types import TrialId

# A measurement of a pilot is a median already: the scheduler's books take it for final when it comes twice.
_FINAL = 2
Seconds = Callable[[Mapping[str, Any]], float]
"""From a configuration to the seconds that one worker takes for a unit."""


class GroupTimes:
    """What groups are expected to take with one option.

    Args:
        efficiencies: The efficiencies of kin, by how many workers there are.
        refused: By kin that no group can train, the reason.
        best: The efficiency of the best that was measured, at least 1.
        kin: Those kin of whom something was measured.
    """

    def __init__(
        self, efficiencies: Efficiencies, refused: Mapping[str, str], best: float, kin: Collection[str]
    ) -> None:
        self._efficiencies = efficiencies
        self._measured = kin
        self.refused = refused
        self.best = best

    def efficiency(self, kin: str, workers: int) -> float:
        """Return how efficient so many workers are: 1 if they take a unit of theirs as long as one takes his."""
        return self._efficiencies.estimate(kin, workers)

    def mean(self, workers: int) -> float | None:
        """Return how efficient so many workers are, on average over what was measured; None if nothing was."""
        found = [self.efficiency(kin, workers) for kin in self._measured]
        return fmean(found) if found else None


class Teamwork:
    """What pilots of groups have measured.

    Args:
        records: By the size of the groups, what the pilot measured.
    """

    def __init__(self, records: Mapping[int, PilotRecord]) -> None:
        self._costs: dict[tuple[str, int], Cost] = {}
        self._params: dict[str, Mapping[str, Any]] = {}
        self.refused: dict[str, str] = {}
        for size, record in records.items():
            self._learn(size, record)

    @property
    def sizes(self) -> list[int]:
        """The sizes that were measured."""
        return sorted({size for _, size in self._costs})

    def times(self, alone: Seconds, rows: float) -> GroupTimes:
        """Return what groups take where each worker's partition has so many rows.

        Args:
            alone: What one worker takes for such a partition.
            rows: The rows of a partition.
        """
        found, best = Efficiencies(), 1.0
        for (kin, size), cost in self._costs.items():
            params = self._params[kin]
            steps = max(1, round(size * rows / batch_size_of(params)))
            efficiency = alone(params) / max(cost.of(steps), 1e-9)
            best = max(best, efficiency)
            for _ in range(_FINAL):
                found.observe(kin, size, efficiency)
        return GroupTimes(found, self.refused, best, sorted(self._params))

    def _learn(self, size: int, record: PilotRecord) -> None:
        by_kin: dict[str, list[UnitFinished]] = defaultdict(list)
        for done in _settled(record):
            if len(done.workers) == size:
                by_kin[kin_of(record.params[done.unit.trial])].append(done)
        for kin, units in by_kin.items():
            self._params[kin] = record.params[units[0].unit.trial]
            self._costs[kin, size] = _cost(units, size, record)
        for trial, reason in record.refused.items():
            self.refused.setdefault(kin_of(record.params[trial]), reason)


def _settled(record: PilotRecord) -> list[UnitFinished]:
    """Return the training units of groups without the first of each trial, in which it is seen whether they fit."""
    met: set[TrialId] = set()
    first: list[UnitFinished] = []
    later: list[UnitFinished] = []
    for done in record.finished:
        if done.partners:
            (later if done.unit.trial in met else first).append(done)
            met.add(done.unit.trial)
    return later or first


def _cost(units: list[UnitFinished], size: int, record: PilotRecord) -> Cost:
    """Return what units of groups of one size and structure take, by their steps."""
    batch = batch_size_of(record.params[units[0].unit.trial])
    by_steps: dict[int, list[float]] = defaultdict(list)
    for done in units:
        rows = min(record.rows["train"], record.length_of(done.unit) * batch)
        by_steps[max(1, round(size * rows / batch))].append(done.seconds)
    short, long = min(by_steps), max(by_steps)
    few, many = median(by_steps[short]), median(by_steps[long])
    if short == long or many <= few:
        return Cost(0.0, many / long)
    step = (many - few) / (long - short)
    return Cost(max(0.0, many - step * long), min(step, many / long))
