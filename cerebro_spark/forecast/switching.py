"""How much faster units become when the steps of their structure are traced, which takes some training first. PURE.

PyTorch on a CPU takes eager steps until a worker has taken `PATIENCE` of them with one structure; from then on it takes
traced ones, if these are faster. A run that is forecast before would seem to take much longer than it will.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean, median, pstdev
from typing import Any

from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.torch.traced.pace import PATIENCE
from cerebro_spark.types import Partition, PartitionId, WorkerId

_Process = tuple[WorkerId, str]
# What traced units take of the time of eager ones, and its spread (both logarithms), where no structure has both.
_UNKNOWN_GAIN = math.log(0.8)
_UNKNOWN_SPREAD = 0.25
# The spread where gains of other structures were measured, at least.
_LEAST_SPREAD = 0.1


class Switching:
    """What was measured of eager and traced steps, and what follows for those that are still eager.

    Args:
        samples: The units that were done, in the order of their ends.
        partitions: The partitions of the run.
        params: The params of the trials that were measured.
    """

    def __init__(
        self,
        samples: Sequence[UnitSample],
        partitions: Sequence[Partition],
        params: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._rows = {partition.id: partition.rows for partition in partitions}
        self._eager = [sample for sample in samples if _is_alone(sample) and sample.steps == "eager"]
        self._traced, tracing = _split(samples)
        known = {sample.kin for sample in self._eager}
        self._while_tracing = {sample for sample in tracing if sample.kin in known}
        self._settled = {sample.kin for sample in (*self._traced, *(tracing - self._while_tracing))}
        graphs = any(sample.steps == "graph" for sample in samples)
        self._possible = bool(self._eager) and not graphs  # on a GPU steps settle within their first unit
        self._gains = self._measure()
        self._ahead: dict[str, bool] = {}
        self.taken = self._count(params)
        """By worker and structure, the eager steps so far."""

    def in_present_steps(self, samples: Sequence[UnitSample]) -> list[UnitSample]:
        """Return the samples as they would be now: eager ones of structures that are traced by now are shortened.

        Units in which a worker traced the steps are left out where there are others: that is done once.
        """
        return [self._as_now(sample) for sample in samples if sample not in self._while_tracing]

    def steps_of(self, partition: PartitionId, params: Mapping[str, Any]) -> int:
        """Return how many steps a unit takes."""
        return math.ceil(self._rows[partition] / batch_size_of(params))

    def is_ahead(self, kin: str) -> bool:
        """Whether workers may still begin to trace the steps of a structure."""
        if kin not in self._ahead:
            self._ahead[kin] = self._possible and kin not in self._settled and self._may_be_traced(kin)
        return self._ahead[kin]

    def _may_be_traced(self, kin: str) -> bool:
        longest = max((steps for (_, other), steps in self.taken.items() if other == kin), default=0)
        units = [sample for sample in self._eager if sample.kin == kin]
        # A unit after it was due at the latest, what was tried and did not gain stays as it is.
        return not units or longest < PATIENCE + 2 * max(longest / len(units), 1)

    @cached_property
    def expected_gain(self) -> tuple[float, float]:
        """The logarithm of what a traced unit takes of the time of an eager one, and its spread."""
        if not self._gains:
            return _UNKNOWN_GAIN, _UNKNOWN_SPREAD
        logs = [math.log(gain) for gain in self._gains.values()]
        return fmean(logs), max(pstdev(logs), _LEAST_SPREAD)

    def _as_now(self, sample: UnitSample) -> UnitSample:
        shortened = sample.steps == "eager" and _is_alone(sample) and sample.kin in self._gains
        return sample._replace(seconds=sample.seconds * self._gains[sample.kin]) if shortened else sample

    def _measure(self) -> dict[str, float]:
        """Return, by structure with both kinds of steps, what a traced unit takes of the time of an eager one."""
        found = {}
        for kin in {sample.kin for sample in self._traced}:
            traced = [self._per_row(sample) for sample in self._traced if sample.kin == kin]
            eager = [self._per_row(sample) for sample in self._eager if sample.kin == kin]
            if eager and median(eager) > 0:
                found[kin] = median(traced) / median(eager)
        return found

    def _per_row(self, sample: UnitSample) -> float:
        return sample.seconds / max(self._rows[sample.partition], 1)

    def _count(self, params: Mapping[str, Mapping[str, Any]]) -> dict[_Process, int]:
        taken: dict[_Process, int] = {}
        for sample in self._eager if self._possible else ():
            process = sample.worker, sample.kin
            taken[process] = taken.get(process, 0) + self.steps_of(sample.partition, params[sample.trial])
        return taken


def _is_alone(sample: UnitSample) -> bool:
    return sample.kind == "train" and sample.width == 1


def _split(samples: Sequence[UnitSample]) -> tuple[list[UnitSample], set[UnitSample]]:
    """Return the units with traced steps alone, and those in which a worker traced them."""
    traced: list[UnitSample] = []
    first: dict[_Process, UnitSample] = {}
    for sample in samples:
        if _is_alone(sample) and sample.steps == "traced":
            if (sample.worker, sample.kin) in first:
                traced.append(sample)
            first.setdefault((sample.worker, sample.kin), sample)
    return traced, set(first.values())
