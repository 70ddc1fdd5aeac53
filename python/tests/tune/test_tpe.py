"""TPE: it beats random search, learns one by one, and translates every kind of hyperparameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tune_searches import ACCURACY, LOSS, SPACE, Player

from cerebro_spark.search import Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.fixed import RandomAlgorithm
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm, suggestion
from cerebro_spark.tune.spaces.space import Space
from cerebro_spark.types import Report, Work

BRANIN = {"x": hp.uniform(-5, 10), "y": hp.uniform(0, 15)}
HARTMANN = {f"x{i}": hp.uniform(0, 1) for i in range(6)}
WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
SCALES = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
CENTRES = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def branin(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    x, y = params["x"], params["y"]
    bowl = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(bowl**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def hartmann(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    """Six dimensions, one deep valley (-3.32) among six local ones."""
    x = np.array([params[name] for name in HARTMANN])
    return float(-WEIGHTS @ np.exp(-(SCALES * (x - CENTRES) ** 2).sum(axis=1)))


def best_of(search: Algorithm, function: Callable[[str, Mapping[str, Any], int], float]) -> float:
    return min(report.metrics["val_loss"] for report in Player(search, value=function).play().reports)


@pytest.mark.slow
@pytest.mark.rare
def test_it_is_better_than_random_on_hartmann_over_20_seeds() -> None:
    """Six dimensions: on Branin's two, 60 trials are too few to tell hyperopt's TPE, ours or its own, from chance."""
    from scipy import stats

    options: dict[str, Any] = {"epochs": 1, "num_trials": 80}
    tpe = [best_of(TPEAlgorithm(HARTMANN, LOSS, seed=seed, **options), hartmann) for seed in range(20)]
    chance = [best_of(RandomAlgorithm(HARTMANN, LOSS, seed=seed, **options), hartmann) for seed in range(20)]
    assert np.median(tpe) < np.median(chance)
    assert stats.wilcoxon(tpe, chance, alternative="less").pvalue < 0.01


def test_the_valley_is_where_it_is_known_to_be() -> None:
    bottom = dict(zip(HARTMANN, (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573), strict=True))
    assert hartmann("", bottom, 1) == pytest.approx(-3.32237, abs=1e-5)
    assert branin("", {"x": math.pi, "y": 2.275}, 1) == pytest.approx(0.397887, abs=1e-6)


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
    assert search._losses == {0: -0.9, 1: None}


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
