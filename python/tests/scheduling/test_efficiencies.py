"""How efficient groups are: what was measured counts, and what was not is expected to be like it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundle_play import Play
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.events import UnitFinished, WorkAdded, WorkerJoined
from cerebro_spark.scheduling.efficiencies import Efficiencies
from cerebro_spark.types import Checkpoint, Partition, Work

shares = st.floats(0.05, 2.0)
sizes = st.integers(2, 64)


@given(sizes, shares, st.integers(2, 6))
def test_what_was_measured_is_expected(size: int, share: float, times: int) -> None:
    known = Efficiencies()
    for _ in range(times):
        known.observe("mlp", size, share)
    assert known.estimate("mlp", size) == pytest.approx(share)
    assert known.estimate("mlp", 1) == 1.0


@given(sizes, shares)
def test_the_first_of_a_kin_counts_half_if_it_was_slow(size: int, share: float) -> None:
    """The first group pays for what happens only once, such as its links."""
    known = Efficiencies()
    known.observe("mlp", size, share)
    assert known.estimate("mlp", size) == pytest.approx(share**0.5 if share < 1 else share)


@given(st.lists(st.tuples(sizes, shares), max_size=8), sizes, sizes)
def test_more_workers_are_never_expected_to_be_more_efficient_than_the_nearest_known(
    measured: list[tuple[int, float]], one: int, other: int
) -> None:
    known = Efficiencies()
    for size, share in measured:
        known.observe("mlp", size, share)
    estimate = known.estimate("mlp", one)
    assert estimate > 0
    if not measured:
        assert estimate == 1.0
    elif len({size for size, _ in measured}) == 1 and measured[0][0] not in (one, other):
        assert (known.estimate("mlp", one) >= known.estimate("mlp", other)) or one > other


def test_between_and_beyond_what_was_measured_it_falls_by_as_much_a_worker() -> None:
    known = Efficiencies()
    for _ in range(2):
        known.observe("mlp", 3, 0.5)
    assert [round(known.estimate("mlp", size), 3) for size in (2, 3, 5)] == [0.667, 0.5, 0.333]


def test_a_kin_that_was_never_tried_is_expected_to_do_as_well_as_the_best_of_the_others() -> None:
    known = Efficiencies()
    for kin, share in (("mlp", 0.3), ("cnn", 0.9)):
        for _ in range(2):
            known.observe(kin, 4, share)
    assert known.estimate("new", 4) == pytest.approx(0.9)


def test_hosts_matter_once_groups_across_them_were_measured() -> None:
    known = Efficiencies()
    for _ in range(2):
        known.observe("mlp", 4, 0.9)
    assert known.estimate("mlp", 4, across_hosts=True) == pytest.approx(0.9), "the best that is known"
    for _ in range(2):
        known.observe("mlp", 4, 0.4, across_hosts=True)
    assert known.estimate("mlp", 4, across_hosts=True) == pytest.approx(0.4)
    assert known.estimate("mlp", 4) == pytest.approx(0.9)


def test_what_was_given_counts_until_something_was_measured() -> None:
    known = Efficiencies((1.0, 0.8, 0.7))
    assert [known.estimate("mlp", size) for size in (1, 2, 3, 9)] == [1.0, 0.8, 0.7, 0.7]
    for _ in range(2):
        known.observe("mlp", 2, 0.5)
    assert known.estimate("mlp", 2) == pytest.approx(0.5)
    assert known.estimate("other", 2) == 0.8


def test_what_one_worker_really_takes_corrects_what_groups_were_compared_with() -> None:
    known = Efficiencies()
    for _ in range(2):
        known.observe("mlp", 4, 0.5)
        known.observe("cnn", 4, 0.5)
    known.correct("mlp", 0.8)
    assert known.estimate("mlp", 4) == pytest.approx(0.4)
    assert known.estimate("cnn", 4) == pytest.approx(0.5)


def test_what_a_group_takes_is_compared_with_its_longest_member() -> None:
    """Partitions differ in size, so that single workers would take them different times."""
    uneven = (Partition("p0", rows=10), Partition("p1", rows=30))
    play = Play(0, workers=2, partitions=uneven, fuse=1, group=2)
    for worker in ("w0", "w1"):
        play.feed(WorkerJoined(play.now, worker, host="one"))
    (order,) = play.feed(WorkAdded(play.now, Work("t0", {}, 3), cost=100.0))
    for _ in range(2):
        left = Checkpoint("t0", order.unit.epoch, order.step, order.attempt)
        done = UnitFinished(play.now, order.worker, order.unit, order.attempt, 150.0 / 0.8, left, play.metrics)
        (order,) = play.feed(replace(done, partners=order.partners))
    assert play.scheduler.efficiency_of("t0", 2) == pytest.approx(0.8)
