"""Learning curves in columns: one metric of all trials, or the newest points of all metrics. PURE."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from cerebro_spark.dashboard.json_values import finite, metrics
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.run_view import EpochRow


def curves(index: RunIndex, metric: str | None = None, since: int = 0) -> dict[str, Any]:
    """The points of one metric that came after a version, in the order of their reports."""
    chosen = metric or default_metric(index)
    numbers: dict[str, int] = {}
    points = points_since(index, since)
    return {
        "from": since,
        "metric": chosen,
        "metrics": sorted(index.metrics),
        "index": [numbers.setdefault(point.trial, len(numbers)) for point in points],
        "trial": list(numbers),
        "epoch": [point.epoch for point in points],
        "at": [finite(point.at) for point in points],
        "value": [finite(point.metrics.get(chosen)) for point in points],
    }


def newest_points(index: RunIndex, since: int) -> dict[str, Any]:
    """The points of all metrics that came after a version."""
    points = points_since(index, since)
    values = [metrics(point.metrics) for point in points]
    names = sorted({name for value in values for name in value})
    return {
        "trial": [point.trial for point in points],
        "epoch": [point.epoch for point in points],
        "at": [finite(point.at) for point in points],
        "metrics": {name: [value.get(name) for value in values] for name in names},
    }


def points_since(index: RunIndex, since: int) -> list[EpochRow]:
    """The epochs that were reported after a version."""
    return index.points[bisect_right(index.point_versions, since) :]


def default_metric(index: RunIndex) -> str:
    """The metric to show first: the one that matters, or the first by name; "" if there is none."""
    objective = index.view.objective
    return objective.metric if objective else min(index.metrics, default="")
