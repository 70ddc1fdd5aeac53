"""Runs in which all happens that can happen, on a simulated cluster, for tests that run them again."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import (
    Action,
    Blame,
    DeleteCheckpoint,
    Event,
    RunUnit,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
)
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.turns import Turn, events_of
from cerebro_spark.types import Checkpoint, Metrics, Report, Work


class ListedLog(DiscardingLog):
    """A log in memory."""

    def __init__(self) -> None:
        self.written: list[Turn] = []

    def append(self, *turns: Turn) -> None:
        self.written += turns

    @property
    def events(self) -> list[Event]:
        return events_of(self.written)

    def read(self) -> Iterator[Event]:
        return iter(self.events)

    def turns(self) -> Iterator[Turn]:
        return iter(self.written)


class WildSearch(Search):
    """Promotes, goes on with other params in the middle of an epoch, warm-starts old and new trials; all by a seed."""

    def __init__(self, seed: int, trials: int, most: int, stopped: set[str]) -> None:
        self._rng = random.Random(seed)
        self._queue: list[Work] = []
        self._until: dict[str, int] = {}
        self._open: set[tuple[str, int]] = set()
        self._last: dict[str, Checkpoint] = {}
        self._gone = stopped
        self._left = most
        for _ in range(trials):
            self._ask_for(self._name(), self._rng.randint(1, 3))

    def ask(self) -> Work | Wait | Done:
        if self._queue:
            return self._queue.pop(0)
        return Wait() if any(trial not in self._gone for trial, _ in self._open) else Done()

    def tell(self, report: Report) -> None:
        if report.failed:
            self._gone.add(report.trial)
        else:
            assert report.checkpoint is not None
            self._open.discard((report.trial, report.epoch))
            self._last[report.trial] = report.checkpoint
        for _ in range(self._rng.choice([0, 1, 1, 2])):
            if self._left > 0:
                self._left -= 1
                self._next()

    def _next(self) -> None:
        known = [trial for trial in sorted(self._last) if trial not in self._gone]
        if not known:
            return
        trial, source = self._rng.choice(known), self._rng.choice(known)
        resting = not any(open_trial == trial for open_trial, _ in self._open)
        kind = self._rng.choice(["more", "exploit", "clone", "fresh"])
        if kind == "more":
            self._ask_for(trial, self._until[trial] + self._rng.randint(1, 2))
        elif kind == "exploit" and resting:
            self._ask_for(trial, self._until[trial] + 1, self._last[source])
        elif kind == "clone":
            self._ask_for(self._name(), 1, self._last[source])
        else:
            self._ask_for(self._name(), 1)

    def _ask_for(self, trial: str, until: int, source: Checkpoint | None = None) -> None:
        params = {"cost": self._rng.choice([1.0, 1.0, 2.0, 3.5])}
        self._open |= {(trial, epoch) for epoch in range(self._until.get(trial, 0) + 1, until + 1)}
        self._until[trial] = until
        self._queue.append(Work(trial, params, until, source))

    def _name(self) -> str:
        return f"t{len(self._until)}"


@dataclass(frozen=True)
class Trouble:
    """How often things go wrong, how many threads workers say they have, and what they gain with eight at once."""

    deaths: float = 0.0
    worker_faults: float = 0.0
    trial_faults: float = 0.0
    stops: float = 0.0
    threads: int = 1
    gain: float = 1.0


class WildBackend(SimulatedBackend):
    """A simulated cluster with all kinds of trouble, whose metrics depend on weights and on the order of units."""

    def __init__(self, workers: int, trouble: Trouble, seed: int, stopped: set[str]) -> None:
        world = World(
            cost=lambda params: params["cost"],
            jitter=0.3,
            load_seconds=0.2,
            failure_rate=trouble.deaths,
            repair_seconds=3.0,
            late_results=True,
            gain={8: trouble.gain} if trouble.gain > 1.0 else {},
        )
        specs = [SimulatedWorker(f"w{i}", speed=1.0 + 0.7 * i, joins_at=0.4 * i) for i in range(workers)]
        super().__init__(specs, world, seed)
        self._trouble = trouble
        self._dice = random.Random(seed)
        self._stopped = stopped
        self._seen: set[str] = set()
        self._deleted: set[Checkpoint] = set()
        self.closed = False

    def submit(self, action: Action) -> None:
        if isinstance(action, RunUnit):
            for member in action.members:
                assert member.parent not in self._deleted, f"{member.unit} starts from a deleted checkpoint"
                self._seen.add(member.unit.trial)
        elif isinstance(action, DeleteCheckpoint):
            assert action.checkpoint not in self._deleted
            self._deleted.add(action.checkpoint)
        super().submit(action)

    def events(self) -> list[Event]:
        facts = [
            replace(fact, threads=self._trouble.threads) if isinstance(fact, WorkerJoined) else fact
            for fact in super().events()
        ]
        if self._seen and self._dice.random() < self._trouble.stops:
            trial = self._dice.choice(sorted(self._seen))
            self._stopped.add(trial)
            facts.append(TrialStopped(self.now(), trial))
        return facts

    def close(self) -> None:
        self.closed = True
        super().close()

    def _schedule(self, order: RunUnit, state: Any) -> list[Any]:
        """Of those that are computed together, some are reported at once and others one after another."""
        ends = super()._schedule(order, state)
        if len(ends) == 1 or self._dice.random() < 0.5:
            return ends
        late = [(one, at * (1 + 0.3 * self._dice.random()), own, width) for one, at, own, width in ends]
        return sorted(late, key=lambda end: end[1])

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        roll = self._dice.random()
        faults: list[tuple[Blame, float]] = [
            ("trial", self._trouble.trial_faults),
            ("worker", self._trouble.worker_faults),
        ]
        for blame, rate in faults:
            if roll < rate:
                return [UnitFailed(self._now, seat.spec.id, order.unit, order.attempt, "boom", blame)]
            roll -= rate
        return [self._measured(order, fact) for fact in super()._finish(order, seat)]

    def _measured(self, order: RunUnit, fact: Event) -> Event:
        assert isinstance(fact, UnitFinished)
        left = fact.checkpoint or order.parent
        assert left is not None
        metrics = measure(order, left)
        parts = [part for part in (order.carry, metrics) if part is not None]
        whole = Metrics.merge(parts)
        values = {**whole.values(), "extra": _number(repr((whole.states, whole.carried)))} if order.final else None
        return replace(fact, metrics=metrics, values=values)


def measure(order: RunUnit, left: Checkpoint) -> Metrics:
    """Trials take turns in having plain metrics, metrics that add up, and metrics that go from unit to unit."""
    seed = repr((left.digest, order.unit, sorted(order.params.items())))
    plain = Metrics({"loss": _number(seed)}, {"loss": 1.0})
    kind = int(order.unit.trial[1:]) % 3
    if kind == 0:
        return plain
    if kind == 1:
        return Metrics(plain.sums, plain.weights, {"auc": (_number(seed + "auc") / 3, 1.0)})
    before = order.carry.carried.get("chain", "") if order.carry else ""
    return Metrics(plain.sums, plain.weights, {}, {"chain": hashlib.sha256((before + seed).encode()).hexdigest()[:8]})


def _number(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
