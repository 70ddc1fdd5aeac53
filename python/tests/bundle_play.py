"""A scheduler with bundles, played by hand: what it orders is kept, audited, and ends as a test says."""

from __future__ import annotations

from typing import Any

from auditor import Auditor

from cerebro_spark.events import (
    Action,
    Event,
    LoadPartition,
    PartitionLoaded,
    RunUnit,
    SearchEnded,
    Settings,
    TellSearch,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

TWO = tuple(Partition(f"p{i}", rows=10) for i in range(2))


class Play:
    """A scheduler, its open orders by attempt, and who audits it."""

    def __init__(
        self, trials: int, workers: int = 1, epochs: int = 2, partitions: tuple[Partition, ...] = TWO, **settings: Any
    ) -> None:
        made = Settings(partitions, workers, **{"fuse": 8, **settings})
        self.scheduler, self.auditor = MopScheduler(made), Auditor(made)
        self.now = 0.0
        self.metrics = Metrics({"loss": 1.0}, {"loss": 1.0})
        self.orders: dict[int, RunUnit] = {}
        self.told: list[RunUnit] = []
        self.actions: list[Action] = []
        for number in range(trials):
            self.work(f"t{number}", epochs, lr=0.1 * number)
        for number in range(workers):
            self.join(f"w{number}")

    def feed(self, event: Event) -> list[RunUnit]:
        """Return the orders that it leads to; partitions are loaded at once."""
        self.now += 1.0
        self.auditor.before(event)
        actions = self.scheduler.handle(event)
        self.auditor.after(actions)
        self.scheduler.check_invariants()
        self.actions += actions
        given = [action for action in actions if isinstance(action, RunUnit)]
        self.orders.update({member.attempt: member for order in given for member in order.members})
        self.told += given
        for action in actions:
            if isinstance(action, LoadPartition):
                given += self.feed(PartitionLoaded(self.now, action.worker, action.partition))
        return given

    def work(self, trial: str, until: int, **params: Any) -> list[RunUnit]:
        return self.feed(WorkAdded(self.now, Work(trial, params, until)))

    def join(self, worker: str) -> list[RunUnit]:
        return self.feed(WorkerJoined(self.now, worker, host=worker))

    def lose(self, worker: str, **how: Any) -> list[RunUnit]:
        self.orders = {a: order for a, order in self.orders.items() if order.worker != worker}
        return self.feed(WorkerLost(self.now, worker, "killed", **how))

    def finish(self, order: RunUnit, width: int = 1, seconds: float | None = None) -> list[RunUnit]:
        """End a unit; those that are computed together take half as long, unless it is said how long."""
        del self.orders[order.attempt]
        seconds = (1.0 if width == 1 else 0.5) if seconds is None else seconds
        unit = order.unit
        left = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt) if unit.kind == "train" else None
        report = UnitFinished(self.now, order.worker, unit, order.attempt, seconds, left, self.metrics, width=width)
        return self.feed(report)

    def finish_all(self, order: RunUnit, width: int | None = None) -> list[RunUnit]:
        """Return what the last of its units leads to."""
        for member in order.members:
            given = self.finish(member, len(order.members) if width is None else width)
        return given

    def fail(self, order: RunUnit, blame: Any = "trial") -> list[RunUnit]:
        del self.orders[order.attempt]
        return self.feed(UnitFailed(self.now, order.worker, order.unit, order.attempt, "boom", blame))

    def play_on(self, most: int = 200) -> None:
        """Let all that is under way, and all that follows, end well."""
        self.feed(SearchEnded(self.now))
        for _ in range(most):
            if not self.orders:
                break
            first = self.orders[min(self.orders)]
            mates = [o for o in self.orders.values() if self.leading(o) == self.leading(first)]
            for order in mates:
                self.finish(order, width=len(mates))
        assert self.scheduler.finished

    def leading(self, order: RunUnit) -> int:
        return self.auditor.leading[order.attempt]

    def trial(self, name: str) -> Any:
        return self.scheduler.state.trials[name]

    @property
    def errors(self) -> dict[str, str | None]:
        reports = [action.report for action in self.actions if isinstance(action, TellSearch)]
        return {report.trial: report.error for report in reports if report.failed}


def names(order: RunUnit) -> list[str]:
    return [member.unit.trial for member in order.members]
