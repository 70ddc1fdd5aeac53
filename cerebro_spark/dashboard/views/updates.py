"""What changed in a run between two versions, for everybody who watches it. PURE."""

from __future__ import annotations

from typing import Any

import numpy as np

from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.views.curves import newest_points, points_since
from cerebro_spark.dashboard.views.gantt import running, unit_columns
from cerebro_spark.dashboard.views.notes import commands, events
from cerebro_spark.dashboard.views.runs import Condition, run_page
from cerebro_spark.dashboard.views.trials import changed_trials, trial_row
from cerebro_spark.dashboard.views.workers import worker_rows

MOST_TRIALS = 500
MOST_UNITS = 2_000
MOST_POINTS = 5_000
_MOST_EVENTS = 50


def update(index: RunIndex, condition: Condition, since: int) -> dict[str, Any]:
    """All that changed after a version. What would be too long is null: whoever needs it asks for it."""
    changed = changed_trials(index, since)
    units = np.arange(index.units.since(since), len(index.units))
    few_points = len(points_since(index, since)) <= MOST_POINTS
    return {
        "generation": index.generation,
        "from": since,
        "version": index.version,
        "run": run_page(index, condition),
        "trials": [trial_row(index, trial) for trial in changed] if len(changed) <= MOST_TRIALS else None,
        "points": newest_points(index, since) if few_points else None,
        "units": unit_columns(index, units) if len(units) <= MOST_UNITS else None,
        "running": running(index, by_number=False),
        "workers": worker_rows(index),
        "events": events(index, since, _MOST_EVENTS)["events"],
        "commands": commands(row for row in index.commands.values() if row.version >= since),
    }
