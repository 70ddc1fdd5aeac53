"""What units take, from what a pilot has measured of a few batches. PURE.

A unit takes some seconds whatever its size (the state is loaded, models are compared), and some for each batch. A pilot
trains units of two lengths, so that both are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from cerebro_spark.events import UnitFinished
from cerebro_spark.forecast.expected import Expected, ExpectedSeconds
from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.forecast.pace import KINDS, Pace
from cerebro_spark.forecast.switching import Switching
from cerebro_spark.planning.builds import Excess, builds_of
from cerebro_spark.planning.cost import Cost
from cerebro_spark.planning.dry_runs import Times, partitions_of
from cerebro_spark.planning.pilot import PilotRecord
from cerebro_spark.planning.teamwork import GroupTimes, Teamwork
from cerebro_spark.planning.values import Cluster, Option, Setting, Workload
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.types import Partition, PartitionId, TrialId, UnitKind, WorkerId

# How far the pace of a run may be from that of its pilot (the spread of a logarithm), however well that was measured.
_DRIFT = 0.15
# Units beyond so many times what was expected count as much as that.
_MOST = 5.0


class Profile:
    """What a pilot has measured with one setting.

    Args:
        setting: The threads of a worker, and how many workers were at work.
        record: What was measured.

    Attributes:
        teamwork: What pilots of groups have measured with this setting; nothing at first.
    """

    def __init__(self, setting: Setting, record: PilotRecord) -> None:
        self.setting = setting
        self.record = record
        self.teamwork = Teamwork({})
        self._kin = {trial: kin_of(params) for trial, params in record.params.items()}
        self._long, self._short = max(record.batches), min(record.batches)
        first, settled = self._parted(record.finished)
        self._by_length = {length: self._expected(settled, length) for length in {self._long, self._short}}
        self._costs: dict[tuple[UnitKind, str, int], Cost] = {}
        # Rare long units are left out of medians, but not of a run.
        self._level: dict[UnitKind, float] = dict.fromkeys(KINDS, 1.0)
        self._level = {kind: self._find_level(kind, settled) for kind in KINDS}
        self._costs.clear()
        self.ratios = {kind: self._ratios(kind, settled) for kind in KINDS}
        self.builds = builds_of(self._excesses(first))
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
        load = median(seen.loads) if seen.loads else 0.0
        pace = Pace(
            ScaledSeconds(self, option, workload),
            {"train": factor, "eval": factor},
            self.ratios,
            {kind: median(found) for kind, found in overheads.items()},
            overheads,
            _DRIFT,
            load=load * max(1.0, share / max(record.bytes, 1)),
            repair=record.lead,
            loss=cluster.failure_rate,
            stacks=any(done.width > 1 for done in record.finished),
            switching=Switching((), partitions_of(option, workload), {}, is_possible=self._takes_eager_steps()),
        )
        hop = None
        if cluster.bandwidth is not None and option.hosts > 1:
            hop = {kin: size / cluster.bandwidth for kin, size in self.checkpoint_bytes.items()}
        # Until a worker could begin it had loaded a partition.
        return Times(pace, max(0.0, record.lead - load), self.builds, hop, self.group_times(option, workload))

    def group_times(self, option: Option, workload: Workload) -> GroupTimes:
        """Return what groups take with an option.

        Args:
            option: How the search is run.
            workload: What it trains on.
        """
        rows = workload.train / option.partitions

        def alone(params: Mapping[str, Any]) -> float:
            return self.cost("train", params).of(math.ceil(rows / batch_size_of(params)))

        return self.teamwork.times(alone, rows)

    def taken(self, kind: UnitKind, params: Mapping[str, Any], most: int) -> int:
        """Return how many batches a unit of the pilot had."""
        return max(1, min(most, math.ceil(self.record.rows[kind] / batch_size_of(params))))

    def _takes_eager_steps(self) -> bool:
        """Whether the steps of a longer run may be traced once: those of a pilot are too few."""
        return any(done.unit.kind == "train" and done.steps == "eager" for done in self.record.finished)

    # -- what was measured

    def _parted(self, units: Iterable[UnitFinished]) -> tuple[list[tuple[UnitFinished, bool]], list[UnitFinished]]:
        """Return the units in which a worker met a trial, with whether its structure was new, too, and all others."""
        trials: set[tuple[WorkerId, UnitKind, TrialId]] = set()
        structures: set[tuple[WorkerId, UnitKind, str]] = set()
        first: list[tuple[UnitFinished, bool]] = []
        settled: list[UnitFinished] = []
        for done in units:
            worker, kind, trial = done.worker, done.unit.kind, done.unit.trial
            structure = (worker, kind, self._kin[trial])
            if (worker, kind, trial) in trials:
                settled.append(done)
            else:
                first.append((done, structure not in structures))
            trials.add((worker, kind, trial))
            structures.add(structure)
        known = {(done.unit.kind, self._kin[done.unit.trial]) for done in settled}
        alone = [done for done, _ in first if (done.unit.kind, self._kin[done.unit.trial]) not in known]
        return [(done, is_new) for done, is_new in first if done not in alone], settled + alone

    def _length(self, done: UnitFinished) -> int:
        return self.record.length_of(done.unit)

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
        level = self._level[kind]
        if more == fewer or long.seconds <= short.seconds:
            return Cost(0.0, level * long.seconds / more, long.spread)
        batch = min((long.seconds - short.seconds) / (more - fewer), long.seconds / more)
        return Cost(level * max(0.0, long.seconds - batch * more), level * batch, long.spread)

    def _ratios(self, kind: UnitKind, units: Sequence[UnitFinished]) -> tuple[float, ...]:
        """Return how long units took by what was to be expected of them, 1 on average."""
        found = [done.seconds / max(self._usual(done), 1e-9) for done in units if done.unit.kind == kind]
        level = fmean(found) if found else 1.0
        return tuple(ratio / level for ratio in found) or (1.0,)

    def _find_level(self, kind: UnitKind, units: Sequence[UnitFinished]) -> float:
        """Return how much longer units took, on the whole, than their medians say."""
        own = [done for done in units if done.unit.kind == kind]
        usual = [self._usual(done) for done in own]
        spent = sum(min(done.seconds, _MOST * most) for done, most in zip(own, usual, strict=True))
        return spent / sum(usual) if spent > 0 and sum(usual) > 0 else 1.0

    def _excesses(self, first: Iterable[tuple[UnitFinished, bool]]) -> list[Excess]:
        """Return by how much longer the units took in which a worker met a trial."""
        return [
            Excess((done.unit.kind, self._kin[done.unit.trial]), is_new, done.seconds - self._usual(done))
            for done, is_new in first
        ]

    def _usual(self, done: UnitFinished) -> float:
        """Return what a unit of the pilot was to take."""
        kind, params = done.unit.kind, self.record.params[done.unit.trial]
        return self.cost(kind, params, done.width).of(self.taken(kind, params, self._length(done)))

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
