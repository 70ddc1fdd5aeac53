"""How much faster units become when the steps of their structure are traced, which takes some training first. PURE.

PyTorch on a CPU takes eager steps until a worker has taken `PATIENCE` of them with one structure; from then on it takes
traced ones, if these are faster. A run that is forecast before would seem to take much longer than it will.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean, median, pstdev
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.torch.traced.pace import PATIENCE
from cerebro_spark.types import Partition, PartitionId, TrialId, WorkerId

_Process = tuple[WorkerId, int]
"""A worker, and which of its lives it is: a worker that was lost may come again under its name."""
# What traced units take of the time of eager ones, and its spread (both logarithms), where no structure tells.
_UNKNOWN_GAIN = math.log(0.8)
_UNKNOWN_SPREAD = 0.25
# The spread where other structures tell, at least.
_LEAST_SPREAD = 0.1


class Switching:
    """What was measured of eager and traced steps, and what follows for those that are still eager.

    Args:
        samples: The units that were done, in the order of their ends.
        partitions: The partitions of the run.
        params: The params of the trials that were measured.
        is_possible: Whether steps are traced at all. Defaults to None: as the samples tell.
    """

    def __init__(
        self,
        samples: Sequence[UnitSample],
        partitions: Sequence[Partition],
        params: Mapping[TrialId, Mapping[str, Any]],
        is_possible: bool | None = None,
    ) -> None:
        self._rows = {partition.id: partition.rows for partition in partitions}
        self.taken: dict[tuple[WorkerId, str], int] = {}
        """By worker and structure, the eager steps in its present life."""
        structures: dict[str, _Structure] = defaultdict(_Structure)
        for sample, process in _with_processes(samples):
            if sample.kind == "train" and sample.width == 1 and sample.steps in ("eager", "traced"):
                steps = self.steps_of(sample.partition, params[sample.trial])
                structures[sample.kin].add(sample, process, steps, self._rows[sample.partition])
        self._structures = dict(structures)
        for kin, structure in self._structures.items():
            self.taken |= {(worker, kin): steps for worker, steps in structure.present_steps().items()}
        self._possible = self._is_possible(samples) if is_possible is None else is_possible

    def in_present_steps(self, samples: Sequence[UnitSample]) -> list[UnitSample]:
        """Return the samples as they would be now: eager ones of structures that are traced by now are shortened.

        Units in which a worker traced the steps are left out where there are others: that is done once.
        """
        left_out = {sample for structure in self._structures.values() for sample in structure.while_tracing()}
        return [self._as_now(sample) for sample in samples if sample not in left_out]

    def steps_of(self, partition: PartitionId, params: Mapping[str, Any]) -> int:
        """Return how many steps a unit takes; 0 if its trial is one that cannot train."""
        try:
            return math.ceil(self._rows[partition] / batch_size_of(params))
        except ConfigurationError:
            return 0

    def is_ahead(self, kin: str) -> bool:
        """Whether workers may still begin to trace the steps of a structure."""
        return self._possible and (kin not in self._structures or self._structures[kin].is_ahead)

    @cached_property
    def is_open(self) -> bool:
        """Whether this may change what units take that were measured."""
        return any(map(self.is_ahead, self._structures))

    @cached_property
    def expected_gain(self) -> tuple[float, float]:
        """The logarithm of what a traced unit takes of the time of an eager one, and its spread."""
        settled = [structure for structure in self._structures.values() if not structure.is_ahead]
        # What was due and stayed as it was gains nothing.
        gains = [structure.gain or (None if structure.traced else 1.0) for structure in settled]
        logs = [math.log(gain) for gain in gains if gain is not None]
        return (fmean(logs), max(pstdev(logs), _LEAST_SPREAD)) if logs else (_UNKNOWN_GAIN, _UNKNOWN_SPREAD)

    def _is_possible(self, samples: Sequence[UnitSample]) -> bool:
        """Whether steps are traced in this run at all, for all that is known."""
        if any(sample.steps == "graph" for sample in samples):
            return False  # on a GPU steps settle within their first unit
        found = self._structures.values()
        was_due = any(not structure.is_ahead and not structure.traced for structure in found)
        return any(structure.eager for structure in found) and (not was_due or any(s.traced for s in found))

    def _as_now(self, sample: UnitSample) -> UnitSample:
        if sample.steps != "eager" or sample.kind != "train" or sample.width != 1 or sample.first:
            return sample
        gain = self._structures[sample.kin].gain
        return sample if gain is None else sample._replace(seconds=sample.seconds * gain)


class _Structure:
    """The units of one structure that were trained by themselves, with either kind of steps."""

    def __init__(self) -> None:
        self.eager: list[UnitSample] = []
        self.traced: list[UnitSample] = []
        self._tracing: dict[_Process, UnitSample] = {}
        self._steps: dict[_Process, int] = {}
        self._longest_unit = 1
        self._paces: dict[tuple[WorkerId, str], list[float]] = defaultdict(list)

    def add(self, sample: UnitSample, process: _Process, steps: int, rows: int) -> None:
        """Take in a unit of so many steps."""
        pace = sample.seconds / max(rows, 1)
        if sample.steps == "eager":
            self.eager.append(sample)
            self._steps[process] = self._steps.get(process, 0) + steps
            self._longest_unit = max(self._longest_unit, steps)
        else:
            self.traced.append(sample)
        # With the first unit of a process, and the one in which it traces, goes what is done once.
        if sample.steps == "traced" and process not in self._tracing:
            self._tracing[process] = sample
        elif not sample.first:
            self._paces[sample.worker, sample.steps].append(pace)

    @cached_property
    def gain(self) -> float | None:
        """What a traced unit takes of the time of an eager one on the same worker; None if none has done both."""
        gains = []
        for (worker, steps), traced in self._paces.items():
            eager = self._paces.get((worker, "eager"))
            if steps == "traced" and eager and min(median(eager), median(traced)) > 0:
                gains.append(median(traced) / median(eager))
        return median(gains) if gains else None

    @cached_property
    def is_ahead(self) -> bool:
        """Whether it is only eager, and no worker has taken enough steps to have tried anything else."""
        longest = max(self._steps.values(), default=0)
        is_traced = len(self.traced) > len(self._tracing) or (self.traced and not self.eager)
        return not is_traced and longest < PATIENCE + 2 * self._longest_unit

    def while_tracing(self) -> list[UnitSample]:
        """Return the units in which a worker traced, if there are others."""
        return list(self._tracing.values()) if self.eager else []

    def present_steps(self) -> dict[WorkerId, int]:
        """Return the eager steps of each worker's present life."""
        return {worker: steps for (worker, _), steps in sorted(self._steps.items())}


def _with_processes(samples: Sequence[UnitSample]) -> list[tuple[UnitSample, _Process]]:
    """Return each unit with the process that did it: a first unit after others is that of a new one."""
    lives: dict[WorkerId, int] = {}
    settled: set[WorkerId] = set()
    found = []
    for sample in samples:
        worker = sample.worker
        if sample.first and worker in settled:
            lives[worker] = lives.get(worker, 0) + 1
            settled.discard(worker)
        elif not sample.first:
            settled.add(worker)
        found.append((sample, (worker, lives.get(worker, 0))))
    return found
