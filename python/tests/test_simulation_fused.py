"""Trials that go together, in virtual time: nothing is lost, what is gained arrives, and nothing gets slower."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.gantt import bars_of, draw
from cerebro_spark.simulation import Scenario, simulate
from cerebro_spark.timeline import UnitRow
from cerebro_spark.types import Unit

EIGHT = {8: 4.3}
# Measured with PyTorch on one CPU thread: an MLP of batch 32, against one unit at a time that is compiled too.
MEASURED = {2: 1.52, 4: 2.11, 8: 2.97, 16: 3.37, 32: 3.71}
NOTHING: dict[int, float] = {}
# 256 trials take a quarter of an hour in all: `make test-schedules`.
TRIALS = [16, 256] if os.environ.get("CEREBRO_SCHEDULES") == "all" else [16]

scenarios = st.builds(
    Scenario,
    trials=st.integers(1, 24),
    workers=st.integers(1, 4),
    partitions=st.none() | st.integers(4, 6),
    epochs=st.integers(1, 3),
    policy=st.sampled_from(["hopper", "longest-first", "random", "rearrangement"]),
    heterogeneous=st.booleans(),
    jitter=st.sampled_from([0.0, 0.3]),
    known_costs=st.booleans(),
    failure_rate=st.sampled_from([0.0, 0.05]),
    max_kills=st.just(99),  # no trial fails for workers that were lost by chance
    validation=st.integers(0, 2),
    queue_ahead=st.integers(0, 1),
    model_bytes=st.sampled_from([0, 10]),
    bandwidth=st.just(100.0),
    fuse=st.sampled_from([2, 5, 32]),
    gain=st.sampled_from([NOTHING, EIGHT, {2: 1.0}]),
)


@settings(deadline=None)
@given(scenarios, st.integers(0, 99))
def test_every_unit_is_done_once(scenario: Scenario, seed: int) -> None:
    outcome = simulate(scenario, seed, keep_units=True)
    units = [Unit(*row[:4]) for row in outcome.timeline.units]
    expected = scenario.trials * scenario.epochs * (scenario.columns + scenario.validation)
    assert len(units) == len(set(units)) == expected
    assert outcome.units_lost == 0
    assert 0 < outcome.utilisation <= 1 + 1e-9, "shares add up to what workers did"
    assert max(row.width for row in outcome.timeline.units) <= scenario.fuse


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(scenarios, st.integers(0, 9))
def test_the_same_seed_gives_the_same_run(scenario: Scenario, seed: int) -> None:
    one, two = simulate(scenario, seed, keep_units=True), simulate(scenario, seed, keep_units=True)
    assert one.timeline.units == two.timeline.units


@pytest.mark.parametrize("jitter", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
def test_what_eight_at_once_gain_arrives(jitter: float) -> None:
    alone = simulate(Scenario(trials=64, workers=8, jitter=jitter))
    together = simulate(Scenario(trials=64, workers=8, jitter=jitter, fuse=32, gain=EIGHT))
    assert alone.makespan >= 4.1 * together.makespan


@pytest.mark.parametrize(("ahead", "least"), [(0, 4.2), (1, 3.95)], ids=["", "told beforehand"])
def test_what_eight_at_once_gain_arrives_with_evaluations_too(ahead: int, least: float) -> None:
    setting = {"trials": 64, "workers": 8, "epochs": 3, "validation": 8, "jitter": 0.05, "queue_ahead": ahead}
    alone = simulate(Scenario(**setting))  # type: ignore[arg-type]
    together = simulate(Scenario(**setting, fuse=32, gain=EIGHT))  # type: ignore[arg-type]
    assert alone.makespan >= least * together.makespan


def test_evaluations_that_cannot_be_stacked_take_no_longer() -> None:
    setting = {"trials": 16, "workers": 8, "epochs": 3, "validation": 8, "jitter": 0.05}
    alone = simulate(Scenario(**setting))  # type: ignore[arg-type]
    together = simulate(Scenario(**setting, fuse=32))  # type: ignore[arg-type]
    assert together.makespan <= 1.02 * alone.makespan


@pytest.mark.slow
@pytest.mark.parametrize("gain", [EIGHT, MEASURED, NOTHING], ids=["4.3 x at 8", "measured", "cannot be stacked"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "learnt"])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "alike"])
@pytest.mark.parametrize("workers", [8, 16])
@pytest.mark.parametrize("trials", TRIALS)
def test_no_setting_of_figure_6_becomes_slower(
    trials: int, workers: int, mixed: bool, known: bool, gain: dict[int, float]
) -> None:
    setting = figure_6(trials, workers, mixed, known)
    for seed in range(2):
        together = simulate(replace(setting, fuse=32, gain=gain), seed)
        assert together.makespan <= 1.02 * makespan_alone(trials, workers, mixed, known, seed)


def figure_6(trials: int, workers: int, mixed: bool, known: bool) -> Scenario:
    return Scenario(trials=trials, workers=workers, heterogeneous=mixed, known_costs=known, jitter=0.05)


@cache
def makespan_alone(trials: int, workers: int, mixed: bool, known: bool, seed: int) -> float:
    """How long it takes where nobody trains together: the same for whatever would be gained."""
    return simulate(figure_6(trials, workers, mixed, known), seed).makespan


def test_where_nothing_is_gained_trials_soon_train_by_themselves() -> None:
    outcome = simulate(Scenario(trials=32, workers=4, known_costs=True, fuse=8, gain={8: 1.0}), keep_units=True)
    assert {row.width for row in outcome.timeline.units if row.epoch > 2} == {1}


def test_those_that_ran_together_are_one_bar() -> None:
    outcome = simulate(Scenario(trials=8, workers=2, epochs=1, fuse=4, gain={4: 2.0}), keep_units=True)
    rows = [row for row in outcome.timeline.units if row.worker == "w0"]
    bars = bars_of(rows)
    assert len(rows) == 8
    assert [(bar.width, bar.label) for bar in bars] == [(4, "4 trials"), (4, "4 trials")]
    assert sorted(bars[0].trials + bars[1].trials) == sorted(row.trial for row in rows)
    assert [bar.end - bar.start for bar in bars] == pytest.approx([2.0, 2.0])
    assert sum(row.seconds for row in rows) == pytest.approx(4.0)
    assert len({row.bundle for row in rows}) == 2


def test_those_that_were_evaluated_together_are_one_bar() -> None:
    scenario = Scenario(trials=4, workers=1, epochs=1, validation=1, fuse=4, gain={4: 2.0})
    train, evaluation = bars_of(simulate(scenario, keep_units=True).timeline.units)
    assert [(bar.kind, bar.label) for bar in (train, evaluation)] == [("train", "4 trials"), ("eval", "4 trials")]
    assert evaluation.end - evaluation.start == pytest.approx(4 / 3 / 2.0)


def test_those_that_ran_one_after_another_are_bars_of_their_own() -> None:
    outcome = simulate(Scenario(trials=4, workers=1, epochs=1, fuse=4), keep_units=True)
    bars = bars_of(outcome.timeline.units)
    assert [(bar.start, bar.end, bar.width) for bar in bars] == [(float(n), n + 1.0, 1) for n in range(4)]


def test_what_was_computed_in_parts_lasts_as_long_as_all_of_them_and_no_two_bars_overlap() -> None:
    """A worker reports all units of an order at its end."""
    rows = [UnitRow(f"t{n}", 1, "p0", "train", "w0", "", 8.0, 10.0, 1.0, 0.0, n, 2, 1) for n in range(1, 5)]
    rows += [UnitRow(f"t{n}", 1, "p0", "train", "w0", "", 19.0, 20.0, 1.0, 0.0, n, 1, 5) for n in range(5, 8)]
    bars = bars_of(rows)
    assert [(bar.start, bar.end, bar.width) for bar in bars] == [(6, 10, 4), (17, 18, 1), (18, 19, 1), (19, 20, 1)]
    assert bars[0].trials == ("t1", "t2", "t3", "t4")


def test_a_chart_of_bundles_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = simulate(Scenario(trials=8, workers=2, epochs=1, fuse=4, gain={4: 2.0}), keep_units=True)
    draw(outcome.timeline, tmp_path / "chart.svg", "bundles")
    assert (tmp_path / "chart.svg").read_text().count("<!-- 4 trials -->") == 4


@pytest.mark.parametrize("gain", [{0: 2.0}, {2: 0.0}, {2: float("nan")}])
def test_gains_that_make_no_sense_are_refused(gain: dict[int, float]) -> None:
    with pytest.raises(ConfigurationError, match="`gain` has"):
        SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: 1.0, gain=gain))
    with pytest.raises(ConfigurationError, match="`fuse` is 0"):
        simulate(Scenario(fuse=0))
