"""The cost model learns rank-one unit times from few measurements, and starts sensibly with none."""

from __future__ import annotations

import numpy as np
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.scheduling.costs import CostModel


def test_known_costs_are_used_as_they_are() -> None:
    model = CostModel([1.0, 2.0])
    model.add_trial(0, cost=6.0)
    model.add_worker(0, speed=2.0)
    assert model.seconds(0, 0, 1) == pytest.approx(6.0)


def test_a_trial_never_measured_is_taken_for_a_costly_one() -> None:
    model = CostModel([1.0])
    model.add_worker(0)
    for row in range(12):
        model.add_trial(row)
    for row in range(10):
        model.observe([row], 0, 0, float(row + 1))
    assert model.cost[11] > np.median(model.cost[:10])
    assert not model.measured(11)
    assert model.measured(3)


@settings(max_examples=drawn(30), deadline=None)
@given(st.integers(0, 1000))
def test_costs_and_speeds_are_learnt(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost, slow = rng.uniform(1, 20, 12), rng.uniform(0.3, 1.5, 4)
    model = CostModel([1.0] * 4)
    for row in range(12):
        model.add_trial(row)
    for row in range(4):
        model.add_worker(row)
    for _ in range(6):
        for trial in rng.permutation(12):
            for worker in rng.permutation(4):
                model.observe([trial], worker, worker, cost[trial] * slow[worker] * rng.uniform(0.98, 1.02))
    expected = np.outer(cost, slow)
    learnt = np.outer(model.cost[:12], model.slowness[:4])
    assert np.abs(learnt / expected - 1).max() < 0.15


def test_a_returning_worker_is_a_stranger() -> None:
    model = CostModel([1.0])
    model.add_worker(0, speed=4.0)
    model.add_worker(0)
    assert model.slowness[0] == 1.0
    assert not model.speed_is_sure(0, 1)


def test_an_estimate_stands_in_for_its_kin_until_one_is_measured() -> None:
    model = CostModel([1.0])
    model.add_worker(0)
    for row, kin in enumerate(["mlp", "mlp", "cnn"]):
        model.add_trial(row, kin=kin)
    assert model.is_unknown(0)
    model.estimate("mlp", 3.0)
    assert not model.is_unknown(1)
    assert model.is_unknown(2)
    assert model.cost[:2].tolist() == pytest.approx([3.0, 3.0])
    assert model.cost[2] >= 3.0, "what nothing is known of counts as one of the costly ones"
    assert model.is_new(0), "nothing was measured"
    model.observe([0], 0, 0, 4.0)
    assert model.cost[:2].tolist() == pytest.approx([4.0, 4.0])
    assert not model.is_estimated(1)


def test_estimates_are_corrected_by_how_far_others_were_off() -> None:
    model = CostModel([1.0])
    model.add_worker(0)
    for row, kin in enumerate(["mlp", "cnn"]):
        model.add_trial(row, kin=kin)
        model.estimate(kin, 2.0 + row)
    model.observe([0], 0, 0, 3.0)
    assert model.cost[1] == pytest.approx(4.5)
    model.add_trial(2, kin="cnn")
    assert model.cost[2] == pytest.approx(4.5)
