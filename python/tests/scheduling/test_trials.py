"""What becomes of trials, in examples: the rules that properties found to be needed."""

from __future__ import annotations

from cerebro_spark.events import (
    Event,
    PartitionLoaded,
    RunUnit,
    Settings,
    TellSearch,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

SETTINGS = Settings((Partition("p0"), Partition("v0", "validation")), workers=2)


def finished(order: RunUnit) -> UnitFinished:
    unit = order.unit
    left = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt) if unit.kind == "train" else None
    return UnitFinished(1.0, order.worker, unit, order.attempt, 1.0, left, Metrics({"loss": 1.0}, {"loss": 1.0}))


def test_a_trial_that_failed_in_evaluation_is_not_evaluated_again_when_its_training_unit_ends() -> None:
    scheduler = MopScheduler(SETTINGS)
    orders: list[RunUnit] = []
    told: list[TellSearch] = []

    def feed(event: Event) -> None:
        actions = scheduler.handle(event)
        scheduler.check_invariants()
        orders.extend(action for action in actions if isinstance(action, RunUnit))
        told.extend(action for action in actions if isinstance(action, TellSearch))

    feed(WorkAdded(0.0, Work("t0", {}, until_epoch=2)))
    feed(WorkerJoined(0.0, "w0", holds=("p0",)))
    feed(WorkerJoined(0.0, "w1", holds=("v0",)))
    feed(PartitionLoaded(0.0, "w0", "p0"))
    feed(finished(orders.pop(0)))
    training, evaluating = sorted(orders, key=lambda order: order.unit.kind, reverse=True)
    orders.clear()
    assert (training.unit.epoch, evaluating.unit.epoch) == (2, 1)
    feed(UnitFailed(2.0, evaluating.worker, evaluating.unit, evaluating.attempt, "boom"))
    assert [action.report.error for action in told] == ["boom"]
    feed(finished(training))
    assert orders == [], "nothing more is done for it"
    assert scheduler.state.retention.kept() == {}
