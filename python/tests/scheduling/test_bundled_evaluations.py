"""Evaluations of kin that wait for the same partition go together, and each ends, fails and is lost as its own."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_play import Play, names

from cerebro_spark.events import LimitOrder, RunUnit, TrialStopped
from cerebro_spark.scheduling.evaluation_widths import EvaluationWidths
from cerebro_spark.scheduling.records import OrderRecord
from cerebro_spark.types import Metrics, Partition

TRAIN = Partition("p0", rows=10)
ONE = (TRAIN, Partition("v0", "validation", rows=10))
TWO = (*ONE, Partition("v1", "validation", rows=10))


def trained(trials: int = 3, partitions: tuple[Partition, ...] = ONE, **settings: Any) -> Play:
    """Trials of which the first epoch is trained, together if there is one worker."""
    play = Play(trials, partitions=partitions, **{"fuse_evaluations": True, **settings})
    for order in list(play.told):
        play.finish_all(order)
    return play


def evaluations(play: Play) -> list[RunUnit]:
    return [order for order in play.told if order.unit.kind == "eval"]


def test_what_was_trained_together_is_evaluated_together_each_under_a_number_of_its_own() -> None:
    play = trained()
    train, evaluation = play.told
    assert names(evaluation) == ["t0", "t1", "t2"]
    assert [m.unit.kind for m in evaluation.members] == ["eval"] * 3
    assert [m.attempt for m in evaluation.members] == [4, 5, 6]
    assert [m.parent and m.parent.attempt for m in evaluation.members] == [m.attempt for m in train.members]
    assert [m.params for m in evaluation.members] == [m.params for m in train.members]
    assert all(m.final for m in evaluation.members)
    play.play_on()
    play.auditor.complete({"t0": 2, "t1": 2, "t2": 2})


@pytest.mark.parametrize("settings", [{"fuse": 1}, {"fuse_evaluations": False}])
def test_in_runs_that_say_so_each_goes_by_itself(settings: dict[str, Any]) -> None:
    play = trained(**settings)
    play.play_on()
    assert {len(order.members) for order in evaluations(play)} == {1}


def test_none_begins_before_the_last_report_of_its_mates_is_in() -> None:
    play = Play(3, partitions=ONE, fuse_evaluations=True, queue_ahead=1)
    first, *_ = play.told
    assert play.finish(first.members[1], 3) == []
    assert play.finish(first.members[0], 3) == []
    assert names(play.finish(first.members[2], 3)[0]) == ["t1", "t0", "t2"]


@pytest.mark.parametrize(("width", "begun"), [(1, [["t0"]]), (3, [])], ids=["one after another", "at once"])
def test_only_those_that_were_trained_at_once_wait_for_each_other(width: int, begun: list[list[str]]) -> None:
    play = Play(3, epochs=1, partitions=ONE, replicas=8, fuse_evaluations=True)
    assert play.join("w1") == []
    assert [names(order) for order in play.finish(play.told[0], width)] == begun


def test_strangers_are_not_evaluated_together() -> None:
    play = Play(0, partitions=ONE, fuse_evaluations=True)
    for number, layers in enumerate([1, 2, 1]):
        play.work(f"t{number}", 2, lr=0.1 * number, layers=layers)
    play.join("w0")
    play.play_on()
    assert {tuple(sorted(names(order))) for order in evaluations(play)} <= {("t0", "t2"), ("t1",), ("t0",), ("t2",)}


def test_kin_is_who_was_trained_with_the_same_structure_whatever_is_asked_for_next() -> None:
    play = Play(3, epochs=1, partitions=ONE, fuse_evaluations=True)
    play.work("t0", 2, lr=0.1, layers=2)
    play.finish_all(play.told[0])
    (order,) = evaluations(play)
    assert names(order) == ["t0", "t1", "t2"]
    assert "layers" not in order.params


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6])
def test_all_that_are_idle_share_evenly_what_waits(workers: int) -> None:
    play = Play(4, epochs=1, partitions=ONE, replicas=8, fuse_evaluations=True)
    for number in range(1, workers):
        play.join(f"w{number}")
    widths = sorted(len(order.members) for order in play.finish_all(play.told[0]))
    assert len(widths) == min(workers, 4)
    assert sum(widths) == 4
    assert widths[-1] - widths[0] <= 1


def test_those_of_several_bundles_go_together_but_no_more_than_may() -> None:
    play = trained(6, epochs=1, fuse=4)
    assert [len(order.members) for order in evaluations(play)] == [3]
    play.lose("w0", blames_unit=False)
    (train,) = play.join("w0")
    (evaluation,) = play.finish_all(train)
    assert len(evaluation.members) == 4
    play.play_on()
    play.auditor.complete({f"t{number}": 1 for number in range(6)})


@pytest.mark.parametrize("who", [0, 2])
def test_one_that_fails_fails_alone(who: int) -> None:
    play = trained()
    (order,) = evaluations(play)
    for member in order.members:
        play.fail(member) if member is order.members[who] else play.finish(member, 3)
    play.play_on()
    assert list(play.errors) == [f"t{who}"]
    play.auditor.complete({f"t{number}": 2 for number in range(3) if number != who})


def test_one_that_is_stopped_is_still_measured() -> None:
    play = trained()
    play.feed(TrialStopped(play.now, "t1"))
    play.play_on()
    play.auditor.complete({"t0": 2, "t1": 1, "t2": 2})


def test_those_that_lost_their_worker_together_are_evaluated_alone_and_train_together_all_the_same() -> None:
    play = trained(max_kills=1)
    (order,) = evaluations(play)
    play.finish(order.members[0], 3)
    play.lose("w0")
    assert play.errors == {}
    (train,) = play.join("w0")
    assert (len(train.members), train.unit.kind, train.unit.epoch) == (3, "train", 2)
    before = len(play.told)
    play.play_on()
    later = play.told[before:]
    assert [len(o.members) for o in later if o.unit.kind == "eval" and o.unit.epoch == 1] == [1, 1]
    assert [len(o.members) for o in later if o.unit.kind == "eval" and o.unit.epoch == 2] == [3]
    play.auditor.complete({"t0": 2, "t1": 2, "t2": 2})


def test_who_loses_a_worker_by_itself_is_blamed_as_ever() -> None:
    play = trained(max_kills=1, epochs=1)
    play.lose("w0")
    (order,) = play.join("w0")
    play.lose("w0", running=order.attempt)
    assert list(play.errors) == [order.unit.trial]


def test_a_driver_that_died_takes_nobody_apart() -> None:
    play = trained(epochs=1)
    play.lose("w0", blames_unit=False)
    (order,) = play.join("w0")
    assert sorted(names(order)) == ["t0", "t1", "t2"]


def test_failures_that_workers_are_blamed_for_count_only_for_those_who_ran_alone() -> None:
    play = trained(2, max_failures=1)
    (order,) = evaluations(play)
    play.finish(order.members[0], 2)
    (again,) = play.fail(order.members[1], "worker")
    assert play.errors == {}
    assert (names(again), again.unit.kind) == (["t1"], "eval")
    play.fail(again, "worker")
    assert list(play.errors) == ["t1"]


def test_a_report_that_comes_too_late_counts_for_nothing() -> None:
    play = trained()
    (order,) = evaluations(play)
    play.lose("w0")
    play.orders.update({member.attempt: member for member in order.members})
    for member in order.members:
        assert play.finish(member, 3) == []
    play.join("w0")
    play.play_on()
    play.auditor.complete({"t0": 2, "t1": 2, "t2": 2})


@pytest.mark.parametrize("kind", ["plain", "states", "carried"])
def test_metrics_of_several_partitions_come_together_as_ever(kind: str) -> None:
    play = Play(3, partitions=TWO, fuse_evaluations=True, epochs=1)
    loss = {"loss": 1.0}
    play.metrics = {
        "plain": Metrics(loss, loss),
        "states": Metrics(loss, loss, {"auc": (1.0, 2.0)}),
        "carried": Metrics(loss, loss, {}, {"rows": 1}),
    }[kind]
    play.play_on()
    first, second = evaluations(play)
    assert [len(order.members) for order in (first, second)] == [3, 3]
    assert not any(member.final for member in first.members)
    assert all(member.final == (kind != "plain") for member in second.members)
    assert all((member.carry is None) == (kind == "plain") for member in second.members)


def test_they_are_told_beforehand_too() -> None:
    play = Play(8, workers=2, partitions=ONE, fuse_evaluations=True, queue_ahead=1)
    play.play_on()
    assert min(len(order.members) for order in evaluations(play)) >= 4
    play.auditor.complete({f"t{number}": 2 for number in range(8)})


# -- what is learnt


def test_what_cannot_be_computed_together_is_not_put_together_again() -> None:
    play = trained(4, epochs=3)
    play.finish_all(evaluations(play)[0], width=1)
    play.play_on()
    assert [len(order.members) for order in evaluations(play)] == [4] + [1] * 8
    assert {len(order.members) for order in play.told if order.unit.kind == "train"} == {4}, "training is another thing"


def test_of_those_that_fit_only_in_part_as_many_are_put_together() -> None:
    play = trained(8, epochs=2)
    play.finish_all(evaluations(play)[0], width=4)
    play.play_on()
    assert [len(order.members) for order in evaluations(play)] == [8, 4, 4]


def order_of(width: int, seconds: float, at_once: int | None = None) -> OrderRecord:
    results = [(row, seconds, width if at_once is None else at_once) for row in range(width)]
    return OrderRecord(1, [], "mlp", width, results)


def test_where_nothing_is_gained_each_goes_by_itself_once_that_is_sure() -> None:
    widths = EvaluationWidths(8)
    widths.learn(order_of(1, 1.0), 10.0)
    for _ in range(2):
        widths.learn(order_of(8, 4.0), 10.0)
        assert widths.most("mlp") == 8, "the first ones may have had other things to do"
    widths.learn(order_of(8, 0.97), 10.0)
    assert widths.most("mlp") == 1


def test_times_are_compared_by_row_and_speed() -> None:
    widths = EvaluationWidths(8)
    widths.learn(order_of(1, 1.0), 10.0)
    for _ in range(5):
        widths.learn(order_of(8, 5.0), 100.0)
    assert widths.most("mlp") == 8


def test_of_an_order_in_which_one_failed_nothing_is_learnt() -> None:
    widths = EvaluationWidths(8)
    widths.learn(OrderRecord(1, [], "mlp", 3, [(0, 1.0, 1), (1, 1.0, 1)]), 1.0)
    assert widths.most("mlp") == 8


def test_they_may_take_as_long_as_one_after_another() -> None:
    play = trained(3, epochs=3, least_timeout=1.0)
    (first,) = evaluations(play)
    assert first.limit == pytest.approx(100 * 1.5), "of evaluations nothing is known; the longest unit is"
    for member in first.members:
        play.finish(member, 3, seconds=2.0)
    play.finish_all(play.told[-1])
    second = evaluations(play)[-1]
    assert second.limit == pytest.approx(10 * 3 * 6.0), "alone each may take as long as the three took together"
    assert all(member.limit is None for member in second.others)
    assert not [action for action in play.actions if isinstance(action, LimitOrder) and action.attempt == first.attempt]
