"""A backend in virtual time: thousands of workers in one process, seeded, with failures. It trains nothing.

The same engine and scheduler run on it as on real workers; only the events are made up. It must never read a clock, nor
draw a random number whose place in the sequence depends on the order of scheduling: a unit takes the same time however
it is scheduled.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from cerebro_spark.backend.base import Backend
from cerebro_spark.errors import ConfigurationError, RunStalled
from cerebro_spark.events import (
    Action,
    DeleteCheckpoint,
    Event,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.types import Checkpoint, Metrics, Partition, PartitionId, TrialId, Unit, WorkerId


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """A worker and its script: when it comes, how fast it is, and when it dies and returns.

    Args:
        id: The worker's name.
        speed: How fast it is. Defaults to 1.0; a worker of speed 2 takes half as long.
        host: The host it runs on. Defaults to "": a host of its own, called as the worker.
        joins_at: When it joins, in seconds after the start. Defaults to 0.0.
        deaths: Pairs of seconds after the start: when it dies, and when it returns (infinity: never). Defaults to ():
            it does not die by script.
    """

    id: WorkerId
    speed: float = 1.0
    host: str = ""
    joins_at: float = 0.0
    deaths: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """How things are in the simulated cluster.

    Args:
        cost: `cost(params)` returns the seconds of a training unit on a worker of speed 1.
        checkpoint_bytes: `checkpoint_bytes(params)` returns the size of a checkpoint. Without it checkpoints are empty.
        jitter: The fraction by which the time of a unit varies, up and down. Defaults to 0.0.
        bandwidth: Bytes a second at which a worker fetches a checkpoint that it did not write. It is infinite if not
            given.
        load_seconds: Seconds to load a partition. Defaults to 0.0.
        evaluation_cost: The time of an evaluation unit as a fraction of `cost`. A third if not given.
        failure_rate: The probability that a worker dies during a unit. Defaults to 0.0.
        repair_seconds: Seconds until a worker that died returns, without the partitions it held. Defaults to 0.0.
        late_results: Whether a worker that was given up still reports, too late. Defaults to False.
        speeds_known: Whether workers announce their speed as they join. Defaults to False.
    """

    cost: Callable[[Mapping[str, Any]], float]
    checkpoint_bytes: Callable[[Mapping[str, Any]], int] = lambda params: 0
    jitter: float = 0.0
    bandwidth: float = float("inf")
    load_seconds: float = 0.0
    evaluation_cost: float = 1 / 3
    failure_rate: float = 0.0
    repair_seconds: float = 0.0
    late_results: bool = False
    speeds_known: bool = False


@dataclass(slots=True)
class Traffic:
    """Checkpoint bytes, counted as they move. `hopped` were written by one worker and read by another."""

    written: int = 0
    read: int = 0
    hopped: int = 0
    hops: int = 0
    units: int = 0


@dataclass(slots=True)
class _WorkerState:
    """A worker in virtual time: `life` counts its restarts, so that what an earlier life began is known to be void."""

    spec: SimulatedWorker
    life: int = 0
    up: bool = False
    queue: deque[RunUnit] = field(default_factory=deque)
    began: float = 0.0
    loading: dict[PartitionId, float] = field(default_factory=dict)


class SimulatedBackend(Backend):
    """Virtual workers that take as long as `world` says.

    Args:
        workers: The workers.
        world: How long things take, and how often they fail.
        seed: The seed of all that is random. Defaults to 0.

    Raises:
        ConfigurationError: If there are no workers, two have the same name, or a number makes no sense.

    >>> world = World(cost=lambda params: 2.0)
    >>> backend = SimulatedBackend([SimulatedWorker("w0")], world)
    >>> backend.start([])
    >>> backend.events()
    [WorkerJoined(at=0.0, worker='w0', host='w0', speed=None, holds=(), threads=0)]
    """

    def __init__(self, workers: Sequence[SimulatedWorker], world: World, seed: int = 0) -> None:
        _check(workers, world)
        self.num_workers = len(workers)
        self._states = {worker.id: _WorkerState(worker) for worker in workers}
        self._world = world
        self._seed = seed
        self._now = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, Callable[[], list[Event]]]] = []
        self._noise: dict[tuple[TrialId, int, str], np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        self._columns: dict[PartitionId, int] = {}
        self._writer: dict[int, WorkerId] = {}
        self._luck = np.random.default_rng([seed, 1])
        self.traffic = Traffic()

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        self._now = at
        self._columns = {partition.id: index for index, partition in enumerate(partitions)}
        for state in self._states.values():
            self._at(at + state.spec.joins_at, partial(self._join, state))
            for dies, returns in state.spec.deaths:
                self._at(at + dies, partial(self._die, state, "killed by script"))
                if returns < float("inf"):
                    self._at(at + returns, partial(self._join, state))

    def submit(self, action: Action) -> None:
        if isinstance(action, DeleteCheckpoint):
            self._writer.pop(action.checkpoint.attempt, None)
            return
        state = self._states.get(getattr(action, "worker", ""))
        if state is None:
            return
        if isinstance(action, RunUnit):
            self._enqueue(state, action)
        elif isinstance(action, LoadPartition) and state.up:
            self._begin_load(state, action)
        elif isinstance(action, LimitOrder):
            self._limit(state, action)
        elif isinstance(action, RetireWorker):
            state.up = False
            if action.back_after is not None:
                self._at(self._now + action.back_after, partial(self._join, self._successor(state)))

    def events(self) -> list[Event]:
        while self._heap:
            self._now, _, happen = heapq.heappop(self._heap)
            facts = happen()
            if facts:
                return facts
        raise RunStalled("work is left, but nothing is under way and no worker will come: give the run a worker")

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        self._heap.clear()

    def _successor(self, state: _WorkerState) -> _WorkerState:
        """Return a worker in the place of one that was let go, with a name of its own."""
        place, _, life = state.spec.id.partition(".")
        host = state.spec.host or state.spec.id
        successor = _WorkerState(replace(state.spec, id=f"{place}.{int(life or 0) + 1}", host=host, deaths=()))
        self._states[successor.spec.id] = successor
        return successor

    # -- what happens

    def _at(self, time: float, happen: Callable[[], list[Event]]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, happen))

    def _join(self, state: _WorkerState) -> list[Event]:
        state.up = True
        speed = state.spec.speed if self._world.speeds_known else None
        return [WorkerJoined(self._now, state.spec.id, state.spec.host or state.spec.id, speed)]

    def _die(self, state: _WorkerState, reason: str) -> list[Event]:
        if not state.up:
            return []
        state.up, state.life = False, state.life + 1
        ghosts = [*state.queue] if self._world.late_results else []
        state.queue.clear()
        state.loading.clear()
        for ghost in ghosts:
            self._at(self._now + self._seconds(ghost, state), partial(self._finish, ghost, state))
        return [WorkerLost(self._now, state.spec.id, reason)]

    def _load(self, state: _WorkerState, life: int, partition: PartitionId) -> list[Event]:
        if not state.up or state.life != life:
            return []
        state.loading.pop(partition, None)
        return [PartitionLoaded(self._now, state.spec.id, partition)]

    def _enqueue(self, state: _WorkerState, order: RunUnit) -> None:
        if state.up:
            state.queue.append(order)
            if len(state.queue) == 1:
                self._begin(state)

    def _begin(self, state: _WorkerState) -> None:
        order, life = state.queue[0], state.life
        seconds = self._read_seconds(order) + self._seconds(order, state)
        if self._world.failure_rate and self._luck.random() < self._world.failure_rate:
            self._at(self._now + seconds * self._luck.random(), lambda: self._fall(state, life))
            return
        state.began = self._now
        if order.limit is not None and seconds > order.limit:
            self._limit_unit(state, order.attempt, order.limit)
        if seconds < float("inf"):
            self._at(self._now + seconds, lambda: self._end(order, state, life))

    def _begin_load(self, state: _WorkerState, action: LoadPartition) -> None:
        state.loading[action.partition] = self._now
        seconds = self._load_seconds(action)
        if action.limit is not None and seconds > action.limit:
            self._limit_load(state, action.partition, action.limit)
        if seconds < float("inf"):
            self._at(self._now + seconds, partial(self._load, state, state.life, action.partition))

    def _limit(self, state: _WorkerState, action: LimitOrder) -> None:
        if action.partition is not None and action.partition in state.loading:
            self._limit_load(state, action.partition, action.limit)
        elif state.queue and state.queue[0].attempt == action.attempt:
            self._limit_unit(state, action.attempt, action.limit)
        else:
            queued = [
                replace(order, limit=action.limit) if order.attempt == action.attempt else order
                for order in state.queue
            ]
            state.queue = deque(queued)

    def _limit_unit(self, state: _WorkerState, attempt: int, limit: float) -> None:
        """Have a worker that is still at this unit when its time is over treated as stuck."""
        life, at = state.life, max(self._now, state.began + limit)

        def look() -> list[Event]:
            if not state.queue or state.queue[0].attempt != attempt:
                return []
            reason = f"unit {state.queue[0].unit} took longer than {limit:g} s"
            return self._overrun(state, life, WorkerLost(at, state.spec.id, reason, running=attempt))

        self._at(at, look)

    def _limit_load(self, state: _WorkerState, partition: PartitionId, limit: float) -> None:
        life, at = state.life, max(self._now, state.loading[partition] + limit)

        def look() -> list[Event]:
            if partition not in state.loading:
                return []
            reason = f"loading partition {partition} took longer than {limit:g} s"
            unloaded = PartitionLost(at, state.spec.id, partition, reason)
            return self._overrun(state, life, unloaded, WorkerLost(at, state.spec.id, reason, blames_unit=False))

        self._at(at, look)

    def _overrun(self, state: _WorkerState, life: int, *facts: Event) -> list[Event]:
        """A worker that is stuck is killed, and comes again."""
        if state.life != life or not state.up:
            return []
        self._die(state, "")
        self._at(self._now + self._world.repair_seconds, lambda: self._join(state))
        return list(facts)

    def _end(self, order: RunUnit, state: _WorkerState, life: int) -> list[Event]:
        if state.life != life:
            return []
        state.queue.popleft()
        facts = self._finish(order, state)
        if state.queue:
            self._begin(state)
        return facts

    def _finish(self, order: RunUnit, state: _WorkerState) -> list[Event]:
        unit, seconds = order.unit, self._seconds(order, state)
        self.traffic.units += 1
        checkpoint = None
        if unit.kind == "train":
            size = self._world.checkpoint_bytes(order.params)
            checkpoint = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt, size, digest_of(order))
            self._writer[checkpoint.attempt] = state.spec.id
            self.traffic.written += size
        metrics = Metrics({"loss": 1.0 / unit.epoch}, {"loss": 1.0})
        return [UnitFinished(self._now, state.spec.id, unit, order.attempt, seconds, checkpoint, metrics)]

    def _fall(self, state: _WorkerState, life: int) -> list[Event]:
        if state.life != life:
            return []
        self._at(self._now + self._world.repair_seconds, lambda: self._join(state))
        return self._die(state, "died by chance")

    # -- how long it takes

    def _load_seconds(self, action: LoadPartition) -> float:
        return self._world.load_seconds

    def _seconds(self, order: RunUnit, state: _WorkerState) -> float:
        cost = self._world.cost(order.params) * self._factor(order.unit)
        if order.unit.kind == "eval":
            cost *= self._world.evaluation_cost
        return cost / state.spec.speed

    def _factor(self, unit: Unit) -> float:
        """The unit's own deviation from the expected time, drawn by its name alone."""
        if not self._world.jitter:
            return 1.0
        key = (unit.trial, unit.epoch, unit.kind)
        noise = self._noise.get(key)
        if noise is None:
            noise = jitter_of(self._seed, unit, len(self._columns), self._world.jitter)
            self._noise[key] = noise
        return float(noise[self._columns[unit.partition]])

    def _read_seconds(self, order: RunUnit) -> float:
        """Fetching the parent checkpoint takes time unless the worker wrote it itself; it is read in either case."""
        if order.parent is None:
            return 0.0
        self.traffic.read += order.parent.bytes
        if self._writer.get(order.parent.attempt) == order.worker:
            return 0.0
        self.traffic.hopped += order.parent.bytes
        self.traffic.hops += 1
        return order.parent.bytes / self._world.bandwidth


