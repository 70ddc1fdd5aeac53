"""Runs of the engine in virtual time, and what they need: searches, backends that break, and somebody who audits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from auditor import Auditor

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Action,
    Event,
    LoadPartition,
    PartitionLost,
    RetireWorker,
    RunUnit,
    Settings,
    UnitFailed,
)
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Objective, Partition, Report, Work

PARTITIONS = (*(Partition(f"p{i}") for i in range(3)), Partition("v0", "validation"), Partition("v1", "validation"))
SETTINGS = Settings(PARTITIONS, workers=2, objective=Objective("val_loss", "min"), max_kills=99)
WORLD = World(cost=lambda params: params["cost"], jitter=0.3)


class Promoting(Search):
    """Trains four trials for an epoch, the better two for two more, then warm-starts a fifth from the best."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._queue = [Work(f"t{i}", {"cost": 1.0 + i}, 1) for i in range(4)]
        self._rungs = 0

    def ask(self) -> Work | Wait | Done:
        if self._queue:
            return self._queue.pop(0)
        return Done() if self._rungs == 3 else Wait()

    def tell(self, report: Report) -> None:
        self.reports.append(report)
        done = {(r.trial, r.epoch): r for r in self.reports}
        if self._rungs == 0 and len(done) == 4:
            self._rungs = 1
            self._queue = [Work(t, {"cost": 2.0}, 3) for t in ("t0", "t2")]
        elif self._rungs == 1 and ("t0", 3) in done and ("t2", 3) in done:
            self._rungs = 2
            self._queue = [Work("t9", {"cost": 1.0}, 1, done["t0", 3].checkpoint)]
        elif ("t9", 1) in done:
            self._rungs = 3


EXPECTED = {("t0", 1), ("t1", 1), ("t2", 1), ("t3", 1), ("t0", 2), ("t2", 2), ("t0", 3), ("t2", 3), ("t9", 1)}


def workers(count: int = 2) -> list[SimulatedWorker]:
    return [SimulatedWorker(f"w{i}", speed=1.0 + i) for i in range(count)]


def engine(store: LocalStore, search: Search, backend: SimulatedBackend | None = None) -> Engine:
    made = Engine(search, SETTINGS, backend or SimulatedBackend(workers(), WORLD), EventLog(store, "log"))
    watch(made)
    return made


def watch(made: Engine, settings: Settings = SETTINGS) -> Auditor:
    """Have every event and action judged."""
    auditor = Auditor(settings)
    handle = made.scheduler.handle

    def audited(event: Event) -> list[Action]:
        auditor.before(event)
        actions = handle(event)
        auditor.after(actions)
        made.scheduler.check_invariants()
        return actions

    made.scheduler.handle = audited  # type: ignore[method-assign]
    return auditor


class Recording(FixedSearch):
    """Keeps what it is told."""

    def __init__(self, configurations: Sequence[Mapping[str, Any]], epochs: int) -> None:
        super().__init__(configurations, epochs)
        self.reports: list[Report] = []

    def tell(self, report: Report) -> None:
        self.reports.append(report)


class BrokenDisk(SimulatedBackend):
    """No worker can load p1."""

    def submit(self, action: Action) -> None:
        if isinstance(action, LoadPartition) and action.partition == "p1":
            self._at(self.now(), lambda: [PartitionLost(self.now(), action.worker, "p1", "disk on fire")])
        else:
            super().submit(action)


class Faulty(SimulatedBackend):
    """Units of which `fails` says so, by worker and order, fail as if by the worker's fault; `loads` load nothing."""

    def __init__(
        self,
        spec: list[SimulatedWorker],
        fails: Callable[[str, RunUnit], bool] = lambda worker, order: False,
        loads: Collection[str] = (),
    ) -> None:
        super().__init__(spec, WORLD)
        self._fails = fails
        self._loads = loads
        self.orders: list[Action] = []

    def submit(self, action: Action) -> None:
        self.orders.append(action)
        if isinstance(action, LoadPartition) and action.worker in self._loads:
            lost = PartitionLost(self.now(), action.worker, action.partition, "no such mount")
            self._at(self.now(), lambda: [lost])
        else:
            super().submit(action)

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        worker = seat.spec.id
        if self._fails(worker, order):
            return [UnitFailed(self.now(), worker, order.unit, order.attempt, "no such mount", blame="worker")]
        return super()._finish(order, seat)

    @property
    def dismissed(self) -> list[str]:
        return [order.worker for order in self.orders if isinstance(order, RetireWorker)]
