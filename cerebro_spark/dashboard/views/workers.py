"""The cluster: workers, what each does now, and who holds which partition. PURE."""

from __future__ import annotations

from typing import Any

from cerebro_spark.dashboard.json_values import finite
from cerebro_spark.dashboard.records import WorkerTally
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.run_view import WorkerView


def workers(index: RunIndex) -> dict[str, Any]:
    """All workers that ever came, and the partitions."""
    view = index.view
    partitions = view.settings.partitions if view.settings else ()
    up = {name: tally for name, tally in index.tallies.items() if name in view.workers and view.workers[name].up}
    return {
        "now": finite(view.now),
        "workers": worker_rows(index),
        "utilisation": finite(view.timeline.utilisation()),
        "partitions": [
            {
                "id": partition.id,
                "split": partition.split,
                "rows": partition.rows,
                "bytes": partition.bytes,
                "holders": [name for name, tally in up.items() if partition.id in tally.loaded],
            }
            for partition in partitions
        ],
    }


def worker_rows(index: RunIndex) -> list[dict[str, Any]]:
    """A row for each worker."""
    absent = _absent_seconds(index)
    return [
        _row(
            worker, index.tallies.get(worker.id, WorkerTally(0.0)), index.view.timeline.end, absent.get(worker.id, 0.0)
        )
        for worker in index.view.workers.values()
    ]


def _row(worker: WorkerView, tally: WorkerTally, end: float, absent: float) -> dict[str, Any]:
    unit = worker.unit
    present = end - tally.joined - absent
    return {
        "id": worker.id,
        "host": worker.host,
        "up": worker.up,
        "activity": worker.activity,
        "unit": unit._asdict() if unit else None,
        "together": worker.together if worker.queue else 0,
        "queue": worker.orders,
        "loading": list(worker.loading),
        "loaded": list(tally.loaded),
        "since": finite(worker.since),
        "since_clock": finite(worker.since_clock),
        "joined": finite(tally.joined),
        "units": tally.units,
        "busy": finite(tally.busy),
        "utilisation": finite(min(1.0, tally.busy / present)) if present > 0 else None,
        "deaths": tally.deaths,
        "last_loss": tally.last_loss,
        "threads": tally.threads,
    }


def _absent_seconds(index: RunIndex) -> dict[str, float]:
    timeline = index.view.timeline
    absent: dict[str, float] = {}
    for absence in timeline.absences:
        until = timeline.end if absence.end is None else min(absence.end, timeline.end)
        absent[absence.worker] = absent.get(absence.worker, 0.0) + max(0.0, until - absence.start)
    return absent
