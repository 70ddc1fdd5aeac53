"""Bundles: kin train together, and whatever makes one of them differ lets it go its own way."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_play import Play, names
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.events import TrialStopped, WorkerRetiring
from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.scheduling.kin import kin_of


def test_kin_train_together_each_under_a_number_of_its_own() -> None:
    play = Play(3)
    (first,) = play.told
    assert names(first) == ["t0", "t1", "t2"]
    assert len({member.attempt for member in first.members}) == 3
    assert [member.params["lr"] for member in first.members] == [0.0, 0.1, 0.2]
    board = play.scheduler.state.board
    assert board.active[:3].tolist() == [True, False, False]
    (second,) = play.finish_all(first)
    assert [member.parent and member.parent.attempt for member in second.members] == [m.attempt for m in first.members]
    assert [member.step for member in second.members] == [2, 2, 2]
    (third,) = play.finish_all(second)
    assert {member.unit.epoch for member in third.members} == {2}
    play.play_on()
    play.auditor.complete({"t0": 2, "t1": 2, "t2": 2})
    assert set(play.auditor.widths) == {3}


def test_with_one_at_a_time_nothing_is_put_together() -> None:
    play = Play(3, fuse=1)
    play.play_on()
    assert set(play.auditor.widths) == {1}


def test_a_worker_has_nothing_new_to_do_before_the_last_report_is_in() -> None:
    play = Play(3)
    (first,) = play.told
    assert play.finish(first.members[1], 3) == []
    assert play.finish(first.members[0], 3) == []
    (second,) = play.finish(first.members[2], 3)
    assert names(second) == ["t0", "t1", "t2"]


@pytest.mark.parametrize("who", [0, 1, 2])
def test_one_that_fails_fails_alone(who: int) -> None:
    play = Play(3)
    (first,) = play.told
    for member in first.members:
        given = play.fail(member) if member is first.members[who] else play.finish(member, 3)
    (second,) = given
    assert names(second) == [f"t{number}" for number in range(3) if number != who]
    play.play_on()
    assert list(play.errors) == [f"t{who}"]


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize("early", [True, False])
def test_one_that_is_stopped_ends_after_its_unit(who: int, early: bool) -> None:
    play = Play(3)
    (first,) = play.told
    if early:
        play.feed(TrialStopped(play.now, f"t{who}"))
    (second,) = play.finish_all(first)
    if not early:
        play.feed(TrialStopped(play.now, f"t{who}"))
        (second,) = play.finish_all(second)
    assert f"t{who}" not in names(second)
    assert len(second.members) == 2


def test_those_that_ended_go_on_although_the_worker_died_before_the_others_did() -> None:
    play = Play(3)
    (first,) = play.told
    play.finish(first.members[0], 3)
    play.lose("w0")
    given = play.join("w0")
    assert [play.trial(name).step for name in ("t0", "t1", "t2")] == [1, 0, 0]
    assert all(len(order.members) == 1 for order in given)
    play.play_on()
    play.auditor.complete({"t0": 2, "t1": 2, "t2": 2})


def test_who_lost_a_worker_together_travels_alone_until_the_epoch_ends_and_is_not_blamed() -> None:
    play = Play(3, max_kills=1)
    play.lose("w0")
    assert play.errors == {}
    play.join("w0")
    before = len(play.told)
    play.play_on()
    assert play.errors == {}
    later = play.told[before:]
    assert all(len(order.members) == 1 for order in later if order.unit.epoch == 1)
    assert max(len(order.members) for order in later if order.unit.epoch == 2) > 1


def test_a_bundle_whose_last_epochs_differ_goes_on_with_those_that_have_one_left() -> None:
    """Its members end an epoch one after another, and another worker has nothing to do meanwhile."""
    play = Play(0, workers=2)
    for number, until in enumerate([1, 2, 1, 1, 2]):
        play.work(f"t{number}", until, lr=0.1 * number)
    for first in ("t1", "t2", "t4", "t0", "t0", "t1"):
        play.finish_all(next(order for order in reversed(play.told) if order.unit.trial == first))
    assert play.trial("t1").epoch == 2
    play.play_on()
    assert play.trial("t1").epoch == 3


def test_who_loses_a_worker_by_itself_is_blamed_as_ever() -> None:
    play = Play(3, max_kills=1)
    play.lose("w0")
    (order,) = play.join("w0")
    play.lose("w0", running=order.attempt)
    assert list(play.errors) == [order.unit.trial]


def test_a_driver_that_died_takes_nobody_apart() -> None:
    play = Play(3)
    play.lose("w0", blames_unit=False)
    (order,) = play.join("w0")
    assert names(order) == ["t0", "t1", "t2"]


def test_failures_that_workers_are_blamed_for_count_only_for_those_who_ran_alone() -> None:
    play = Play(2, workers=1, max_failures=1)
    (first,) = play.told
    play.finish(first.members[0], 2)
    (again,) = play.fail(first.members[1], "worker")
    assert play.errors == {}
    assert len(again.members) == 1
    while again.unit.trial != "t1":
        (again,) = play.finish(again)
    play.fail(again, "worker")
    assert list(play.errors) == ["t1"]


def test_what_cannot_be_computed_together_is_not_put_together_again() -> None:
    play = Play(4)
    (first,) = play.told
    play.finish_all(first, width=1)
    play.play_on()
    assert [len(order.members) for order in play.told].count(1) == len(play.told) - 1


def test_where_one_failed_it_is_not_known_how_many_fit() -> None:
    play = Play(3)
    (first,) = play.told
    play.fail(first.members[0])
    play.finish(first.members[1], width=1)
    (second,) = play.finish(first.members[2], width=1)
    assert names(second) == ["t1", "t2"]


def test_of_those_that_fit_only_in_part_as_many_are_put_together() -> None:
    play = Play(8, epochs=3)
    play.finish_all(play.told[0], width=4)
    play.play_on()
    assert max(len(order.members) for order in play.told if order.unit.epoch == 3) == 4


def test_one_odd_member_at_the_end_of_a_stack_proves_nothing() -> None:
    play = Play(5, epochs=3)
    (first,) = play.told
    for member in first.members[:4]:
        play.finish(member, 4)
    play.finish(first.members[4], 1)
    play.play_on()
    assert max(len(order.members) for order in play.told if order.unit.epoch == 3) == 4


@pytest.mark.parametrize(("trials", "workers"), [(8, 2), (7, 2), (5, 2), (4, 2), (9, 4), (3, 2), (2, 2)])
def test_there_are_never_fewer_bundles_than_workers(trials: int, workers: int) -> None:
    play = Play(trials, workers)
    heads = [trial for trial in play.scheduler.state.trials.values() if trial.leader is None]
    assert len(heads) >= min(workers, trials)
    sizes = [1 + len(head.followers) for head in heads]
    assert max(sizes) <= -(-trials // workers)
    assert trials % workers or len(set(sizes)) == 1, "they are even if that can be"


def test_with_more_workers_bundles_are_split_when_their_epoch_begins() -> None:
    play = Play(4, workers=1, epochs=3)
    play.join("w1")
    play.play_on()
    assert max(len(order.members) for order in play.told if order.unit.epoch == 3) == 2
    play.auditor.complete({f"t{number}": 3 for number in range(4)})


def test_with_more_workers_bundles_stay_as_they_are_until_their_epoch_ends() -> None:
    play = Play(4, workers=1, epochs=2)
    (first,) = play.told
    play.join("w1")
    (second,) = play.finish_all(first)
    assert names(second) == ["t0", "t1", "t2", "t3"]
    assert {member.unit.epoch for member in second.members} == {1}
    third = play.finish_all(second)
    assert sorted(map(len, map(names, third))) == [2, 2]


def test_a_worker_that_retires_leaves_its_share_to_the_others() -> None:
    play = Play(8, workers=2, epochs=3)
    play.feed(WorkerRetiring(play.now, "w1"))
    play.play_on()
    play.auditor.complete({f"t{number}": 3 for number in range(8)})


def test_those_that_are_asked_for_more_go_on_and_others_rejoin_them() -> None:
    play = Play(4, epochs=1)
    play.work("t3", 3, lr=0.3)
    for _ in range(2):
        play.finish_all(play.told[-1])
    assert names(play.told[-1]) == ["t3"], "the others have all they were asked for"
    play.work("t1", 3, lr=0.5)
    play.finish_all(play.told[-1])
    play.finish_all(play.told[-1])
    play.play_on()
    play.auditor.complete({"t0": 1, "t1": 3, "t2": 1, "t3": 3})
    assert any(set(names(order)) == {"t1", "t3"} for order in play.told)


def test_who_is_no_longer_kin_leaves() -> None:
    play = Play(3, epochs=2)
    play.work("t0", 3, lr=0.1, layers=2)
    given = play.finish_all(play.told[0])
    given += [order for order in play.told if order not in given]
    mixed = [order for order in play.told[1:] if len(order.members) > 1 and "t0" in names(order)]
    assert not mixed
    play.play_on()
    assert not [order for order in play.told[1:] if len(order.members) > 1 and "t0" in names(order)]


def test_strangers_do_not_train_together() -> None:
    play = Play(0)
    play.work("t0", 2, lr=0.1, units=3)
    play.work("t1", 2, lr=0.1, units=4)
    play.work("t2", 2, lr=0.1, units=3)
    play.play_on()
    assert {tuple(sorted(names(order))) for order in play.told} <= {("t0", "t2"), ("t1",), ("t0",), ("t2",)}


def test_bundles_are_told_beforehand_too() -> None:
    play = Play(8, workers=2, queue_ahead=1)
    play.play_on()
    assert max(play.auditor.widths) == 4
    play.auditor.complete({f"t{number}": 2 for number in range(8)})


def test_a_bundle_may_take_as_long_as_its_members_one_after_another() -> None:
    play = Play(1, least_timeout=1.0, epochs=9)
    for _ in range(4):
        (order,) = play.finish(play.told[-1], seconds=7.0)
    play.work("t1", 9, lr=0.5)
    play.work("t2", 9, lr=0.6)
    play.finish(play.told[-1], seconds=7.0)
    wide = play.told[-1]
    assert names(wide) == ["t1", "t2"]
    assert wide.limit == pytest.approx(100 * 7.0), "nobody knows how long these take"
    (order,) = play.finish_all(wide)
    assert all(member.limit is None for member in order.others)
    play.play_on()
    known = [order.limit for order in play.told if len(order.members) > 1 and order.unit.epoch > 4]
    assert min(limit for limit in known if limit is not None) > 2 * 10 * 0.5


def test_a_leaders_row_has_the_cost_of_the_whole_bundle() -> None:
    play = Play(4)
    (first,) = play.told
    for member in first.members:
        play.finish(member, 4, seconds=0.5)
    costs = play.scheduler.state.board.costs
    assert costs.cost[0] == pytest.approx(2.0)
    play.feed(TrialStopped(play.now, "t3"))
    play.finish_all(play.told[-1])
    assert costs.cost[0] < 2.1


# -- what is learnt


def test_what_a_width_gains_is_not_taken_for_the_speed_of_a_worker() -> None:
    model = CostModel([1.0])
    for row in range(4):
        model.add_trial(row, kin="mlp")
        model.add_worker(row)
    model.observe([0], 0, 0, 1.0)
    model.observe([0, 1, 2, 3], 0, 0, 2.0, width=4)
    assert model.together([0, 1, 2, 3]) == pytest.approx(2.0)
    assert model.together([0]) == pytest.approx(1.0)
    assert model.slowness[0] == 1.0
    assert not model.gains_nothing("mlp", 4)
    model.observe([0, 1, 2], 0, 0, 3.0, width=3)
    assert model.gains_nothing("mlp", 3)


def test_who_was_measured_only_together_is_known_alone_once_one_of_its_kin_was() -> None:
    model = CostModel([1.0])
    for row in range(3):
        model.add_trial(row, kin="mlp")
    model.add_worker(0)
    model.observe([0, 1], 0, 0, 1.0, width=2)
    assert model.measured(0)
    assert not model.measured_alone(0)
    assert model.together([0, 1]) == pytest.approx(1.0)
    model.observe([0], 0, 0, 0.8)
    assert model.measured_alone(1)
    assert model.together([1]) == pytest.approx(0.8)
    assert model.together([0, 1]) == pytest.approx(1.0)
    assert model.cost[2] == pytest.approx(model.together([2]))


PLAIN = st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.none())
PARAMS = st.dictionaries(st.sampled_from("abcd"), st.recursive(PLAIN | st.floats(), st.lists, max_leaves=4))


@given(PARAMS, st.floats())
def test_only_real_numbers_may_differ_between_kin(params: dict[str, Any], number: float) -> None:
    def other(value: Any) -> Any:
        if isinstance(value, list):
            return [other(item) for item in value]
        return number if isinstance(value, float) else value

    assert kin_of(params) == kin_of({name: other(value) for name, value in reversed(params.items())})


@given(PARAMS, PLAIN, PLAIN)
def test_anything_else_that_differs_makes_strangers(params: dict[str, Any], one: Any, other: Any) -> None:
    same = type(one) is type(other) and one == other
    assert (kin_of({**params, "a": one}) == kin_of({**params, "a": other})) == same
    assert kin_of({**params, "a": one}) != kin_of({**params, "a": 0.5})


def test_a_batch_size_must_be_equal_whatever_kind_of_number_it_is() -> None:
    assert kin_of({"batch_size": 32.0}) != kin_of({"batch_size": 64.0})
    assert kin_of({"batch_size": 32.0}) == kin_of({"batch_size": 32.0})
