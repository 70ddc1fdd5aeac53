"""TPE: it beats random search, learns one by one, and translates every kind of hyperparameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tune_searches import ACCURACY, LOSS, SPACE, Player

from cerebro_spark.search import Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithm import Algorithm
from cerebro_spark.tune.random import RandomAlgorithm
from cerebro_spark.tune.space import Space
from cerebro_spark.tune.tpe import TPEAlgorithm, suggestion
from cerebro_spark.types import Report, Work

BRANIN = {"x": hp.uniform(-5, 10), "y": hp.uniform(0, 15)}


def branin(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    x, y = params["x"], params["y"]
    bowl = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(bowl**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def best_of(search: Algorithm) -> float:
    return min(report.metrics["val_loss"] for report in Player(search, value=branin).play().reports)


@pytest.mark.slow
def test_it_is_better_than_random_on_branin_over_20_seeds() -> None:
    options: dict[str, Any] = {"epochs": 1, "num_trials": 60}
    tpe = [best_of(TPEAlgorithm(BRANIN, LOSS, seed=seed, **options)) for seed in range(20)]
    chance = [best_of(RandomAlgorithm(BRANIN, LOSS, seed=seed, **options)) for seed in range(20)]
    assert np.median(tpe) < np.median(chance)
    assert np.mean(tpe) < np.mean(chance)
    assert sum(a < b for a, b in zip(tpe, chance, strict=True)) >= 13


def test_it_learns_from_the_trial_before() -> None:
    """Once the start is over, another result of the last trial changes the next proposal."""

    def next_after(loss: float) -> Any:
        search = TPEAlgorithm(BRANIN, LOSS, epochs=1, num_trials=20, max_concurrent=1, startup=3)
        for number in range(8):
            work = search.ask()
            assert isinstance(work, Work)
            assert search.ask() == Wait()
            value = loss if number == 7 else branin(work.trial, work.params, 1)
            search.tell(Report(work.trial, 1, {"val_loss": value}))
        return search.ask()

    assert next_after(-1.0) == next_after(-1.0)
    assert next_after(-1.0) != next_after(1e6)


def test_a_trial_counts_by_its_best_epoch_and_a_failed_one_has_no_loss() -> None:
    search = TPEAlgorithm(BRANIN, ACCURACY, epochs=3, num_trials=4)
    for _ in range(4):
        search.ask()
    for epoch, value in enumerate((0.5, 0.9, 0.7), start=1):
        search.tell(Report("t0", epoch, {"val_accuracy": value}))
    search.tell(Report("t1", 1, {"val_accuracy": 0.99}))
    search.tell(Report("t1", 2, error="out of memory"))
    assert search.state()["losses"] == [[0, -0.9], [1, None]]


def test_its_proposals_stay_in_the_space() -> None:
    space = Space(
        SPACE
        | {"one": hp.choice([3]), "ql": hp.qloguniform(8, 512, 8), "n": hp.normal(0, 1), "q": hp.quniform(1, 9, 2)}
    )
    points = [space.sample(np.random.default_rng(number)) for number in range(25)]
    losses: dict[int, float | None] = {number: float(point["lr"]) for number, point in enumerate(points)}
    losses[3] = None
    for seed in range(30):
        values = suggestion(space, points, losses, seed)
        point = space.fitted(values)
        assert set(point) == set(values)
        for path in ("lr", "ql", "q", "depth"):
            assert point[path] == pytest.approx(values[path]), "nothing had to be moved back into the space"
        space.params(point)
    assert suggestion(space, points, losses, 1) == suggestion(space, points, losses, 1)


def test_constants_alone_are_drawn_without_it() -> None:
    search = TPEAlgorithm({"lr": 0.1}, LOSS, epochs=1, num_trials=3, max_concurrent=1, startup=1)
    assert len(Player(search).play().works) == 3
