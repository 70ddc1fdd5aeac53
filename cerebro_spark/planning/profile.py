"""What units take, from what a pilot has measured of a few batches. PURE.

A unit takes some seconds whatever its size (the state is loaded, models are compared), and some for each batch. A pilot
trains units of two lengths, so that both are known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from cerebro_spark.events import UnitFinished
from cerebro_spark.forecast.expected import Expected, ExpectedSeconds
from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.forecast.pace import KINDS, Pace
from cerebro_spark.planning.dry_runs import Times
from cerebro_spark.planning.pilot import PilotRecord
from cerebro_spark.planning.values import Cluster, Option, Setting, Workload
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.types import Partition, PartitionId, TrialId, UnitKind, WorkerId

# How far the pace of a run may be from that of its pilot (the spread of a logarithm), however well that was measured.
_DRIFT = 0.07


@dataclass(frozen=True, slots=True)
class Cost:
    """What units of one kind and structure take: so much each, and so much for each batch, in seconds."""

    unit: float
    batch: float
    spread: float = 0.0

    def of(self, batches: int) -> float:
        return self.unit + self.batch * batches


class Profile:
    """What a pilot has measured with one setting.

    Args:
        setting: The threads of a worker, and how many workers were at work.
        record: What was measured.
    """

    def __init__(self, setting: Setting, record: PilotRecord) -> None:
        self.setting = setting
        self.record = record
        self._kin = {trial: kin_of(params) for trial, params in record.params.items()}
        self._long, self._short = max(record.batches), min(record.batches)
        first, settled = self._parted(record.finished)
        self._by_length = {length: self._expected(settled, length) for length in {self._long, self._short}}
        self._costs: dict[tuple[UnitKind, str, int], Cost] = {}
        self.ratios = {kind: self._ratios(kind, settled) for kind in KINDS}
        self.build = self._build_seconds(first)
        self.checkpoint_bytes = self._checkpoint_bytes()

    def cost(self, kind: UnitKind, params: Mapping[str, Any], width: int = 1) -> Cost:
        """Return what units of a configuration take, measured or guessed from those that are most like it.

        Args:
            kind: Whether they train or evaluate.
            params: The configuration.
            width: How many such units are computed at once; then it is the share of one.
        """
        key = (kind, kin_of(params), width)
        if key not in self._costs:
            self._costs[key] = self._find_cost(kind, params, width)
        return self._costs[key]

    @property
    def configurations(self) -> Mapping[str, Mapping[str, Any]]:
        """By structure, a configuration that was measured."""
        return {self._kin[done.unit.trial]: self.record.params[done.unit.trial] for done in self.record.finished}

    def times(self, option: Option, workload: Workload, cluster: Cluster, factor: float = 1.0) -> Times:
        """Return how long things take with an option.

        Args:
            option: How the search is run.
            workload: What it trains on.
            cluster: What it runs on.
            factor: By how much units are slower than those that were measured. Defaults to 1.0.
        """
        seen, record = self.record.seen, self.record
        overheads = {kind: self._overheads(kind) for kind in KINDS}
        share = workload.bytes / max(workload.train + workload.validation, 1) * workload.train / option.partitions
        pace = Pace(
            ScaledSeconds(self, option, workload),
            {"train": factor, "eval": factor},
            self.ratios,
            {kind: median(found) for kind, found in overheads.items()},
            overheads,
            _DRIFT,
            load=(median(seen.loads) if seen.loads else 0.0) * max(1.0, share / max(record.bytes, 1)),
            repair=record.lead,
            loss=cluster.failure_rate,
            stacks=any(done.width > 1 for done in record.finished),
        )
        hop = None
        if cluster.bandwidth is not None and option.hosts > 1:
            hop = {kin: size / cluster.bandwidth for kin, size in self.checkpoint_bytes.items()}
        return Times(pace, record.lead, self.build, hop)

    def taken(self, kind: UnitKind, params: Mapping[str, Any], most: int) -> int:
        """Return how many batches a unit of the pilot had."""
        return max(1, min(most, math.ceil(self.record.rows[kind] / batch_size_of(params))))

    # -- what was measured

    def _parted(self, units: Iterable[UnitFinished]) -> tuple[list[UnitFinished], list[UnitFinished]]:
        """Return the units in which a worker met a structure, and all others: the first build and warm up."""
        met: set[tuple[WorkerId, UnitKind, str]] = set()
        first: list[UnitFinished] = []
        settled: list[UnitFinished] = []
        for done in units:
            key = (done.worker, done.unit.kind, self._kin[done.unit.trial])
            (settled if key in met else first).append(done)
            met.add(key)
        known = {(done.unit.kind, self._kin[done.unit.trial]) for done in settled}
        alone = [done for done in first if (done.unit.kind, self._kin[done.unit.trial]) not in known]
        return [done for done in first if done not in alone], settled + alone

    def _length(self, done: UnitFinished) -> int:
        return self.record.batches[(done.unit.epoch - 1) % len(self.record.batches)]

    def _expected(self, units: Sequence[UnitFinished], length: int) -> ExpectedSeconds:
        samples = [self._sample(done) for done in units if self._length(done) == length]
        samples = samples or [self._sample(done) for done in units]
        parts = {done.unit.partition for done in units}
        return ExpectedSeconds(samples, [Partition(name) for name in sorted(parts)], self.record.params)

    def _sample(self, done: UnitFinished) -> UnitSample:
        unit = done.unit
        kin = self._kin[unit.trial]
        return UnitSample(unit.kind, unit.trial, kin, done.worker, unit.partition, done.width, done.seconds, False)

    def _find_cost(self, kind: UnitKind, params: Mapping[str, Any], width: int) -> Cost:
        long = self._by_length[self._long].seconds(kind, "", params, width)
        short = self._by_length[self._short].seconds(kind, "", params, width)
        more, fewer = self.taken(kind, params, self._long), self.taken(kind, params, self._short)
        if more == fewer or long.seconds <= short.seconds:
            return Cost(0.0, long.seconds / more, long.spread)
        batch = min((long.seconds - short.seconds) / (more - fewer), long.seconds / more)
        return Cost(max(0.0, long.seconds - batch * more), batch, long.spread)

    def _ratios(self, kind: UnitKind, units: Sequence[UnitFinished]) -> tuple[float, ...]:
        """Return how long units took by what was to be expected of them, 1 on average."""
        found = []
        for done in units:
            if done.unit.kind == kind:
                params = self.record.params[done.unit.trial]
                taken = self.taken(kind, params, self._length(done))
                found.append(done.seconds / max(self.cost(kind, params, done.width).of(taken), 1e-9))
        level = fmean(found) if found else 1.0
        return tuple(ratio / level for ratio in found) or (1.0,)

    def _build_seconds(self, first: Sequence[UnitFinished]) -> dict[str, float]:
        """Return by structure how much longer the first unit of a worker took."""
        found: dict[str, list[float]] = defaultdict(list)
        for done in first:
            params = self.record.params[done.unit.trial]
            taken = self.taken(done.unit.kind, params, self._length(done))
            if done.unit.kind == "train":
                usual = self.cost("train", params, done.width).of(taken)
                found[self._kin[done.unit.trial]].append((done.seconds - usual) * done.width)
        return {kin: max(0.0, median(extra)) for kin, extra in found.items()}

    def _overheads(self, kind: UnitKind) -> tuple[float, ...]:
        orders = self.record.seen.orders
        found = [order.overhead for order in orders if order.kind == kind and not order.first]
        if not found:
            return (0.0,)
        most = 5.0 * max(median(found), 0.0) + 0.05
        return tuple(min(max(overhead, 0.0), most) for overhead in found)

    def _checkpoint_bytes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for done in self.record.finished:
            if done.checkpoint is not None:
                sizes[self._kin[done.unit.trial]] = done.checkpoint.bytes
        return sizes


class ScaledSeconds:
    """What units take on partitions of another size than the pilot's.

    Args:
        profile: What was measured.
        option: How the search is run.
        workload: What it trains on.
    """

    def __init__(self, profile: Profile, option: Option, workload: Workload) -> None:
        self._profile = profile
        checks = workload.validation_partitions or min(option.partitions, max(workload.validation, 1))
        self._rows = {"train": workload.train / option.partitions, "eval": workload.validation / checks}
        self._known: dict[tuple[UnitKind, TrialId, int], Expected] = {}

    def seconds(self, kind: UnitKind, trial: TrialId, params: Mapping[str, Any], width: int = 1) -> Expected:
        """Return what a unit takes on a partition of average size, or its share of `width` units at once."""
        key = (kind, trial, width)
        if key not in self._known:
            cost = self._profile.cost(kind, params, width)
            batches = math.ceil(self._rows[kind] / batch_size_of(params))
            self._known[key] = Expected(cost.of(batches), cost.spread)
        return self._known[key]

    def factor(self, worker: WorkerId, partition: PartitionId) -> float:
        """Return 1: workers and partitions are taken to be alike."""
        return 1.0
