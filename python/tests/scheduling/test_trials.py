"""What becomes of trials, in examples: the rules that properties found to be needed."""

from __future__ import annotations

from dataclasses import replace

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


def orders_of_two_epochs(metrics: Metrics) -> list[RunUnit]:
    """All that a trial is told on one worker with two partitions of each kind, if every unit measures this."""
    parts = [Partition(name, split) for split in ("train", "validation") for name in (f"{split}0", f"{split}1")]
    scheduler = MopScheduler(Settings(tuple(parts), workers=1))
    events: list[Event] = [WorkAdded(0.0, Work("t0", {}, until_epoch=2))]
    events += [WorkerJoined(0.0, "w0", holds=tuple(part.id for part in parts))]
    orders: list[RunUnit] = []
    while events:
        for action in scheduler.handle(events.pop(0)):
            if isinstance(action, RunUnit):
                orders.append(action)
                events.append(replace(finished(action), metrics=metrics))
    assert len(orders) == 8
    return orders


def test_only_a_unit_that_knows_all_of_an_epoch_gives_its_values() -> None:
    """Plain averages are added up here. A last unit that was not given the others must not speak for them."""
    assert not any(order.final for order in orders_of_two_epochs(Metrics({"loss": 1.0}, {"loss": 1.0})))
    final = [order for order in orders_of_two_epochs(Metrics(states={"auc": (1.0,)})) if order.final]
    assert [order.unit.kind for order in final] == ["train", "eval"] * 2
    assert all(order.carry is not None for order in final)


def test_what_adds_up_is_sent_once_an_epoch_and_what_is_updated_with_every_unit() -> None:
    orders = orders_of_two_epochs(Metrics(states={"auc": (1.0,)}))
    assert [order.carry is not None for order in orders] == [order.final for order in orders]
    orders = orders_of_two_epochs(Metrics(carried={"seen": [1]}))
    assert [order.carry is not None for order in orders] == [False, True] * 4


def test_an_epoch_is_evaluated_with_the_params_it_was_trained_with() -> None:
    scheduler = MopScheduler(SETTINGS)
    scheduler.handle(WorkAdded(0.0, Work("t0", {"batch_size": 8}, until_epoch=1)))
    (order,) = (a for a in scheduler.handle(WorkerJoined(0.0, "w0", holds=("p0",))) if isinstance(a, RunUnit))
    scheduler.handle(WorkerJoined(0.0, "w1"))
    scheduler.handle(finished(order))
    scheduler.handle(WorkAdded(1.0, Work("t0", {"batch_size": 16}, until_epoch=2)))
    actions = scheduler.handle(PartitionLoaded(2.0, "w1", "v0"))
    assert [(a.unit.kind, a.params) for a in actions if isinstance(a, RunUnit)] == [("eval", {"batch_size": 8})]
