"""Forecasts of searches that decide by what epochs measure: an interval that covers the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cut_runs import KnownRun, settings_of, simulated_run

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.commands import Command
from cerebro_spark.events import Event, RunUnit, Settings, UnitFinished
from cerebro_spark.forecast.curves import Curves, DrawnCurves
from cerebro_spark.forecast.remaining import forecast
from cerebro_spark.search import Search
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.fixed import GridAlgorithm, RandomAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.types import Metrics, Objective

LOSS = Objective("loss", "min")
SPACE = {"cost": hp.uniform(0.5, 2.0)}
SETTINGS: Settings = replace(settings_of(1, 0, 2, queue_ahead=1, replicas=2), objective=LOSS)


class Learning(SimulatedBackend):
    """Trials get better, each from where it begins, with some noise."""

    def _finish(self, order: RunUnit, state: Any) -> list[Event]:
        (done,) = super()._finish(order, state)
        assert isinstance(done, UnitFinished)
        begin = random.Random(f"{self._seed}/{order.unit.trial}").random()
        noise = random.Random(f"{self._seed}/{order.unit}").gauss(0.0, 0.1)
        loss = begin + 1 / order.unit.epoch + noise
        return [replace(done, metrics=Metrics({"loss": loss}, {"loss": 1.0}))]


def learnt(search: Callable[[], Search], seed: int = 0, **world: Any) -> KnownRun:
    return simulated_run(search, SETTINGS, [SimulatedWorker("w0"), SimulatedWorker("w1")], Learning, seed, **world)


def asha(seed: int) -> Callable[[], Search]:
    return lambda: ASHAAlgorithm(SPACE, LOSS, num_trials=10, max_epochs=9, seed=seed, max_concurrent=4)


def hyperband(seed: int) -> Callable[[], Search]:
    return lambda: HyperbandAlgorithm(SPACE, LOSS, max_epochs=4, eta=2, seed=seed)


@pytest.mark.parametrize("search", [asha, hyperband])
def test_the_interval_covers_the_end_of_searches_that_halve(search: Callable[[int], Callable[[], Search]]) -> None:
    covered = 0
    for seed in range(6):
        run = learnt(search(seed), seed)
        found = forecast(run.until_units(0.5), run.search, simulations=8)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= run.end <= found.high
    assert covered >= 4, "nine in ten are meant, and there are few"


def test_a_grid_that_is_asked_bit_by_bit_is_exact_all_the_same() -> None:
    """Nothing says that a search learns nothing from reports: it shows."""
    space = {"cost": 1.25, "x": hp.choice([0.1, 0.2, 0.3, 0.4, 0.5])}
    run = learnt(lambda: GridAlgorithm(space, LOSS, epochs=2, max_concurrent=2))
    found = forecast(run.until_units(0.4), run.search)
    assert found.exact
    assert found.done_at == pytest.approx(run.end)


def test_a_time_budget_is_kept() -> None:
    def search() -> Search:
        return Stopping(GridAlgorithm({"cost": hp.choice([1.0, 1.5])}, LOSS, epochs=20), LOSS, time_budget=12.0)

    run = learnt(search)
    found = forecast(run.until_units(0.5), run.search)
    assert found.exact
    assert found.done_at == pytest.approx(run.end)
    assert run.end < 16.0


def test_patience_depends_on_what_is_measured() -> None:
    def search() -> Search:
        return Stopping(RandomAlgorithm(SPACE, LOSS, epochs=12, num_trials=6, seed=3), LOSS, patience=2)

    run = learnt(search, jitter=0.1)
    found = forecast(run.until_units(0.4), run.search, simulations=6)
    assert not found.exact
    assert found.low is not None
    assert found.high is not None
    assert found.made_at < found.low < found.high


def test_a_population_takes_as_long_whoever_wins() -> None:
    space = {"cost": hp.choice([1.0]), "lr": hp.uniform(0.0, 1.0)}
    run = learnt(lambda: PBTAlgorithm(space, LOSS, population=4, epochs=4))
    found = forecast(run.until_units(0.5), run.search, simulations=2)
    assert found.done_at == pytest.approx(run.end)


def test_what_if_compares_the_same_futures() -> None:
    run = learnt(lambda: RandomAlgorithm(SPACE, LOSS, epochs=4, num_trials=4, seed=3), jitter=0.2)
    asked = [Command("stop_trial", trial=f"t{number}") for number in range(4)]
    found = forecast(run.until_units(0.4), run.search, questions=asked, simulations=4)
    ends = [answer.done_at for answer in found.what_if.values()]
    assert len(ends) == 4
    assert min(end or 0.0 for end in ends) < (found.done_at or 0.0)


def test_drawn_curves_do_not_depend_on_the_order_of_questions() -> None:
    reported = {"t0": {1: {"loss": 3.0}, 2: {"loss": 2.0}}, "t1": {1: {"loss": 2.5}}}
    one, other = (DrawnCurves(Curves(reported, LOSS), seed=4) for _ in range(2))
    forwards = [one.value(trial, epoch) for trial in ("t0", "t1", "t2") for epoch in (1, 2, 3, 4)]
    backwards = [other.value(trial, epoch) for trial in ("t2", "t1", "t0") for epoch in (4, 3, 2, 1)]
    assert forwards == [*reversed(backwards)]
    assert forwards[:2] == [3.0, 2.0]
    assert DrawnCurves(Curves(reported, LOSS), seed=5).value("t2", 1) != one.value("t2", 1)


def test_trials_that_diverge_do_not_make_chance_of_everything() -> None:
    good = {f"t{i}": {1: {"loss": 1.0 + i / 10}, 2: {"loss": 0.9 + i / 10}} for i in range(8)}
    curves = Curves({**good, "bad": {1: {"loss": 1e9}, 2: {"loss": float("nan")}}}, LOSS)
    ranks = [sorted(good, key=lambda trial: DrawnCurves(curves, seed).value(trial, 3))[:4] for seed in range(9)]
    assert sum("t0" in best for best in ranks) >= 7


def test_without_any_report_and_without_an_objective_values_are_drawn_as_well() -> None:
    for curves in (Curves({}, LOSS), Curves({}, None), Curves({"t0": {1: {"loss": float("inf")}}}, LOSS)):
        assert len({DrawnCurves(curves, seed).value("t0", 3) for seed in range(4)}) == 4
