"""The simulator: bounds that are bounds, bytes that add up, the same run for the same seed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from observing import each_event

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Event, PartitionLoaded, Settings
from cerebro_spark.search import FixedSearch
from cerebro_spark.simulation import CNN_COSTS, Scenario, simulate
from cerebro_spark.types import Partition, Unit

scenarios = st.builds(
    Scenario,
    trials=st.integers(1, 9),
    workers=st.integers(1, 5),
    partitions=st.none() | st.integers(5, 9),
    epochs=st.integers(1, 3),
    replicas=st.just(1),
    policy=st.sampled_from(["hopper", "longest-first", "random", "rearrangement"]),
    heterogeneous=st.booleans(),
    jitter=st.sampled_from([0.0, 0.05, 0.3]),
    known_costs=st.booleans(),
    failure_rate=st.sampled_from([0.0, 0.05]),
    max_kills=st.just(99),  # no trial fails for workers that were lost by chance
    validation=st.integers(0, 2),
    queue_ahead=st.integers(0, 1),
)


@settings(deadline=None)
@given(scenarios, st.integers(0, 99))
@example(Scenario(trials=7, workers=2, partitions=9, epochs=2, heterogeneous=True, queue_ahead=1), 82)
def test_every_unit_is_done_once_and_no_bound_is_beaten(scenario: Scenario, seed: int) -> None:
    outcome = simulate(scenario, seed, keep_units=True)
    units = [Unit(*row[:4]) for row in outcome.timeline.units]
    expected = scenario.trials * scenario.epochs * (scenario.columns + scenario.validation)
    assert len(units) == len(set(units)) == expected
    assert outcome.ratio >= 1 - 1e-9
    assert 0 < outcome.utilisation <= 1 + 1e-9


@settings(max_examples=15, deadline=None)
@given(scenarios, st.integers(0, 9))
def test_the_same_seed_gives_the_same_run(scenario: Scenario, seed: int) -> None:
    one, two = simulate(scenario, seed, keep_units=True), simulate(scenario, seed, keep_units=True)
    assert one.timeline.units == two.timeline.units
    assert one.traffic == two.traffic


def test_unit_times_do_not_depend_on_who_schedules_them() -> None:
    def total(policy: str) -> float:
        outcome = simulate(Scenario(trials=6, workers=3, jitter=0.2, policy=policy), keep_units=True)
        return sum(bar.end - bar.start for bar in outcome.timeline.units)

    assert total("random") == pytest.approx(total("hopper"))


def test_checkpoint_bytes_follow_the_formula_of_a_shared_store() -> None:
    epochs, trials, workers, size = 3, 5, 4, 1000
    traffic = simulate(Scenario(trials=trials, workers=workers, epochs=epochs, model_bytes=size)).traffic
    assert traffic.written == epochs * size * workers * trials
    assert traffic.read == epochs * size * workers * trials - trials * size
    assert traffic.hopped <= traffic.read
    assert traffic.hopped == traffic.hops * size


def test_hops_take_time_on_a_slow_network() -> None:
    fast = simulate(Scenario(trials=4, workers=4, epochs=2, model_bytes=100))
    slow = simulate(Scenario(trials=4, workers=4, epochs=2, model_bytes=100, bandwidth=200.0))
    assert slow.makespan == pytest.approx(fast.makespan + 7 * 0.5, rel=0.2)


def test_with_replicas_a_loss_is_made_good_by_the_others() -> None:
    scenario = Scenario(
        trials=32, workers=8, epochs=4, replicas=3, jitter=0.05, deaths={2: ((30.0, 70.0),), 5: ((33.0, 80.0),)}
    )
    outcome = simulate(scenario)
    assert outcome.ratio < 1.05
    assert outcome.units_rerun == 2
    assert outcome.traffic.units == 32 * 8 * 4


def test_a_partition_without_a_holder_is_loaded_by_another_worker() -> None:
    outcome = simulate(Scenario(trials=4, workers=3, epochs=3, deaths={1: ((5.0, float("inf")),)}), keep_units=True)
    orphan = [bar for bar in outcome.timeline.units if bar.partition == "p1" and bar.start > 6]
    assert orphan
    assert {bar.worker for bar in orphan} <= {"w0", "w2"}


@pytest.mark.parametrize("known", [True, False])
def test_faster_workers_come_to_hold_more_partitions(known: bool) -> None:
    loads: dict[str, int] = {}

    @each_event
    def count(event: Event) -> None:
        if isinstance(event, PartitionLoaded):
            loads[event.worker] = loads.get(event.worker, 0) + 1

    backend = SimulatedBackend(
        [SimulatedWorker("slow"), SimulatedWorker("fast", speed=4.0)], World(lambda p: 1.0, speeds_known=known)
    )
    parts = tuple(Partition(f"p{i}") for i in range(10))
    engine = Engine(FixedSearch([{}] * 6, 6), Settings(parts, 2), backend, DiscardingLog(), observers=[count])
    engine.run()
    held = {w.id: len(w.holds) for w in engine.scheduler.state.workers.values()}
    assert held == {"slow": 2, "fast": 8}
    if known:
        assert loads == held, "known speeds need no moves"
    assert backend.now() < 1.25 * (6 * 6 * 10 / 5)


def test_the_costs_are_those_of_the_paper() -> None:
    assert len(CNN_COSTS) == 35
    assert np.mean(CNN_COSTS) == pytest.approx(5939, rel=0.01)
    assert np.std(CNN_COSTS, ddof=1) == pytest.approx(5671, rel=0.02)


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"trials": 12, "workers": 8, "partitions": 9}, 2 * 12 * 5),
        ({"trials": 16, "workers": 8, "validation": 3}, 16 * 5 * (8 + 3 / 3) / 8),
        ({"trials": 3, "workers": 8}, 16 * 5 * 8 / 16),
        ({"trials": 16, "workers": 8, "replicas": 3}, 16 * 5),
    ],
)
def test_the_lower_bound(options: dict[str, int], bound: float) -> None:
    outcome = simulate(Scenario(**options))  # type: ignore[arg-type]
    assert outcome.lower_bound == pytest.approx(bound)
    assert outcome.ratio < 1.25


@cache
def mean_makespan(trials: int, replicas: int) -> float:
    scenario = Scenario(trials=trials, workers=trials, jitter=0.05, replicas=replicas)
    return float(np.mean([simulate(scenario, seed).makespan for seed in range(3)]))


@pytest.mark.parametrize(("trials", "replicas"), [(8, 2), (8, 3), pytest.param(16, 2, marks=pytest.mark.slow)])
def test_more_replicas_do_not_make_a_run_slower(trials: int, replicas: int) -> None:
    assert mean_makespan(trials, replicas) <= 1.03 * mean_makespan(trials, 1)


def test_evaluation_reports_every_epoch() -> None:
    outcome = simulate(Scenario(trials=3, workers=2, epochs=2, validation=2), keep_units=True)
    evaluated = [Unit(*row[:4]) for row in outcome.timeline.units if row.kind == "eval"]
    assert len(evaluated) == 3 * 2 * 2


def test_two_workers_with_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="same id"):
        SimulatedBackend([SimulatedWorker("w0"), SimulatedWorker("w0")], World(lambda p: 1.0))


@pytest.mark.parametrize(
    "world", [World(lambda p: 1.0, jitter=1.0), World(lambda p: 1.0, bandwidth=0), World(lambda p: 1.0, failure_rate=1)]
)
def test_impossible_worlds_are_refused(world: World) -> None:
    with pytest.raises(ConfigurationError):
        SimulatedBackend([SimulatedWorker("w0")], world)


def test_utilisation_counts_only_what_was_finished() -> None:
    outcome = simulate(Scenario(trials=8, workers=4, epochs=3, failure_rate=0.1), seed=3, keep_units=True)
    finished = sum(bar.end - bar.start for bar in outcome.timeline.units)
    assert outcome.units_rerun > 0
    assert outcome.timeline.busy == pytest.approx(finished)
