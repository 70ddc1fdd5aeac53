"""How many seconds a unit can be expected to take, from what units took so far. PURE.

A unit that is like measured ones (same trial, same number computed at once) is expected to take as long, times the
slowness of its worker and the size of its partition. For others the nearest thing that was measured stands in: the
trial at another width, trials of the same structure, the trials that are most alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev
from typing import Any, NamedTuple, Protocol

from cerebro_spark.forecast.fitting import ROUNDING, fit
from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.types import Partition, PartitionId, TrialId, UnitKind, WorkerId

_Row = tuple[UnitKind, TrialId, int]
_Structure = tuple[UnitKind, str]
# What an evaluation takes of the time of a training unit on as many rows, where none was measured yet.
_EVALUATION = 1 / 3
# The spread of unit times at widths that were never measured (a logarithm).
_OTHER_WIDTH = 0.1
# The spread of unit times of trials of other structures, where only one was measured (a logarithm).
_ANY = 0.5


class Expected(NamedTuple):
    """Seconds on an average worker and partition, and how uncertain they are: the spread of their logarithm."""

    seconds: float
    spread: float = 0.0


class UnitSeconds(Protocol):
    """Says what units take; see `ExpectedSeconds`."""

    def seconds(self, kind: UnitKind, trial: TrialId, params: Mapping[str, Any], width: int = 1) -> Expected:
        """Return what a unit takes on an average worker and partition, or its share of `width` units at once."""

    def factor(self, worker: WorkerId, partition: PartitionId) -> float:
        """Return how much longer a unit takes on this worker and partition than on average ones."""


class ExpectedSeconds:
    """What units are expected to take.

    Args:
        samples: The units that were measured; at least one.
        partitions: The partitions of the run.
        params: The params of the trials that were measured.
    """

    def __init__(
        self,
        samples: Sequence[UnitSample],
        partitions: Sequence[Partition],
        params: Mapping[TrialId, Mapping[str, Any]],
    ) -> None:
        self._sizes = _relative_sizes(partitions)
        self._rows_of = {split: _mean_rows(partitions, split) for split in ("train", "validation")}
        self._params = params
        measured = (((s.kind, s.trial, s.width), s.worker, s.seconds / self._sizes[s.partition]) for s in samples)
        self._rows, self._slowness = fit(measured)
        self._kin = {sample.trial: sample.kin for sample in samples}
        self._levels = self._find_levels()
        self._known: dict[tuple[_Row, str], Expected] = {}

    def seconds(self, kind: UnitKind, trial: TrialId, params: Mapping[str, Any], width: int = 1) -> Expected:
        """Return what a unit takes on an average worker and partition.

        Args:
            kind: Whether it trains or evaluates.
            trial: Its trial.
            params: The params of the trial.
            width: How many such units are computed at once; then it is the share of one.
        """
        row = (kind, trial, width)
        if row in self._rows:
            return Expected(self._rows[row])
        kin = kin_of(params)
        if (row, kin) not in self._known:
            self._known[row, kin] = self._guess(row, kin, params)
        return self._known[row, kin]

    def factor(self, worker: WorkerId, partition: PartitionId) -> float:
        """Return how much longer a unit takes on this worker and partition than on average ones."""
        return self._slowness.get(worker, 1.0) * self._sizes[partition]

    def of(self, sample: UnitSample) -> float:
        """Return what a measured unit was to be expected to take."""
        kind, trial, width = sample.kind, sample.trial, sample.width
        expected = self.seconds(kind, trial, self._params[trial], width).seconds
        return expected * self.factor(sample.worker, sample.partition)

    def knows(self, sample: UnitSample) -> bool:
        """Whether units of the same structure were measured."""
        return (sample.kind, sample.kin) in self._levels

    # -- what was never measured

    def _guess(self, row: _Row, kin: str, params: Mapping[str, Any]) -> Expected:
        kind, trial, width = row
        for guess in (self._at_other_width(kind, trial, width, kin), self._like_kin(kind, kin, width)):
            if guess is not None:
                return guess
        if kind == "eval":
            return self._like_training(trial, params, width)
        return self._like_others(kind, width, params)

    def _at_other_width(self, kind: UnitKind, trial: TrialId, width: int, kin: str) -> Expected | None:
        """Return the trial's own seconds, changed as those of its kin change with the width."""
        own = {at: seconds for (k, t, at), seconds in self._rows.items() if (k, t) == (kind, trial)}
        if not own:
            return None
        near = min(own, key=lambda at: abs(math.log(at / width)))
        spread = 0.0 if width in self._levels.get((kind, kin), {}) else _OTHER_WIDTH
        return Expected(own[near] * self._level((kind, kin), width) / self._level((kind, kin), near), spread)

    def _like_kin(self, kind: UnitKind, kin: str, width: int) -> Expected | None:
        if (kind, kin) not in self._levels:
            return None
        logs = [
            math.log(seconds) for (k, trial, _), seconds in self._rows.items() if (k, self._kin[trial]) == (kind, kin)
        ]
        spread = 0.0 if width in self._levels.get((kind, kin), {}) else _OTHER_WIDTH
        return Expected(self._level((kind, kin), width), math.hypot(pstdev(logs), spread))

    def _like_training(self, trial: TrialId, params: Mapping[str, Any], width: int) -> Expected:
        """Return the seconds of an evaluation from those of the trial's training units."""
        train = self.seconds("train", trial, params, width)
        ratios = [
            seconds / self._rows["train", other, at]
            for (kind, other, at), seconds in self._rows.items()
            if kind == "eval" and ("train", other, at) in self._rows
        ]
        if ratios:
            return Expected(train.seconds * median(ratios), math.hypot(train.spread, _spread(ratios)))
        by_rows = self._rows_of["validation"] / max(self._rows_of["train"], 1.0)
        return Expected(train.seconds * _EVALUATION * (by_rows or 1.0), math.hypot(train.spread, _ANY))

    def _like_others(self, kind: UnitKind, width: int, params: Mapping[str, Any]) -> Expected:
        """Return the mean of the trials that share most of the params that may shape a model."""
        others = [(self._alike(trial, params), seconds) for (k, trial, _), seconds in self._rows.items() if k == kind]
        if not others:
            others = [(0, seconds / _EVALUATION) for seconds in self._rows.values()]
        most = max(alike for alike, _ in others)
        found = [seconds for alike, seconds in others if alike == most]
        return Expected(fmean(found), _spread(found) if len(found) > 2 else _ANY)

    def _alike(self, trial: TrialId, params: Mapping[str, Any]) -> int:
        known = self._params[trial]
        return sum(known.get(name) == value for name, value in params.items() if not isinstance(value, float))

    # -- by structure and width

    def _find_levels(self) -> dict[_Structure, dict[int, float]]:
        """Return the mean seconds of trials of one structure, by width."""
        found: dict[_Structure, dict[int, list[float]]] = {}
        for (kind, trial, width), seconds in self._rows.items():
            found.setdefault((kind, self._kin[trial]), {}).setdefault(width, []).append(seconds)
        return {key: {width: _mean(own) for width, own in by.items()} for key, by in found.items()}

    def _level(self, structure: _Structure, width: int) -> float:
        """Return the level at a width; between those that were measured it changes with the logarithm of the width."""
        known = self._levels.get(structure)
        if not known:
            return 1.0
        if width in known:
            return known[width]
        below = max((at for at in known if at < width), default=None)
        above = min((at for at in known if at > width), default=None)
        if below is None or above is None:
            return known[next(at for at in (below, above) if at is not None)]
        share = math.log(width / below) / math.log(above / below)
        return math.exp((1 - share) * math.log(known[below]) + share * math.log(known[above]))


def _mean(values: Sequence[float]) -> float:
    """Return the mean; of values that differ by rounding alone, one of them.

    >>> _mean([0.1, 0.1, 0.1]), _mean([1.0, 3.0])
    (0.1, 2.0)
    """
    middle, mean = median(values), fmean(values)
    return middle if max(values) - min(values) <= ROUNDING * middle else mean


def _spread(values: Sequence[float]) -> float:
    return pstdev([math.log(max(value, 1e-9)) for value in values])


def _relative_sizes(partitions: Sequence[Partition]) -> dict[PartitionId, float]:
    """Return the sizes of partitions, 1 on average of their split; 1 where the rows are not known."""
    sizes = {}
    for partition in partitions:
        mean = _mean_rows(partitions, partition.split)
        sizes[partition.id] = partition.rows / mean if partition.rows and mean else 1.0
    return sizes


def _mean_rows(partitions: Sequence[Partition], split: str) -> float:
    rows = [partition.rows for partition in partitions if partition.split == split]
    return fmean(rows) if rows else 0.0
