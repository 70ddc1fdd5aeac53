"""How the time of a plan is spent, and what it concludes, with pilots that never ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_pilots import group_record, made_record

from cerebro_spark import hp
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.planning import measuring
from cerebro_spark.planning import planner as planners
from cerebro_spark.planning.dry_runs import demand_of
from cerebro_spark.planning.pilot import PilotRecord
from cerebro_spark.planning.plan import Plan
from cerebro_spark.planning.planner import Planned, Planner
from cerebro_spark.planning.shrunk import shrunk
from cerebro_spark.planning.values import Demand, Setting, Wish, Workload
from cerebro_spark.search import FixedSearch, Search
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.types import Objective, Partition

LOSS = Objective("val_loss", "min")
PARAMS: dict[str, Any] = {"lr": 0.1, "batch_size": 100, "units": 8}
SETTINGS = [Setting(1, 4), Setting(2, 2), Setting(1, 1), Setting(4, 1)]
ROWS = Workload(train=100_000, validation=10_000, bytes=10_000_000)
Batch = Mapping[Setting, float]
"""Seconds of a batch by setting."""


@pytest.fixture(autouse=True)
def _few_dry_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_DRY_RUNS", 4)


class Clock:
    """A clock that goes on with every pilot, and a little whenever it is looked at."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Pilots:
    """Stands in for `run_pilot`: it notes what was to be measured, and lets time pass."""

    def __init__(self, batch: Batch, seconds: float, clock: Clock, epoch: float = 0.0) -> None:
        self.batch, self.seconds, self.clock, self.epoch = batch, seconds, clock, epoch
        self.ran: list[tuple[int, tuple[int, ...], int]] = []
        self.together: list[int] = []
        self.groups: list[int] = []

    def __call__(
        self, job: Any, objective: Any, backend: Any, configurations: Sequence[Mapping[str, Any]], **rest: Any
    ) -> PilotRecord:
        self.ran.append((job.threads, job.batches, len(job.dataset.train)))
        self.together.append(rest["together"])
        self.groups.append(rest["group"])
        self.clock.now += self.seconds
        seconds = self.batch[Setting(job.threads, backend.workers)]
        if rest["group"] > 1:
            return group_record(rest["group"], 0.0, seconds / rest["group"] / 0.8, PARAMS)
        return made_record(
            configurations,
            lambda params, batches: seconds * batches,
            job.batches,
            len(job.dataset.train),
            epoch_seconds=self.epoch,
        )


def plan(
    monkeypatch: pytest.MonkeyPatch,
    batch: Batch,
    pilot: float = 5.0,
    seconds: float = 60.0,
    trials: int = 16,
    hosts: int = 1,
    tick: float = 0.0,
    failure_rate: float = 0.0,
    algorithm: Callable[[], Search] | None = None,
    time_budget: float | None = None,
    epoch: float = 0.0,
    group: int = 1,
) -> tuple[Planned, Pilots]:
    """Return a plan on hosts of four cores, and the pilots that were run for it."""
    clock = Clock(tick)
    pilots = Pilots(batch, pilot, clock, epoch)
    monkeypatch.setattr(measuring, "run_pilot", pilots)
    monkeypatch.setattr(measuring, "replace", _replace)
    data = SimpleNamespace(train=tuple(Partition(f"p{n}", rows=1000) for n in range(4)), validation=())
    trainer = SimpleNamespace(with_resources=lambda threads: SimpleNamespace(threads=threads))
    job = SimpleNamespace(run="plan", dataset=data, trainer=trainer, batches=())

    def search(workers: int) -> Search:
        return algorithm() if algorithm else FixedSearch([PARAMS] * trials, 2)

    def timed(workers: int) -> Search:
        return search(workers) if time_budget is None else Stopping(search(workers), LOSS, None, time_budget)  # type: ignore[arg-type]

    made = Planner(
        job,  # type: ignore[arg-type]
        LOSS,
        timed,
        search,
        lambda setting: nullcontext(SimpleNamespace(workers=setting.at_once)),  # type: ignore[arg-type]
        Cluster(hosts, 4, failure_rate=failure_rate),
        ROWS,
        time_budget=time_budget,
        group=group,
        group_auto=group > 1,
        seconds=seconds,
        clock=clock,
    )
    return made.plan(SETTINGS, Wish()), pilots


