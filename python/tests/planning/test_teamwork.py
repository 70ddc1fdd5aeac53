"""What pilots of groups tell: how efficient workers are together, on partitions of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up_pilots import TWO, group_record, made_profile, made_record

from cerebro_spark.events import UnitFinished
from cerebro_spark.planning.options import bound_of, list_options
from cerebro_spark.planning.teamwork import Teamwork
from cerebro_spark.planning.values import Cluster, Demand, Option, Workload
from cerebro_spark.scheduling.kin import kin_of

MODEL = {"units": 8, "batch_size": 10, "lr": 0.1}
OTHER = {"units": 9, "batch_size": 10, "lr": 0.1}
STEP = 0.01


def times(teamwork: Teamwork, rows: int = 1000) -> Any:
    return teamwork.times(lambda params: STEP * rows / params["batch_size"], rows)


def test_an_efficiency_is_what_one_worker_takes_for_its_partition_by_what_the_group_takes_for_all() -> None:
    # A step of the group has as many rows, spread over two: half the time of a step if nothing is lost.
    found = times(Teamwork({2: group_record(2, unit=0.0, step=STEP / 2, params=MODEL)}))
    assert found.efficiency(kin_of(MODEL), 2) == pytest.approx(1.0)
    found = times(Teamwork({2: group_record(2, unit=0.0, step=STEP, params=MODEL)}))
    assert found.efficiency(kin_of(MODEL), 2) == pytest.approx(0.5)


def test_what_each_unit_takes_weighs_less_on_large_partitions() -> None:
    teamwork = Teamwork({4: group_record(4, unit=0.2, step=STEP / 4, first=9.0, params=MODEL)})
    assert times(teamwork, rows=100).efficiency(kin_of(MODEL), 4) == pytest.approx(0.1 / 0.3)
    assert times(teamwork, rows=100_000).efficiency(kin_of(MODEL), 4) == pytest.approx(100 / 100.2)


def test_sizes_between_those_measured_are_between_them() -> None:
    teamwork = Teamwork(
        {
            8: group_record(8, unit=0.0, step=STEP / 4, params=MODEL),
            2: group_record(2, unit=0.0, step=STEP / 2 / 0.9, params=MODEL),
        }
    )
    found, kin = times(teamwork), kin_of(MODEL)
    assert teamwork.sizes == [2, 8]
    assert found.efficiency(kin, 8) == pytest.approx(0.5)
    assert 0.5 < found.efficiency(kin, 4) < 0.9
    assert found.efficiency(kin, 1) == 1.0
    assert found.efficiency(kin_of(OTHER), 2) == pytest.approx(found.efficiency(kin, 2)), "expected of what was not"
    assert found.mean(8) == pytest.approx(0.5)


def test_nothing_measured_says_nothing() -> None:
    found = times(Teamwork({}))
    assert (found.efficiency("any", 4), found.mean(4), found.best) == (1.0, None, 1.0)


def test_what_no_group_trains_is_known_by_its_structure() -> None:
    record = made_record([MODEL], lambda own, batches: 0.1)
    (trial,) = record.params
    record.refused[trial] = "its BatchNorm1d takes the statistics of a batch"
    found = times(Teamwork({2: record}))
    assert found.refused == {kin_of({**MODEL, "lr": 0.7}): "its BatchNorm1d takes the statistics of a batch"}
    assert found.mean(2) is None
    assert all(isinstance(done, UnitFinished) and not done.partners for done in record.finished)


def test_with_groups_there_may_be_more_workers_than_trials() -> None:
    rows = Workload(train=1000, validation=0, bytes=0)
    few = list_options(Cluster(1, 8), [1], rows, trials=2)
    many = list_options(Cluster(1, 8), [1], rows, trials=2, group=1024, group_auto=True)
    exact = list_options(Cluster(1, 8), [1], rows, trials=1, group=4)
    assert [option.workers for option in few] == [2, 1]
    assert [(option.workers, option.group) for option in many] == [(8, 8), (4, 4), (2, 2), (1, 1)]
    assert [(option.workers, option.group, option.group_auto) for option in exact] == [(4, 4, False)]


def test_the_bound_of_a_search_with_groups_is_below_all_that_they_can_do() -> None:
    profile = made_profile([MODEL], lambda params, batches: STEP * batches, TWO)
    profile.teamwork = Teamwork({4: group_record(4, unit=0.0, step=STEP / 4 / 1.25, params=MODEL)})
    rows, demand = Workload(train=4000, validation=0, bytes=0), Demand((MODEL,), (10,))
    option = Option(4, 1, 1, 4, group=4, group_auto=True)
    alone = bound_of(replace(option, group=1, group_auto=False), profile, rows, demand) - profile.record.lead
    together = bound_of(option, profile, rows, demand) - profile.record.lead
    assert together == pytest.approx(alone / 4 / 1.25)
