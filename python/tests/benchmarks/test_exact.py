"""The solver's optimum is the measure of small instances; the default policy comes close to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.exact import make_plan_policy, solve
from cerebro_spark.dispatch import POLICIES
from cerebro_spark.simulation import Scenario, draw_workload, simulate

ROOT = Path(__file__).resolve().parents[3]


def overlaps(starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> bool:
    order = np.argsort(starts)
    return bool((starts[order][1:] < starts[order][:-1] + lengths[order][:-1] - 5e-3).any())


@pytest.mark.parametrize("seed", range(3))
def test_solutions_are_legal_and_reach_their_bound(seed: int) -> None:
    times = np.random.default_rng(seed).uniform(1, 5, (4, 3))
    solution = solve(times, epochs=2, seconds=300)
    assert solution.optimal
    lower = max(times.sum(axis=0).max(), times.sum(axis=1).max()) * 2
    assert solution.makespan >= lower * (1 - 1e-3)
    for worker in range(3):
        assert not overlaps(solution.starts[:, :, worker].ravel(), np.repeat(times[:, worker], 2))
    for trial in range(4):
        first, second = solution.starts[trial]
        assert second.min() >= (first + times[trial]).max() - 5e-3
        assert not overlaps(first, times[trial])


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "workers"), [(4, 3), (3, 3), (6, 3)])
def test_the_default_policy_is_within_a_tenth_of_the_optimum(trials: int, workers: int) -> None:
    ratios = []
    for seed in range(3):
        scenario = Scenario(trials=trials, workers=workers, epochs=2, heterogeneous=True, known_costs=True)
        costs, speeds = draw_workload(scenario, seed)
        best = solve(np.outer(costs, 1 / np.asarray(speeds)), epochs=2, seconds=10)
        ratios.append(simulate(scenario, seed).makespan / best.makespan)
    assert np.mean(ratios) < 1.1


def test_a_solved_order_can_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(trials=4, workers=3, epochs=1, heterogeneous=True, known_costs=True, policy="exact")
    costs, speeds = draw_workload(scenario, 0)
    best = solve(np.outer(costs, 1 / np.asarray(speeds)), seconds=10)
    monkeypatch.setitem(POLICIES, "exact", make_plan_policy(best))
    assert simulate(scenario).makespan == pytest.approx(best.makespan, rel=1e-3)


def test_ctrl_c_is_pythons_own_after_a_solution() -> None:
    """The solver's own handler would leave none behind: whoever pressed Ctrl-C later would end without a word."""
    script = (
        "import signal, numpy as np; from benchmarks.exact import solve;"
        " signal.signal(signal.SIGINT, signal.default_int_handler); solve(np.ones((2, 2)));"
        " signal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "KeyboardInterrupt" in done.stderr