def _replace(value: Any, **changes: Any) -> Any:
    """`dataclasses.replace`, for stand-ins too."""
    if not isinstance(value, SimpleNamespace):
        from dataclasses import replace

        return replace(value, **changes)
    made = SimpleNamespace(**{**vars(value), **changes})
    if hasattr(made, "trainer"):
        made.threads = getattr(made.trainer, "threads", 1)
    return made


EVEN = {Setting(1, 4): 0.01, Setting(2, 2): 0.01, Setting(1, 1): 0.01, Setting(4, 1): 0.01}


def test_a_small_probe_comes_first_and_then_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN)
    assert [threads for threads, _, _ in pilots.ran] == [1, 1, 2, 1, 4]
    assert pilots.ran[0][2] == 1  # the probe: one partition, few batches
    assert max(pilots.ran[0][1]) < max(pilots.ran[1][1])
    assert set(planned.profiles) == set(SETTINGS)


def test_workers_of_a_pilot_know_their_next_order_as_those_of_the_search_do(monkeypatch: pytest.MonkeyPatch) -> None:
    _, pilots = plan(monkeypatch, EVEN)
    assert pilots.together == [1, 8, 4, 2, 2]
    _, pilots = plan(monkeypatch, EVEN, trials=2)
    assert pilots.together == [1, 4, 2, 2, 2]


def test_groups_are_measured_with_every_setting_that_has_workers_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN, trials=1, group=1024)
    assert pilots.groups == [1, 1, 4, 2, 1, 2, 1, 1]
    best = planned.estimates[0]
    assert (best.option.workers, best.option.group) == (4, 4)
    assert best.efficiency == pytest.approx(0.8)
    alone, _ = plan(monkeypatch, EVEN, trials=1)
    assert best.seconds < 0.5 * alone.estimates[0].seconds
    assert any("4 workers together do 3.2 times the work of one" in why for why in Plan(planned).why)
    assert plan(monkeypatch, EVEN, trials=1)[1].groups == [1] * 5


def test_groups_for_which_there_is_no_time_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN, trials=1, group=1024, pilot=15.0)
    assert pilots.groups == [1, 1, 4]
    assert planned.estimates[0].option.group > 1


def test_threads_that_gain_nothing_lose_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = plan(monkeypatch, EVEN)
    best = planned.estimates[0].option
    assert (best.workers, best.threads) == (4, 1)
    assert len(planned.estimates) == 6  # 4, 2 and 1 with one thread, 2 and 1 with two, 1 with four
    assert all(estimate.dry_runs for estimate in planned.estimates)


def test_threads_that_gain_more_than_workers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = plan(monkeypatch, {**EVEN, Setting(4, 1): 0.002})
    best = planned.estimates[0].option
    assert (best.workers, best.threads) == (1, 4)


def test_workers_that_slow_each_other_down_are_planned_as_slow_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, _ = plan(monkeypatch, {**EVEN, Setting(1, 4): 0.02})
    seconds = {(one.option.workers, one.option.threads): one.seconds for one in slow.estimates}
    even, _ = plan(monkeypatch, EVEN)
    alike = {(one.option.workers, one.option.threads): one.seconds for one in even.estimates}
    assert seconds[1, 1] == pytest.approx(alike[1, 1], rel=0.05)
    assert seconds[4, 1] > 1.7 * alike[4, 1]
    assert 1.2 < seconds[2, 1] / alike[2, 1] < 1.5


def test_what_there_is_no_time_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN, pilot=20.0)
    assert len(pilots.ran) < 5
    assert planned.estimates[0].dry_runs > 0
    late, _ = plan(monkeypatch, EVEN, pilot=100.0)
    assert late.estimates[0].dry_runs > 0
    assert {one.option.threads for one in late.estimates} == {1}
    assert late.unmeasured == (Setting(2, 2), Setting(1, 1), Setting(4, 1))
    assert (
        "There was no time to measure 2 workers with 2 threads, 1 worker with 1 thread, 1 worker with 4"
        in Plan(late).why[-1]
    )
    measured, _ = plan(monkeypatch, EVEN)
    assert measured.unmeasured == ()
    assert "no time" not in " ".join(Plan(measured).why)


