"""Evaluations go before training, also where workers know their next unit beforehand and are never idle."""

from __future__ import annotations

from cerebro_spark.events import (
    PartitionLoaded,
    RunUnit,
    Settings,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

PARTITIONS = (Partition("p0", rows=4), Partition("v0", "validation", rows=4))


def finished(order: RunUnit, at: float) -> UnitFinished:
    unit = order.unit
    left = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt) if unit.kind == "train" else None
    return UnitFinished(at, order.worker, unit, order.attempt, 1.0, left, Metrics({"loss": 1.0}, {"loss": 1.0}))


def test_an_evaluation_is_next_although_the_worker_is_never_idle() -> None:
    scheduler = MopScheduler(Settings(PARTITIONS, workers=1, queue_ahead=1))
    for number in range(6):
        scheduler.handle(WorkAdded(0.0, Work(f"t{number}", {}, until_epoch=9)))
    scheduler.handle(WorkerJoined(0.0, "w0"))
    orders = []
    for partition in PARTITIONS:
        orders += scheduler.handle(PartitionLoaded(0.0, "w0", partition.id))
    done = []
    for at in range(8):
        order = orders.pop(0)
        assert isinstance(order, RunUnit)
        done.append(order.unit)
        orders += [action for action in scheduler.handle(finished(order, float(at))) if isinstance(action, RunUnit)]
        scheduler.check_invariants()
    for place, unit in enumerate(done[:-3]):
        if unit.kind == "train":
            following = [(later.trial, later.kind) for later in done[place + 1 : place + 4]]
            assert (unit.trial, "eval") in following, done
