"""Reports that do not fit what was ordered change nothing, and what is learnt is learnt from whole orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundle_play import Play, names

from cerebro_spark.events import FailRun, UnitFinished, UnitWithdrawn, WorkerJoined
from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.scheduling.evaluations import Evaluations
from cerebro_spark.scheduling.records import Evaluation
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Unit


def test_nobody_reports_a_unit_of_another_worker() -> None:
    play = Play(2, workers=2, fuse=1)
    mine = play.told[0]
    left = Checkpoint(mine.unit.trial, 1, 1, mine.attempt)
    report = UnitFinished(play.now, mine.worker, mine.unit, mine.attempt, 1.0, left, Metrics({}, {}))
    other = next(order.worker for order in play.told if order.worker != mine.worker)
    assert play.scheduler.expects(report)
    assert not play.scheduler.expects(replace(report, worker=other))
    assert play.scheduler.handle(replace(report, worker=other)) == []
    assert play.scheduler.expects(report), "it is still under way"


def test_time_does_not_go_back() -> None:
    play = Play(1)
    play.scheduler.handle(WorkerJoined(50.0, "w8"))
    play.scheduler.handle(WorkerJoined(20.0, "w9"))
    assert play.scheduler.state.now == 50.0


def test_an_order_is_whole_without_what_was_withdrawn() -> None:
    play = Play(3)
    (first,) = play.told
    assert names(first) == ["t0", "t1", "t2"]
    last = first.members[2]
    del play.orders[last.attempt]
    play.feed(UnitWithdrawn(play.now, last.worker, last.unit, last.attempt))
    for member in first.members[:2]:
        play.finish(member, width=1)
    assert play.scheduler.state.widest == {play.trial("t0").kin: 1}, "two were ordered, and computed one by one"


def test_units_that_were_computed_together_are_one_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(3)
    seen: list[tuple[list[int], float, int]] = []
    monkeypatch.setattr(
        CostModel,
        "observe",
        lambda self, rows, worker, column, seconds, width=1: seen.append((sorted(rows), seconds, width)),
    )
    (first,) = play.told
    play.finish_all(first)
    assert seen == [([0, 1, 2], 1.5, 3)]


def test_the_last_evaluation_of_states_that_add_up_waits_for_all_others() -> None:
    parts = (Partition("p0"), *(Partition(f"v{number}", "validation") for number in range(4)))
    play = Play(1, workers=4, epochs=1, partitions=parts, fuse=1)
    play.metrics = Metrics({"loss": 1.0}, {"loss": 1.0}, {"auc": (1.0, 2.0)})
    (training,) = play.told
    (first,) = play.finish(training)
    two = play.finish(first)
    assert [order.unit.kind for order in two] == ["eval", "eval"], "the first shows that states add up"
    assert play.finish(two[0]) == []
    (last,) = play.finish(two[1])
    assert last.final
    assert last.carry is not None
    assert last.carry.states == {"auc": (3.0, 6.0)}


def test_states_are_added_up_in_the_order_of_partitions_not_of_reports() -> None:
    evaluations = Evaluations(["v0", "v1", "v2"])
    begun = Evaluation(1, Checkpoint("t0", 1, 1, 1), [], {}, ())
    for partition, value in (("v2", -1e16), ("v0", 1e16), ("v1", 1.0)):
        unit = Unit("t0", 1, partition, "eval")
        metrics = Metrics({}, {}, {"auc": (value,)})
        evaluations.record("t0", begun, UnitFinished(0.0, "w0", unit, 1, 1.0, metrics=metrics))
    carried = evaluations.carry("t0", begun, last=True)
    assert carried is not None
    assert carried.states == {"auc": (1e16 + 1.0 - 1e16,)}


def test_the_best_epoch_is_that_with_the_best_value() -> None:
    parts = (Partition("p0"), Partition("v0", "validation"))
    play = Play(1, epochs=3, partitions=parts, fuse=1, objective=Objective("val_loss", "min"))
    for epoch, value in ((1, 2.0), (2, 1.0), (3, 5.0)):
        (training,) = [order for order in play.orders.values() if order.unit.kind == "train"]
        play.finish(training)
        (measuring,) = [order for order in play.orders.values() if order.unit.kind == "eval"]
        play.metrics = Metrics({"loss": value}, {"loss": 1.0})
        play.finish(measuring)
        assert play.trial("t0").best.epoch == min(epoch, 2)


def test_what_the_store_does_ends_the_run_and_fails_no_trial() -> None:
    play = Play(1)
    play.fail(play.told[0], blame="store")
    assert [type(action) for action in play.actions if isinstance(action, FailRun)] == [FailRun]
    assert play.errors == {}
