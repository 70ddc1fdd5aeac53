"""A run beside others: how fast its best value came about. PURE."""

from __future__ import annotations

from typing import Any

from cerebro_spark.dashboard.json_values import finite
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.views.runs import Condition, run_row


def compared(index: RunIndex, condition: Condition) -> dict[str, Any]:
    """One run of several that are compared."""
    steps = index.improvements
    return {
        **run_row(index, condition),
        "progress": {
            "at": [finite(step.at) for step in steps],
            "epochs": [step.epochs for step in steps],
            "best": [finite(step.value) for step in steps],
        },
        "best_curve": _best_curve(index),
        "params": sorted(index.params),
    }


def _best_curve(index: RunIndex) -> dict[str, Any]:
    best, objective = index.view.best(), index.view.objective
    if best is None or objective is None:
        return {"epoch": [], "value": []}
    epochs = range(1, index.view.trials[best.trial].last + 1)
    rows = [row for epoch in epochs if (row := index.view.epochs.get((best.trial, epoch))) is not None]
    return {
        "epoch": [row.epoch for row in rows],
        "value": [finite(row.metrics.get(objective.metric)) for row in rows],
    }
