"""Searches in virtual time: as long as the work takes, whatever the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made_up_pilots import group_record, made_profile, made_record

import cerebro_spark as cs
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.events import CostEstimated, Event, UnitFinished
from cerebro_spark.planning.configurations import PilotSearch, representatives
from cerebro_spark.planning.dry_runs import demand_of, dry_run
from cerebro_spark.planning.options import bound_of, list_options, prune, work_of
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.shrunk import shrunk
from cerebro_spark.planning.teamwork import Teamwork
from cerebro_spark.planning.values import Demand, Option, Workload
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.tune import hp
from cerebro_spark.types import Objective, Report, Work

LOSS = Objective("val_loss", "min")
PARAMS: dict[str, Any] = {"units": 8, "lr": 0.1, "batch_size": 10}
ROWS = Workload(train=8000, validation=800, bytes=0)


def profile(**rest: Any) -> Profile:
    return made_profile([PARAMS], lambda params, batches: 0.01 * batches, lead=0.0, **rest)


def planned(option: Option, trials: int = 4, epochs: int = 2, seed: int = 0, **how: Any) -> float:
    search = FixedSearch([PARAMS] * trials, epochs)
    rest = {"failure_rate": how.pop("failure_rate", 0.0), "bandwidth": how.pop("bandwidth", None)}
    times = how.pop("measured", profile()).times(option, ROWS, Cluster(option.hosts, 8, **rest))
    return dry_run(search, LOSS, option, ROWS, times, seed, **how).seconds


def test_a_search_takes_what_its_work_takes() -> None:
    # An epoch of a trial is 800 batches of 10 ms, and 80 of 5 ms to evaluate it.
    alone = planned(Option(1, 1, 1, 1), noisy=False)
    assert alone == pytest.approx(4 * 2 * (8.0 + 0.4) + 1.0, rel=0.02)
    both = planned(Option(2, 1, 1, 2), noisy=False)
    assert 0.5 <= both / alone <= 0.56
    many = planned(Option(8, 1, 1, 8), trials=1, noisy=False)
    assert many >= 2 * 8.0  # a trial is on one worker at a time


def test_it_is_never_shorter_than_its_bound() -> None:
    demand = Demand((PARAMS,) * 4, (2,) * 4)
    for option in list_options(Cluster(2, 4), [1, 2], ROWS, trials=4):
        took = planned(option, noisy=False)
        assert took >= bound_of(option, profile(), ROWS, demand) * 0.999


def test_workers_that_would_idle_shorten_what_they_help_with() -> None:
    four = Option(4, 1, 1, 4)
    alone = planned(four, trials=1, epochs=4, noisy=False)
    good, poor = profile(), profile()
    good.teamwork = Teamwork({4: group_record(4, unit=0.0, step=0.01 / 4, params=PARAMS)})
    poor.teamwork = Teamwork({4: group_record(4, unit=0.0, step=0.02, params=PARAMS)})
    auto, exact = replace(four, group=4, group_auto=True), replace(four, group=4)
    demand = Demand((PARAMS,), (4,))
    for option in (auto, exact):
        together = planned(option, trials=1, epochs=4, noisy=False, measured=good)
        assert together < 0.45 * alone
        assert together >= bound_of(option, good, ROWS, demand) * 0.999
    tried = planned(auto, trials=1, epochs=16, noisy=False, measured=poor)
    assert tried == pytest.approx(4 * alone, rel=0.15), "a group is tried, and not kept"
    assert planned(exact, trials=1, epochs=4, noisy=False, measured=poor) > 1.8 * alone


@pytest.mark.parametrize("batch", [10, 40])
def test_groups_begin_at_once_as_in_a_run_that_follows_its_plan(batch: int) -> None:
    params = [{**PARAMS, "batch_size": 10}, {**PARAMS, "batch_size": 40}]
    measured = made_profile(params, lambda params, batches: 0.01 * batches, lead=0.0)
    measured.teamwork = Teamwork({4: group_record(4, unit=0.0, step=0.01 / 4, params=params[0])})
    four = Option(4, 1, 1, 4)
    search = FixedSearch([{**PARAMS, "batch_size": batch}], 1)
    seen: list[Event] = []
    auto = replace(four, group=4, group_auto=True)
    times = measured.times(auto, ROWS, Cluster(1, 8))
    dry_run(search, LOSS, auto, ROWS, times, noisy=False, observers=(lambda turn: seen.extend(turn.events),))
    (estimated,) = [event.seconds for event in seen if isinstance(event, CostEstimated)]
    assert estimated == pytest.approx(0.01 * 2000 / batch)
    first = next(event for event in seen if isinstance(event, UnitFinished))
    assert len(first.workers) == 4


@pytest.mark.parametrize("auto", [True, False])
def test_trials_that_no_group_can_train_are_planned_as_single_ones(auto: bool) -> None:
    four = Option(4, 1, 1, 4)
    refused, record = profile(), made_record([PARAMS], lambda params, batches: 0.1)
    record.refused["t0"] = "its BatchNorm1d takes the statistics of a batch"
    refused.teamwork = Teamwork({4: record})
    alone = planned(four, trials=1, noisy=False)
    found = planned(replace(four, group=4, group_auto=auto), trials=1, noisy=False, measured=refused)
    assert found == pytest.approx(alone, rel=0.02)


def test_seeds_make_an_interval_and_repeat_themselves() -> None:
    option = Option(2, 1, 1, 2)
    drawn = [planned(option, seed=seed) for seed in range(6)]
    assert len(set(drawn)) == 6
    assert drawn == [planned(option, seed=seed) for seed in range(6)]
    assert min(drawn) <= planned(option, noisy=False) <= max(drawn)


def test_deaths_hops_and_builds_take_time() -> None:
    option = Option(4, 1, 2, 4)
    calm = planned(option, noisy=False)
    heavy = profile(checkpoint=10_000_000)
    assert planned(option, noisy=False, measured=heavy, bandwidth=1e7) > calm + 1.0
    assert planned(option, noisy=False, measured=profile(build=2.0)) == pytest.approx(calm + 2.0, rel=0.1)
    lived = planned(option, seed=3)
    assert planned(option, seed=3, failure_rate=0.2) > lived


def test_each_trial_that_begins_anew_takes_time() -> None:
    option, kin = Option(1, 1, 1, 1), [PARAMS, {**PARAMS, "lr": 0.2}]
    begun = made_profile(kin, lambda params, batches: 0.01 * batches, lead=0.0, build=2.0, again=1.0)
    # Four trials: the first builds the structure.
    assert planned(option, noisy=False, measured=begun) == pytest.approx(planned(option, noisy=False) + 2.0 + 3 * 1.0)


@pytest.mark.parametrize(
    ("workers", "trials", "epochs"),
    [(32, 32, 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((32, 48, 2), (16, 80, 4)))],
)
def test_a_smaller_search_takes_its_share_of_the_time(workers: int, trials: int, epochs: int) -> None:
    configurations = [{**PARAMS, "units": 8 * (1 + number % 4)} for number in range(trials)]
    measured = made_profile(configurations[:4], lambda params, batches: 0.001 * params["units"] * batches, lead=0.0)
    option, demand = Option(workers, 1, 1, workers), Demand(tuple(configurations), (epochs,) * trials)
    rows = Workload(train=64_000, validation=6400, bytes=0)
    small = shrunk(option, rows, demand, most=1200)
    assert small is not None

    def run(search: Search, option: Option, rows: Workload) -> float:
        times = measured.times(option, rows, Cluster(1, workers)).steady()
        return dry_run(search, LOSS, option, rows, times, noisy=False).seconds

    whole, part = (
        run(FixedSearch(configurations, epochs), option, rows),
        run(small.search(), small.option, small.workload),
    )
    scale = (
        work_of(option, measured, rows, demand)[0]
        / work_of(small.option, measured, small.workload, small.demand)[0]
        * small.option.workers
        / workers
    )
    assert scale > 1.9
    assert scale * part == pytest.approx(whole, rel=0.1)


def test_a_search_that_is_small_is_run_as_it_is() -> None:
    assert shrunk(Option(4, 1, 1, 4), ROWS, Demand((PARAMS,) * 16, (3,) * 16)) is None


def test_workers_that_die_too_often_take_their_trials_with_them() -> None:
    option, search = Option(2, 1, 1, 2), FixedSearch([PARAMS] * 8, 2)
    times = profile().times(option, ROWS, Cluster(1, 2, failure_rate=0.5))
    assert dry_run(search, LOSS, option, ROWS, times, max_kills=1).failed >= 6
    assert dry_run(FixedSearch([PARAMS] * 8, 2), LOSS, option, ROWS, times, max_kills=99).failed == 0


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (cs.GridSearch, {"epochs": 3, "space": {"lr": hp.choice([0.1, 0.2, 0.3])}}),
        (cs.RandomSearch, {"num_trials": 5, "epochs": 3}),
        (cs.TPESearch, {"num_trials": 5, "epochs": 3}),
        (cs.ASHA, {"num_trials": 9, "max_epochs": 9}),
        (cs.Hyperband, {"max_epochs": 9}),
        (cs.PBT, {"population": 4, "epochs": 4, "perturb_every": 2}),
        (cs.RandomSearch, {"num_trials": 5, "epochs": 9, "patience": 2}),
        (cs.RandomSearch, {"num_trials": 5, "epochs": 9, "time_budget": 3.0}),
    ],
)
def test_every_search_runs_dry(kind: Any, more: dict[str, Any]) -> None:
    space = {"lr": hp.loguniform(1e-4, 1e-1)}
    search = kind(lambda params: None, **{"space": space, **more}, store="unused", metric="val_loss", framework="torch")
    demand = demand_of(search._stopping_algorithm(2), LOSS, 2)
    assert demand.trials >= 3
    assert all(epochs >= 1 for epochs in demand.epochs)
    option = Option(2, 1, 1, 2)
    times = profile().times(option, ROWS, Cluster(1, 2))
    runs = [dry_run(search._stopping_algorithm(2), LOSS, option, ROWS, times, seed) for seed in range(2)]
    assert all(run.seconds > 0 and 0 < run.utilisation <= 1 and not run.failed for run in runs)


def test_of_each_structure_one_is_measured_before_a_second_but_two_of_the_first() -> None:
    params = [{"units": units, "lr": lr} for units in (8, 16) for lr in (0.1, 0.2, 0.3)]
    demand = Demand(tuple(params), (1, 1, 1, 9, 9, 9))
    chosen = representatives(demand, most=5)
    assert [one["units"] for one in chosen] == [16, 16, 8, 16, 8]
    assert len(representatives(demand)) == 6


def test_a_pilot_asks_for_as_many_as_there_are_workers_and_ends_in_time() -> None:
    search = PilotSearch([{"n": number} for number in range(5)], epochs=2, at_once=2, seconds=10.0)
    first, second = search.ask(), search.ask()
    assert isinstance(first, Work)
    assert isinstance(second, Work)
    assert isinstance(search.ask(), Wait)
    search.tell(Report(first.trial, 1, at=1.0))
    assert isinstance(search.ask(), Wait)
    search.tell(Report(first.trial, 2, at=2.0))
    third = search.ask()
    assert isinstance(third, Work)
    search.tell(Report(second.trial, 1, at=11.0, error="it broke"))
    assert isinstance(search.ask(), Done)


@pytest.mark.parametrize(("at", "then"), [(5.0, Work), (6.5, Done)])
def test_a_pilot_begins_nothing_that_would_end_too_late(at: float, then: type) -> None:
    search = PilotSearch([{"n": 0}, {"n": 1}], epochs=1, at_once=1, seconds=10.0, ahead=4.0)
    assert isinstance(search.ask(), Work)
    search.tell(Report("t0", 1, at=at))
    assert isinstance(search.ask(), then)


def test_a_pilot_without_time_still_asks_for_the_first() -> None:
    search = PilotSearch([{"n": 0}, {"n": 1}], epochs=1, at_once=1, seconds=-1.0)
    assert isinstance(search.ask(), Work)
    search.tell(Report("t0", 1, at=5.0))
    assert isinstance(search.ask(), Done)


def test_at_most_twenty_options_are_considered_and_the_best_is_among_them() -> None:
    dike = list_options(Cluster(hosts=5, cores=4), [1, 2, 4], ROWS, trials=100)
    assert len(dike) <= 20
    many = list_options(Cluster(hosts=300, cores=64), [1, 2, 4, 8, 16, 32, 64], Workload(10**9, 0, 0), trials=10**6)
    assert max(option.workers for option in many) == 300 * 64
    kept = prune(many, lambda option: 1 / option.workers)
    assert len(kept) == 20
    assert kept[0].workers == 300 * 64


def test_workers_are_never_more_than_trials_cores_or_partitions() -> None:
    def most(trials: int = 99, partitions: int | None = None) -> int:
        rows = Workload(8000, 0, 0, partitions)
        return max(option.workers for option in list_options(Cluster(2, 8), [1, 8], rows, trials))

    assert (most(), most(trials=3), most(partitions=5)) == (16, 3, 5)
    assert {option.partitions for option in list_options(Cluster(2, 8), [1], Workload(80, 0, 0, 5), 99)} == {5}
