"""Trials that several workers train, in virtual time: nothing is lost, what is gained arrives, nothing gets slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Settings
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.simulation import Scenario, efficiency_of, simulate
from cerebro_spark.timeline import Timeline
from cerebro_spark.types import Partition, Report, Work

RING = (1.0, 0.8, 0.75, 0.7, 0.68, 0.66, 0.65, 0.64)

scenarios = st.builds(
    Scenario,
    trials=st.integers(1, 9),
    workers=st.integers(4, 6),
    partitions=st.none() | st.integers(6, 8),
    epochs=st.integers(1, 3),
    replicas=st.integers(1, 2),
    heterogeneous=st.booleans(),
    jitter=st.sampled_from([0.0, 0.3]),
    known_costs=st.booleans(),
    failure_rate=st.sampled_from([0.0, 0.05]),
    max_kills=st.just(99),  # no trial fails for workers that were lost by chance
    validation=st.integers(0, 2),
    queue_ahead=st.integers(0, 1),
    model_bytes=st.sampled_from([0, 10]),
    bandwidth=st.just(100.0),
    fuse=st.sampled_from([1, 3]),
    group=st.integers(2, 4),
    group_auto=st.booleans(),
    efficiency=st.sampled_from([(), RING, (1.0, 0.2), (1.0, 1.2)]),
)


@settings(deadline=None)
@given(scenarios, st.integers(0, 99))
def test_every_partition_is_trained_once(scenario: Scenario, seed: int) -> None:
    outcome = simulate(scenario, seed, keep_units=True)
    assert outcome.units_lost == 0
    assert outcome.trials_failed == 0
    assert 0 < outcome.utilisation <= 1 + 1e-9


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(scenarios, st.integers(0, 9))
def test_the_same_seed_gives_the_same_run(scenario: Scenario, seed: int) -> None:
    one, two = simulate(scenario, seed, keep_units=True), simulate(scenario, seed, keep_units=True)
    assert one.timeline.units == two.timeline.units


def auto(scenario: Scenario) -> Scenario:
    return replace(scenario, group=scenario.workers, group_auto=True)


def test_one_trial_has_all_workers() -> None:
    alone = Scenario(trials=1, workers=8, epochs=3, known_costs=True, efficiency=RING)
    assert simulate(auto(alone)).makespan == pytest.approx(simulate(alone).makespan / (8 * RING[7]))


def test_what_is_not_known_beforehand_is_measured_and_costs_little() -> None:
    known = Scenario(trials=3, workers=8, epochs=10, jitter=0.05, known_costs=True, efficiency=RING)
    assert simulate(auto(replace(known, known_costs=False))).makespan <= 1.1 * simulate(auto(known)).makespan


@pytest.mark.parametrize("trials", [1, 3, 5, 12])
@pytest.mark.parametrize("overhead", [0.05, 3.0])
def test_groups_are_never_much_slower_than_none(trials: int, overhead: float) -> None:
    efficiency = tuple(1 / (1 + overhead * (size - 1) / size) for size in range(1, 9))
    alone = Scenario(trials=trials, workers=8, epochs=3, jitter=0.05, known_costs=True, efficiency=efficiency)
    assert simulate(auto(alone)).makespan <= 1.03 * simulate(alone).makespan


@pytest.mark.parametrize("workers", [4, 8])
def test_pairs_of_a_fixed_size_lose_nothing_by_waiting_for_each_other(workers: int) -> None:
    """As many trials as pairs: they go around like single trials on half as many workers."""
    pairs = Scenario(trials=workers // 2, workers=workers, epochs=4, group=2)
    assert simulate(pairs).makespan == pytest.approx(4 * workers / 2)


class OneByOne(Search):
    """Asks for a trial of one epoch whenever one has ended, a few at a time; it says at the end that it is done."""

    def __init__(self, trials: int, at_once: int) -> None:
        self._left, self._at_once, self._open = list(range(trials)), at_once, 0

    def ask(self) -> Work | Wait | Done:
        if self._left and self._open < self._at_once:
            self._open += 1
            return Work(f"t{self._left.pop(0)}", {}, 1)
        return Wait() if self._open else Done()

    def tell(self, report: Report) -> None:
        self._open -= 1


def seconds(search: Search, group: int, efficiency: tuple[float, ...] = RING) -> float:
    """How long a search takes on 8 workers, with groups of up to this size."""
    world = World(cost=lambda params: 1.0, jitter=0.05, efficiency=lambda params, size: efficiency[size - 1])
    backend = SimulatedBackend([SimulatedWorker(f"w{number}") for number in range(8)], world)
    settings = Settings(tuple(Partition(f"p{n}") for n in range(8)), workers=8, group=group, group_auto=group > 1)
    timeline = Timeline()
    Engine(search, with_todays_rules(settings), backend, DiscardingLog(), observers=[timeline]).run()
    return timeline.end


def test_a_search_that_asks_for_a_trial_as_one_ends_loses_nothing_to_groups() -> None:
    """Between the end of a trial and the next one a worker is idle only for a moment."""
    bad = tuple(1.0 / size for size in range(1, 9))
    for efficiency in (RING, bad):
        assert seconds(OneByOne(40, 8), 8, efficiency) <= 1.03 * seconds(OneByOne(40, 8), 1)


def test_a_search_of_one_trial_at_a_time_gets_all_workers() -> None:
    assert seconds(OneByOne(20, 1), 8) <= 0.3 * seconds(OneByOne(20, 1), 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group": 0}, "`group` is 0, but must be at least 1"),
        ({"group": 9}, "`group` is 9, but there are only 8 workers"),
        ({"group": 2, "efficiency": (1.0, 0.0)}, r"`efficiency` is \(1.0, 0.0\), but must be numbers above 0"),
        ({"group": 2, "efficiency": (1.0, float("nan"))}, "`efficiency` is"),
        ({"costs": (1.0,)}, r"`costs` is \(1.0,\), but must be 16 numbers above 0"),
        ({"speeds": (1.0, 0.0)}, r"`speeds` is \(1.0, 0.0\), but must be 8 numbers above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        simulate(Scenario(**fields))


def test_beyond_the_last_efficiency_it_stays() -> None:
    assert efficiency_of(Scenario(), 5) == 1.0
    assert efficiency_of(Scenario(efficiency=(1.0, 0.7)), 5) == 0.7
