"""A backend in virtual time that takes up a run in the middle: its workers, and what they are at. It trains nothing."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from cerebro_spark.backend.simulated import Happening, SimulatedBackend, SimulatedWorker, World
from cerebro_spark.backend.simulated import _MemberEnd as MemberEnd
from cerebro_spark.backend.simulated import _WorkerState as WorkerState
from cerebro_spark.events import Event, LoadPartition, RunUnit, UnitFailed, UnitFinished
from cerebro_spark.forecast.curves import DrawnCurves
from cerebro_spark.forecast.fitting import ROUNDING
from cerebro_spark.forecast.pace import Pace
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.trainer.torch.traced.pace import PATIENCE
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, PartitionId, TrialId, UnitKind, WorkerId

_OVERDUE = 1.1
"""An order that lasts longer than any before goes on for a tenth of the time that it has lasted."""


@dataclass(frozen=True, slots=True)
class WorkerStanding:
    """A worker as it is when the run is taken up.

    Attributes:
        id: Its name.
        host: Its machine.
        orders: What it was told to do, in order.
        began: When it began the first of these.
        ending: Whether units of the first order are known to be done, computed at once with those that are not: then
            these are as good as done.
        loading: By partition that it loads, when that was ordered.
        fresh: Whether it has not finished anything yet.
        joins_at: When it will come, for one that is not there; None for one that is.
    """

    id: WorkerId
    host: str = ""
    orders: tuple[RunUnit, ...] = ()
    began: float = 0.0
    ending: bool = False
    loading: Mapping[PartitionId, float] | None = None
    fresh: bool = True
    joins_at: float | None = None


@dataclass(frozen=True, slots=True)
class Future:
    """What is drawn for one simulation.

    Attributes:
        pace: How fast the run goes.
        curves: What its epochs will measure.
        objective: By what trials are compared.
        shapes: By kind of unit, metrics as the run has them: whether they add up, or go from partition to partition.
        begun: The trials that have done a unit: they will not fail any more.
        starting: Seconds that a new worker takes to come.
        noisy: Whether times vary and things fail; otherwise all is as expected.
        seed: The seed of what is drawn.
        efficiency: `efficiency(trial, workers)` returns how efficient a group is. Without it all groups are.
    """

    pace: Pace
    curves: DrawnCurves
    objective: Objective | None = None
    shapes: Mapping[UnitKind, Metrics] | None = None
    begun: frozenset[TrialId] = frozenset()
    starting: float = 0.0
    noisy: bool = False
    seed: int = 0
    efficiency: Callable[[TrialId, int], float] = lambda trial, workers: 1.0


class RemainingBackend(SimulatedBackend):
    """Workers that go on with what they are at, at the pace of their run.

    Args:
        workers: The workers, those included that will come.
        future: What happens to them.
        at: The present, in seconds of the run.
    """

    def __init__(self, workers: Sequence[WorkerStanding], future: Future, at: float) -> None:
        pace = future.pace
        world = World(
            cost=lambda params: 1.0,
            failure_rate=pace.loss if future.noisy else 0.0,
            repair_seconds=pace.repair or 0.0,
        )
        super().__init__([SimulatedWorker(w.id, host=w.host) for w in workers], world, future.seed)
        self._standing = {worker.id: worker for worker in workers}
        self._future = future
        self._taken_up_at = self._now = at
        self._fresh = {worker.id for worker in workers if worker.fresh}
        self._level = _level(future.seed, pace.drift) if future.noisy else 1.0
        self._ending = {worker.orders[0].attempt for worker in workers if worker.ending}
        self.guessed = False
        """Whether a unit began of which nothing like it was ever measured."""
        self._trial_factors: dict[tuple[UnitKind, TrialId], float] = {}
        self._eager_steps = dict(pace.switching.taken) if pace.switching else {}
        self._kin: dict[TrialId, str] = {}

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        """Put every worker where it stands. What began earlier has its end in the heap earlier, as in the run."""
        self._columns = {partition.id: index for index, partition in enumerate(partitions)}
        there = [worker for worker in self._standing.values() if worker.joins_at is None]
        for worker in sorted(there, key=_when_begun):
            state = self._states[worker.id]
            state.up, state.queue = True, deque(worker.orders)
            if worker.orders:
                self._now = worker.began
                self._begin(state)
            for partition, ordered in (worker.loading or {}).items():
                self._now = ordered
                self.submit(LoadPartition(worker.id, partition))
        self._now = at
        for worker in self._standing.values():
            if worker.joins_at is not None:
                self._at(worker.joins_at, partial(self._join, self._states[worker.id]))

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        """Let more workers come, after as long as the first one of the run took."""
        names = [f"added-{number}" for number in range(len(self._states), len(self._states) + count)]
        for name in names:
            state = self._states[name] = WorkerState(SimulatedWorker(name))
            self._at(self._now + self._future.starting, partial(self._join, state))
        return names

    def _join(self, state: WorkerState) -> list[Event]:
        self._fresh.add(state.spec.id)
        self._eager_steps = {key: steps for key, steps in self._eager_steps.items() if key[0] != state.spec.id}
        return super()._join(state)

    def _at(self, time: float, happen: Happening, state: WorkerState | None = None) -> None:
        super()._at(max(time, self._taken_up_at), happen, state)

    # -- how long it takes

    def _load_seconds(self, action: LoadPartition) -> float:
        return self._future.pace.load * (self._level if self._future.noisy else 1.0)

    def _schedule(self, order: RunUnit, state: WorkerState) -> list[MemberEnd]:
        """Return when each unit of an order ends: all of them at its end."""
        width = len(order.members) if self._future.pace.stacks else 1
        shares = [self._share(member, state.spec.id, width) for member in order.members]
        whole = self._not_over(sum(shares) + self._overhead(order, state.spec.id))
        if order.attempt in self._ending:
            whole = 0.0
        return [(member, whole, share, width) for member, share in zip(order.members, shares, strict=True)]

    def _group_seconds(self, order: RunUnit, states: Sequence[WorkerState]) -> float:
        unit, names = order.unit, [state.spec.id for state in states]
        parts = [replace(order, unit=unit._replace(partition=part, beside=())) for part in unit.partitions]
        longest = max(self._share(part, name, 1) for part, name in zip(parts, names, strict=True))
        overhead = max(self._overhead(order, name) for name in names)
        return self._not_over(longest / self._efficiency(order) + overhead)

    def _efficiency(self, order: RunUnit) -> float:
        """Return how efficient the group of an order is."""
        return self._future.efficiency(order.unit.trial, len(order.workers))

    def _share(self, order: RunUnit, worker: WorkerId, width: int) -> float:
        unit, pace = order.unit, self._future.pace
        usual, spread = pace.expected.seconds(unit.kind, unit.trial, order.params, width)
        self.guessed = self.guessed or spread > 0.0
        seconds = usual * pace.expected.factor(worker, unit.partition) * pace.recent[unit.kind]
        if unit.kind == "train" and width == 1:
            seconds *= self._traced_factor(order, worker)
        if not self._future.noisy:
            return seconds
        luck = random.Random(f"{self._future.seed}/{unit}")
        return (
            seconds
            * self._level
            * self._trial_factor(unit.kind, unit.trial, spread)
            * luck.choice(pace.ratios[unit.kind])
        )

    def _traced_factor(self, order: RunUnit, worker: WorkerId) -> float:
        """Return how much shorter a unit is once its worker has taken enough eager steps with its structure."""
        switching, trial = self._future.pace.switching, order.unit.trial
        if trial not in self._kin:
            self._kin[trial] = kin_of(order.params)
        kin = self._kin[trial]
        if switching is None or not switching.is_ahead(kin):
            return 1.0
        before = self._eager_steps.get((worker, kin), 0)
        self._eager_steps[worker, kin] = before + switching.steps_of(order.unit.partition, order.params)
        if before < PATIENCE:
            return 1.0
        mean, spread = switching.expected_gain
        luck = random.Random(f"{self._future.seed}/{kin}/traced")
        return min(1.0, math.exp(luck.gauss(mean, spread) if self._future.noisy else mean))

    def _trial_factor(self, kind: UnitKind, trial: TrialId, spread: float) -> float:
        """Return by how much a trial that was never measured differs from what is expected of it."""
        if not spread:
            return 1.0
        if (kind, trial) not in self._trial_factors:
            luck = random.Random(f"{self._future.seed}/{kind}/{trial}")
            self._trial_factors[kind, trial] = _lognormal(luck, spread)
        return self._trial_factors[kind, trial]

    def _overhead(self, order: RunUnit, worker: WorkerId) -> float:
        pace, kind = self._future.pace, order.unit.kind
        first = pace.warm_up if worker in self._fresh else 0.0
        if not self._future.noisy:
            return pace.overhead[kind] + first
        luck = random.Random(f"{self._future.seed}/{order.unit}/overhead")
        return luck.choice(pace.overheads[kind]) + first * self._level

    def _not_over(self, seconds: float) -> float:
        """Return how long an order lasts that has lasted since it began: as long as those that lasted longer, too."""
        lasted = self._taken_up_at - self._now
        if seconds >= lasted * (1.0 - ROUNDING):
            return max(seconds, 0.0)
        longer = [ratio * seconds for ratio in self._future.pace.ratios["train"] if ratio * seconds > lasted]
        return fmean(longer) if longer else _OVERDUE * lasted

    # -- what it leaves

    def _finish(self, order: RunUnit, state: WorkerState) -> list[Event]:
        unit, worker = order.unit, state.spec.id
        self._fresh.discard(worker)
        if self._fails(order):
            return [UnitFailed(self._now, worker, unit, order.attempt, "as other trials of this run")]
        checkpoint = None
        if unit.kind == "train":
            checkpoint = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt, digest="simulated")
        metrics, values = self._metrics(order)
        return [UnitFinished(self._now, worker, unit, order.attempt, 0.0, checkpoint, metrics, values)]

    def _fails(self, order: RunUnit) -> bool:
        unit, future = order.unit, self._future
        if not future.noisy or not future.pace.failure or unit.trial in future.begun:
            return False
        if (unit.epoch, order.step, unit.kind) != (1, 1, "train"):
            return False
        return random.Random(f"{future.seed}/{unit.trial}/fails").random() < future.pace.failure

    def _metrics(self, order: RunUnit) -> tuple[Metrics, dict[str, float] | None]:
        """Return metrics of the shape that the run's have: how they add up decides what can run side by side."""
        unit, objective = order.unit, self._future.objective
        name = objective.metric if objective else ""
        evaluated = name.startswith("val_")
        sums: dict[str, float] = {}
        if name and evaluated == (unit.kind == "eval"):
            sums = {name.removeprefix("val_"): self._future.curves.value(unit.trial, unit.epoch)}
        shape = (self._future.shapes or {}).get(unit.kind, Metrics())
        states = {"simulated": (0.0,)} if shape.states else {}
        carried = {"simulated": 0} if shape.carries else {}
        return Metrics(sums, dict.fromkeys(sums, 1.0), states, carried), sums if order.final else None


def _when_begun(worker: WorkerStanding) -> tuple[float, int]:
    return worker.began, worker.orders[0].attempt if worker.orders else 0


def _level(seed: int, spread: float) -> float:
    """Draw the pace of a future: of two that follow each other one is as much faster as the other is slower.

    There are few futures, so by chance alone most of them could be slow, and in every run the same ones.

    >>> round(_level(2, 0.1) * _level(3, 0.1), 9), _level(2, 0.0)
    (1.0, 1.0)
    """
    drawn = random.Random(f"{seed // 2}/level").gauss(0.0, spread)
    return math.exp(-drawn if seed % 2 else drawn)


def _lognormal(luck: random.Random, spread: float) -> float:
    """Draw a factor that is 1 on average: what is expected is a mean, too."""
    return luck.lognormvariate(-(spread**2) / 2, spread) if spread else 1.0