def digest_of(order: RunUnit) -> str:
    """Stands for the weights that a training unit leaves: it depends on all that they would depend on, nothing else.

    >>> one = RunUnit("w0", Unit("t0", 1, "p0"), 1, {"lr": 0.1}, None, 1)
    >>> two = RunUnit("w7", Unit("t0", 1, "p0"), 9, {"lr": 0.1}, None, 1)
    >>> digest_of(one) == digest_of(two)
    True
    """
    parent = order.parent.digest if order.parent else ""
    known = (parent, order.unit, order.step, order.rebased, sorted(order.params.items()))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def jitter_of(seed: int, unit: Unit, columns: int, jitter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The factors of all units of one trial and epoch, by partition."""
    name = f"{unit.trial}/{unit.epoch}/{unit.kind}".encode()
    rng = np.random.default_rng([seed, 2, *name])
    return 1.0 + jitter * rng.uniform(-1.0, 1.0, columns)


def _check(workers: Sequence[SimulatedWorker], world: World) -> None:
    for worker in workers:
        if not worker.speed > 0:
            raise ConfigurationError(f"worker {worker.id} has speed {worker.speed}, but speeds must be above 0")
    if not workers:
        raise ConfigurationError("there are 0 workers, but at least 1 is needed")
    if not 0 <= world.jitter < 1:
        raise ConfigurationError(f"`jitter` is {world.jitter}, but must be at least 0 and below 1")
    if not 0 <= world.failure_rate < 1:
        raise ConfigurationError(f"`failure_rate` is {world.failure_rate}, but must be at least 0 and below 1")
    if world.bandwidth <= 0 or world.load_seconds < 0 or world.repair_seconds < 0 or world.evaluation_cost <= 0:
        raise ConfigurationError("bandwidth and evaluation cost must be above 0, load and repair seconds at least 0")
