"""A backend in virtual time: thousands of workers in one process, seeded, with failures. It trains nothing.

The same engine and scheduler run on it as on real workers; only the events are made up. It must never read a clock, nor
draw a random number whose place in the sequence depends on the order of scheduling: a unit takes the same time however
it is scheduled.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.simulated_world import SimulatedWorker, World, check_world, digest_of, jitter_of
from cerebro_spark.backend.tenancy import SECONDS_TO_NOTICE, Tenancy
from cerebro_spark.commands import Command
from cerebro_spark.errors import BackendError, RunStalled
from cerebro_spark.events import (
    AbandonUnit,
    Action,
    CommandReceived,
    DeleteCheckpoint,
    Event,
    GroupGaveUp,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.types import Checkpoint, Metrics, Partition, PartitionId, TrialId, Unit, WorkerId

__all__ = ["SimulatedBackend", "SimulatedWorker", "Traffic", "World", "digest_of", "jitter_of"]

Happening = Callable[[], list[Event]]
_MemberEnd = tuple[RunUnit, float, float, int]
"""A unit of an order, when it ends after the order began, its share of the time, and how many ran at once."""


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
    """A worker in virtual time: `life` counts its restarts, so that what an earlier life began is known to be void.

    `began` says when it began the orders that it is at, by attempt or partition. One that is `leaving` does not return.
    """

    spec: SimulatedWorker
    life: int = 0
    up: bool = False
    leaving: bool = False
    queue: deque[RunUnit] = field(default_factory=deque)
    began: dict[int | PartitionId, float] = field(default_factory=dict)

    def end_life(self) -> list[RunUnit]:
        """Void all that it was ordered; return the units among that."""
        units = list(self.queue)
        self.up, self.life = False, self.life + 1
        self.queue.clear()
        self.began.clear()
        return units


class SimulatedBackend(Backend):
    """Virtual workers that take as long as `world` says.

    Args:
        workers: The workers.
        world: How long things take, and how often they fail.
        seed: The seed of all that is random. Defaults to 0.
        commands: Pairs of seconds after the start and what a person tells the run then. Empty by default.
        patience: Seconds, real ones, to wait for a `wake` once nothing else can happen. Defaults to 0.0.

    Raises:
        ConfigurationError: If there are no workers, two have the same name, or a number makes no sense.

    >>> world = World(cost=lambda params: 2.0)
    >>> backend = SimulatedBackend([SimulatedWorker("w0")], world)
    >>> backend.start([])
    >>> backend.events()
    [WorkerJoined(at=0.0, worker='w0', host='w0', speed=None, holds=(), threads=0)]
    """

    def __init__(
        self,
        workers: Sequence[SimulatedWorker],
        world: World,
        seed: int = 0,
        commands: Sequence[tuple[float, Command]] = (),
        patience: float = 0.0,
    ) -> None:
        check_world(workers, world)
        self.num_workers = len(workers)
        self._states = {worker.id: _WorkerState(worker) for worker in workers}
        self._world = world
        self._seed = seed
        self._now = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, Happening]] = []
        self._noise: dict[tuple[TrialId, int, str], np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
        self._columns: dict[PartitionId, int] = {}
        self._writer: dict[int, WorkerId] = {}
        self._luck = np.random.default_rng([seed, 1])
        self._commands = tuple(commands)
        self._patience = patience
        self._woken = threading.Event()
        self._tenancy = Tenancy()
        self.traffic = Traffic()

    def turn(self, wait: bool = True) -> AbstractContextManager[None]:
        return self._tenancy.turn(wait)

    def bind(self, job: Job) -> None:
        self._tenancy.check_free()

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        self._tenancy.begin()
        self._now = at
        self._woken.clear()
        self._columns = {partition.id: index for index, partition in enumerate(partitions)}
        for state in self._states.values():
            self._at(at + state.spec.joins_at, partial(self._join, state))
            for dies, returns in state.spec.deaths:
                self._at(at + dies, partial(self._die, state, "killed by script"))
                if returns < float("inf"):
                    self._at(at + returns, partial(self._join, state))
        for seconds, command in self._commands:
            self._at(at + seconds, partial(self._say, command))

    def estimate(self, configurations: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [self._world.estimate(params) for params in configurations]

    def submit(self, action: Action) -> None:
        if isinstance(action, DeleteCheckpoint):
            self._writer.pop(action.checkpoint.attempt, None)
        if isinstance(action, RunUnit):
            for member in filter(None, map(self._states.get, action.workers)):
                self._take_order(member, action)
            return
        state = self._states.get(getattr(action, "worker", ""))
        if state is None or not state.up:
            return
        match action:
            case AbandonUnit():
                self._abandon(state, action.attempt)
            case LoadPartition(partition=partition):
                loaded = partial(self._load, state, partition)
                self._begin_order(state, partition, self._load_seconds(action), action.limit, loaded)
            case LimitOrder():
                self._limit(state, action)
            case WithdrawUnit():
                self._withdraw(state, action.attempt)
            case RetireWorker():
                state.end_life()
                if action.back_after is not None:
                    self._at(self._now + action.back_after, partial(self._join, self._successor(state)))

    def events(self) -> list[Event]:
        while not self._woken.is_set() and (self._heap or self._woken.wait(self._patience)):
            if self._heap:
                self._now, _, happen = heapq.heappop(self._heap)
                facts = happen()
                if facts:
                    return facts
        if self._woken.is_set():
            self._woken.clear()
            self._tenancy.check()
            return []
        raise RunStalled("work is left, but nothing is under way and no worker will come: give the run a worker")

    def wake(self) -> None:
        self._woken.set()

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        names: list[WorkerId] = []
        while len(names) < count:
            names.append(f"w{len(self._states)}")
            state = self._states.setdefault(names[-1], _WorkerState(SimulatedWorker(names[-1])))
            self._at(self._now, partial(self._join, state))
        return names

    def remove_worker(self, name: WorkerId) -> None:
        there = {known: state for known, state in self._states.items() if state.up and not state.leaving}
        if name not in there:
            raise BackendError(f"there is no worker {name!r}: there are {', '.join(there) or 'none'}")
        if len(there) == 1:
            raise BackendError(f"worker {name!r} is the last one: launch another before, with add_workers()")
        there[name].leaving = True
        self._at(self._now, lambda: [WorkerRetiring(self._now, name)])

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        if self._tenancy.revoke():
            self._woken.set()
            self._tenancy.wait_until_free(SECONDS_TO_NOTICE)
        else:
            self._heap.clear()
            self._tenancy.end()

    def wait_until_free(self) -> None:
        self._tenancy.take_to_close()

    def _successor(self, state: _WorkerState) -> _WorkerState:
        """Return a worker in the place of one that was let go, with a name of its own."""
        place, _, life = state.spec.id.partition(".")
        host = state.spec.host or state.spec.id
        successor = _WorkerState(replace(state.spec, id=f"{place}.{int(life or 0) + 1}", host=host, deaths=()))
        self._states[successor.spec.id] = successor
        return successor

    # -- what happens

    def _at(self, time: float, happen: Happening, state: _WorkerState | None = None) -> None:
        """Have something happen at a time; with a `state` only if the worker's life has not ended by then."""
        self._serial += 1
        heapq.heappush(self._heap, (time, self._serial, happen if state is None else _in_life(state, happen)))

    def _say(self, command: Command) -> list[Event]:
        return [CommandReceived(self._now, command)]

    def _join(self, state: _WorkerState) -> list[Event]:
        if state.leaving:
            return []
        if state.up:  # a restart: what it was at is void
            state.end_life()
        state.up = True
        speed = state.spec.speed if self._world.speeds_known else None
        return [WorkerJoined(self._now, state.spec.id, state.spec.host or state.spec.id, speed)]

    def _die(self, state: _WorkerState, reason: str) -> list[Event]:
        if not state.up:
            return []
        for order in state.end_life():
            if self._world.late_results:
                for member, seconds, share, width in self._schedule(order, state):
                    self._at(self._now + seconds, partial(self._report, member, state, share, width))
        return [WorkerLost(self._now, state.spec.id, reason)]

    def _fall(self, state: _WorkerState) -> list[Event]:
        """Have a worker die, and come again."""
        self._at(self._now + self._world.repair_seconds, partial(self._join, state))
        return self._die(state, "died by chance")

    def _load(self, state: _WorkerState, partition: PartitionId) -> list[Event]:
        state.began.pop(partition, None)
        return [PartitionLoaded(self._now, state.spec.id, partition)]

    def _take_order(self, state: _WorkerState, order: RunUnit) -> None:
        if state.up:
            state.queue.append(order)
            if len(state.queue) == 1:
                self._begin(state)

    def _begin(self, state: _WorkerState) -> None:
        """Begin the first unit of the queue; that of a group only if all of it are there."""
        order = state.queue[0]
        if order.partners:
            self._begin_group(order)
            return
        fetching = sum(map(self._read_seconds, order.members))
        ends = [(member, fetching + at, share, width) for member, at, share, width in self._schedule(order, state)]
        seconds = ends[-1][1]
        end = partial(self._end, order, state, ends)
        dies = None
        if self._world.failure_rate and self._luck.random() < self._world.failure_rate:
            dies = seconds * self._luck.random()
            end = partial(self._fall, state)
        for member, at, share, width in ends:
            if at < seconds and (dies is None or at < dies):
                self._at(self._now + at, partial(self._report, member, state, share, width), state)
        self._begin_order(state, order.attempt, seconds if dies is None else dies, order.limit, end)

    def _schedule(self, order: RunUnit, state: _WorkerState) -> list[_MemberEnd]:
        """Return when each unit of an order ends: all at once, or one after another."""
        each = [self._seconds(member, state) for member in order.members]
        width = len(each)
        if width == 1 or not self._world.gain:
            ends = list(accumulate(each))
            return [(member, at, own, 1) for member, at, own in zip(order.members, ends, each, strict=True)]
        whole = sum(each) / self._world.gain_at(width)
        return [(member, whole, whole / width, width) for member in order.members]

    def _begin_group(self, order: RunUnit) -> None:
        """Begin the unit of a group if all of its workers have come to it; it ends for all at once, or for none."""
        states = [self._states[name] for name in order.workers]
        if not all(_is_first(state, order) for state in states):
            return
        reason = self._refuse_group(order)
        if reason is not None:
            self._at(self._now, partial(self._give_up, order, states[0], reason), states[0])
            return
        seconds = self._group_seconds(order, states)
        lives = [state.life for state in states]
        end: Happening = partial(self._end_group, order, states, lives, seconds)
        rate = self._world.failure_rate
        unlucky = [state for state in states if rate and self._luck.random() < rate]
        for state in unlucky:
            self._at(self._now + seconds * self._luck.random(), partial(self._fall, state), state)
        self._begin_order(states[0], order.attempt, seconds, order.limit, end)

    def _refuse_group(self, order: RunUnit) -> str | None:
        """Return why no group can train the trial of an order; None if one can."""
        return None

    def _give_up(self, order: RunUnit, state: _WorkerState, reason: str) -> list[Event]:
        """Have a member say that no group can train the trial; the others are told to leave."""
        self._abandon(state, order.attempt)
        return [GroupGaveUp(self._now, state.spec.id, order.unit, order.attempt, reason, lasting=True)]

    def _end_group(
        self, order: RunUnit, states: Sequence[_WorkerState], lives: Sequence[int], seconds: float
    ) -> list[Event]:
        if not all(_is_first(state, order) for state in states) or [state.life for state in states] != lives:
            return []
        del states[0].began[order.attempt]
        for state in states:
            state.queue.popleft()
        facts = [
            replace(fact, seconds=seconds, partners=order.partners) if isinstance(fact, UnitFinished) else fact
            for fact in self._finish(order, states[0])
        ]
        for state in states:
            if state.queue:
                self._begin(state)
        return facts

    def _abandon(self, state: _WorkerState, attempt: int) -> None:
        """Have a worker leave a group, and go on with what it has to do next."""
        waiting = [order for order in state.queue if order.attempt != attempt]
        left_first = bool(state.queue) and state.queue[0].attempt == attempt
        state.queue = deque(waiting)
        state.began.pop(attempt, None)
        if left_first and waiting:
            self._begin(state)

    def _begin_order(
        self, state: _WorkerState, key: int | PartitionId, seconds: float, limit: float | None, end: Happening
    ) -> None:
        state.began[key] = self._now
        if limit is not None and seconds > limit:
            self._watch(state, key, limit)
        if seconds < float("inf"):
            self._at(self._now + seconds, end, state)

    def _withdraw(self, state: _WorkerState, attempt: int) -> None:
        """Take back a unit that has not begun; those that were ordered with it stay."""
        for place, order in list(enumerate(state.queue))[1:]:
            given_back = [member for member in order.members if member.attempt == attempt]
            if given_back:
                kept = [replace(member, others=()) for member in order.members if member.attempt != attempt]
                if kept:
                    state.queue[place] = replace(kept[0], others=tuple(kept[1:]), limit=order.limit)
                else:
                    del state.queue[place]
                self._at(self._now, partial(self._give_back, given_back[0], state), state)
                return

    def _give_back(self, order: RunUnit, state: _WorkerState) -> list[Event]:
        return [UnitWithdrawn(self._now, state.spec.id, order.unit, order.attempt)]

    def _limit(self, state: _WorkerState, action: LimitOrder) -> None:
        key = action.partition if action.attempt is None else action.attempt
        if key in state.began:
            self._watch(state, key, action.limit)
        else:
            state.queue = deque(replace(one, limit=action.limit) if one.attempt == key else one for one in state.queue)

    def _watch(self, state: _WorkerState, key: int | PartitionId, limit: float) -> None:
        """Have a worker that is still at this order when its time is over treated as stuck."""
        at = max(self._now, state.began[key] + limit)
        self._at(at, partial(self._overrun, state, key, limit), state)

    def _overrun(self, state: _WorkerState, key: int | PartitionId, limit: float) -> list[Event]:
        """Kill a worker that is stuck with an order, and have it come again."""
        worker = state.spec.id
        if key not in state.began:
            return []
        if isinstance(key, int):
            reason = f"unit {state.queue[0].unit} took longer than {limit:g} s"
            facts: list[Event] = [WorkerLost(self._now, worker, reason, running=key)]
        else:
            reason = f"loading partition {key} took longer than {limit:g} s"
            unloaded = PartitionLost(self._now, worker, key, reason)
            facts = [unloaded, WorkerLost(self._now, worker, reason, blames_unit=False)]
        self._fall(state)
        return facts

    def _end(self, order: RunUnit, state: _WorkerState, ends: list[_MemberEnd]) -> list[Event]:
        state.queue.popleft()
        del state.began[order.attempt]
        last = [end for end in ends if end[1] == ends[-1][1]]
        facts = [fact for member, _, share, width in last for fact in self._report(member, state, share, width)]
        if state.queue:
            self._begin(state)
        return facts

    def _report(self, order: RunUnit, state: _WorkerState, seconds: float, width: int) -> list[Event]:
        """End a unit that took these seconds, as its share of the time of as many as were computed at once."""
        facts = self._finish(order, state)
        return [replace(f, seconds=seconds, width=width) if isinstance(f, UnitFinished) else f for f in facts]

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

    # -- how long it takes

    def _load_seconds(self, action: LoadPartition) -> float:
        return self._world.load_seconds

    def _group_seconds(self, order: RunUnit, states: Sequence[_WorkerState]) -> float:
        """What a group takes for its unit: as long as the slowest of them, and longer if they are not efficient."""
        fetching = max(self._read_seconds(order, name) for name in order.workers)
        parts = zip(states, order.unit.partitions, strict=True)
        longest = max(self._seconds_on(order, partition, state) for state, partition in parts)
        return fetching + longest / self._world.efficiency(order.params, len(states))

    def _seconds(self, order: RunUnit, state: _WorkerState) -> float:
        return self._seconds_on(order, order.unit.partition, state)

    def _seconds_on(self, order: RunUnit, partition: PartitionId, state: _WorkerState) -> float:
        """What a worker takes for one partition of a unit."""
        cost = self._world.cost(order.params) * self._factor(order.unit, partition)
        if order.unit.kind == "eval":
            cost *= self._world.evaluation_cost
        return cost / state.spec.speed

    def _factor(self, unit: Unit, partition: PartitionId) -> float:
        """The unit's own deviation from the expected time, drawn by its name alone."""
        if not self._world.jitter:
            return 1.0
        key = (unit.trial, unit.epoch, unit.kind)
        if key not in self._noise:
            self._noise[key] = jitter_of(self._seed, unit, len(self._columns), self._world.jitter)
        return float(self._noise[key][self._columns[partition]])

    def _read_seconds(self, order: RunUnit, worker: WorkerId = "") -> float:
        """Fetching the parent checkpoint takes time unless the worker wrote it itself; it is read in either case."""
        if order.parent is None:
            return 0.0
        self.traffic.read += order.parent.bytes
        if self._writer.get(order.parent.attempt) == (worker or order.worker):
            return 0.0
        self.traffic.hopped += order.parent.bytes
        self.traffic.hops += 1
        return order.parent.bytes / self._world.bandwidth


def _is_first(state: _WorkerState, order: RunUnit) -> bool:
    """Whether an order is what a worker is at, or will be at once."""
    return state.up and bool(state.queue) and state.queue[0].attempt == order.attempt


def _in_life(state: _WorkerState, happen: Happening) -> Happening:
    life = state.life
    return lambda: happen() if state.life == life else []