def test_where_epochs_take_long_whatever_is_trained_pilots_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four workers: two trials of four epochs for each take 32 times 0.8 s, but one of three takes 12 times that.
    planned, pilots = plan(monkeypatch, EVEN, epoch=0.8)
    assert pilots.together[:2] == [1, 4]
    assert len(pilots.ran[1][1]) == 3
    assert set(planned.profiles) == set(SETTINGS)


def test_where_pilots_take_too_long_the_small_probe_stands_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN, pilot=30.0, epoch=20.0)
    assert pilots.together == [1]
    assert set(planned.profiles) == {Setting(1, 1)}
    assert planned.estimates[0].option.workers == 4
    assert planned.unmeasured == (Setting(1, 4), Setting(2, 2), Setting(4, 1))
    assert "There was no time to measure 4 workers with 1 thread" in Plan(planned).why[-1]


def test_where_only_some_pilots_take_too_long_others_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, pilots = plan(monkeypatch, EVEN, pilot=3.0, epoch=4.0)
    # Four workers would take 48 s, two 24, one 12.
    assert [ran[::2] for ran in pilots.ran] == [(1, 1), (2, 2), (1, 1), (4, 1)]
    assert Setting(1, 4) not in planned.profiles


@pytest.mark.slow
@pytest.mark.rare
def test_a_smaller_search_stands_for_one_on_300_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_DRY_RUNS", 2)
    planned, _ = plan(monkeypatch, EVEN, trials=300, hosts=300, tick=0.01)
    assert len(planned.estimates) <= 20
    best = planned.estimates[0]
    # The last ones gain next to nothing: two epochs of 10 seconds, on one worker at a time, are the least.
    assert best.option.workers in (256, 300)
    assert best.scale > 5
    assert 20 < best.seconds < 40
    assert "times smaller was run dry in its place" in " ".join(Plan(planned).why)


@pytest.mark.slow
def test_what_a_large_search_asks_for_is_drawn_for_each_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []

    def noted(*arguments: Any) -> Demand:
        drawn = demand_of(*arguments)
        epochs.append(sum(drawn.epochs))
        return drawn

    monkeypatch.setattr(planners, "shrunk", partial(shrunk, most=100))
    monkeypatch.setattr(planners, "demand_of", noted)
    space = {**PARAMS, "lr": hp.uniform(0.01, 0.1)}
    planned, _ = plan(monkeypatch, EVEN, algorithm=lambda: ASHAAlgorithm(space, LOSS, num_trials=30, max_epochs=9))
    assert planned.estimates[0].scale > 1.5
    assert planned.estimates[0].dry_runs == len(epochs) == 4
    assert len(set(epochs)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("most", [100, 8000], ids=["smaller", "whole"])
def test_a_time_budget_ends_a_search_however_large_it_is(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(planners, "shrunk", partial(shrunk, most=most))

    def epochs() -> Search:
        return FixedSearch([PARAMS] * 8, 10)

    free, _ = plan(monkeypatch, EVEN, algorithm=epochs)
    whole = free.estimates[0].seconds
    short, _ = plan(monkeypatch, EVEN, algorithm=epochs, time_budget=0.35 * whole)
    assert short.demand == free.demand
    assert (free.estimates[0].scale > 1.5) == (most == 100)
    assert short.estimates[0].seconds == pytest.approx(0.4 * whole, rel=0.15)
    assert short.estimates[0].bound <= 0.35 * whole


@pytest.mark.slow
def test_the_example_of_five_nodes_has_few_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "_DRY_RUNS", 2)
    planned, _ = plan(monkeypatch, EVEN, trials=100, hosts=5, tick=0.01)
    assert len(planned.estimates) <= 20
    assert planned.estimates[0].option.workers == 20


@pytest.mark.slow
def test_trials_that_will_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = plan(monkeypatch, EVEN, failure_rate=0.6)
    assert planned.estimates[0].failed > 8
    assert any("of 16 trials will fail, since workers die so often" in sentence for sentence in Plan(planned).why)
    calm, _ = plan(monkeypatch, EVEN)
    assert not any("will fail" in sentence for sentence in Plan(calm).why)


def test_trials_are_never_fewer_than_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = plan(monkeypatch, EVEN, trials=2)
    assert max(estimate.option.workers for estimate in planned.estimates) == 2
