"""An exact reference: the open-shop problem given to a constraint solver under a time limit.

It needs OR-Tools (the `dev` extra) and is for benchmarks and tests: to know the optimum of small instances, and what a
solver makes of large ones in a given time. It must never be used in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_spark.dispatch.base import Changes, Policy, PolicyView, UnitChoice
from cerebro_spark.dispatch.rearrangement import follow_plan
from cerebro_spark.errors import MissingDependency
from cerebro_spark.scheduling.board import Bools, Floats, Ints

# The solver counts in whole numbers: the longest unit is this many ticks.
_TICKS = 10_000


@dataclass(frozen=True, slots=True)
class Solution:
    """A schedule: start times by trial, epoch and worker, and how good it is known to be."""

    starts: Floats
    makespan: float
    bound: float
    optimal: bool


def solve(times: Floats, epochs: int = 1, seconds: float = 60.0, threads: int = 1) -> Solution:
    """The shortest schedule found for units that take `times[trial, worker]` in every epoch.

    >>> solve(np.array([[1.0, 2.0], [2.0, 1.0]])).makespan
    3.0
    """
    cp_model = _solver()
    scale = _TICKS / float(times.max())
    ticks = np.maximum(np.rint(times * scale).astype(int), 1)
    model, starts = _model(cp_model, ticks, epochs)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    solver.parameters.random_seed = 0
    # It would catch Ctrl-C for itself, and afterwards Python would not hear it any more: the process would just end.
    solver.parameters.catch_sigint_signal = False
    status = solver.Solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        nothing = np.full((times.shape[0], epochs, times.shape[1]), np.nan)
        return Solution(nothing, float("inf"), solver.BestObjectiveBound() / scale, optimal=False)
    values = np.vectorize(solver.Value)(starts) / scale
    proven = status == cp_model.OPTIMAL
    return Solution(values, solver.ObjectiveValue() / scale, solver.BestObjectiveBound() / scale, proven)


def make_plan_policy(solution: Solution) -> Policy:
    """A policy that keeps to the order of a solved epoch, in every epoch, whatever the units really take."""
    order = np.argsort(np.argsort(solution.starts[:, 0, :], axis=0), axis=0)

    def policy(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
        if not view.board.active.any():
            return []
        places: Ints = np.zeros(view.board.todo.shape, dtype=np.int64)
        places[: order.shape[0]] = order
        return follow_plan(view, places, eligible)

    return policy


def _model(cp_model: Any, ticks: Any, epochs: int) -> tuple[Any, Any]:
    trials, workers = ticks.shape
    model = cp_model.CpModel()
    horizon = int(ticks.sum()) * epochs
    starts = np.empty((trials, epochs, workers), dtype=object)
    intervals = np.empty_like(starts)
    end = model.NewIntVar(0, horizon, "end")
    for trial, epoch, worker in np.ndindex(starts.shape):
        length = int(ticks[trial, worker])
        starts[trial, epoch, worker] = model.NewIntVar(0, horizon, "")
        intervals[trial, epoch, worker] = model.NewFixedSizeIntervalVar(starts[trial, epoch, worker], length, "")
        model.Add(starts[trial, epoch, worker] + length <= end)
    for worker in range(workers):
        model.AddNoOverlap(list(intervals[:, :, worker].flat))
    for trial in range(trials):
        for epoch in range(epochs):
            model.AddNoOverlap(list(intervals[trial, epoch]))
            if epoch:
                _after(model, starts, ticks, trial, epoch)
    model.Minimize(end)
    return model, starts


def _after(model: Any, starts: Any, ticks: Any, trial: int, epoch: int) -> None:
    """An epoch starts when the one before it has ended."""
    boundary = model.NewIntVar(0, int(ticks.sum()) * (epoch + 1), "")
    for worker in range(ticks.shape[1]):
        model.Add(starts[trial, epoch - 1, worker] + int(ticks[trial, worker]) <= boundary)
        model.Add(starts[trial, epoch, worker] >= boundary)


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingDependency("the exact reference needs OR-Tools: pip install 'cerebro-spark[dev]'") from error
    return cp_model
