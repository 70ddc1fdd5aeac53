"""A window of the Gantt chart: every unit, or, where these are too many, how busy workers were step by step. PURE."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.dashboard.json_values import finite
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.unit_table import Rows
from cerebro_spark.run_view import WorkerView

MOST_UNITS = 4_000
"""How many units a chart shows one by one."""
_MOST_FAILURES = 500
Floats = NDArray[np.float64]


def gantt(
    index: RunIndex, start: float | None = None, end: float | None = None, bins: int = 400, since: int = 0
) -> dict[str, Any]:
    """The chart between two times, in seconds of the run; by default from its start to now."""
    begin = 0.0 if start is None else start
    until = max(index.view.now if end is None else end, begin)
    found = index.units.between(begin, until)
    detailed = len(found) <= MOST_UNITS
    if detailed and since:
        found = found[found >= index.units.since(since)]
    body = _units(index, found) if detailed else _bins(index, found, begin, until, bins)
    return {"from": since if detailed else 0, **_frame(index, begin, until), **body}


def running(index: RunIndex, by_number: bool = True) -> list[dict[str, Any]]:
    """What runs now; workers by their number in the chart, or by name."""
    lanes = _lanes(index)
    rows = []
    for worker in index.view.workers.values():
        if worker.up and worker.queue:
            first = worker.queue[0].order
            rows += [
                {**_unit(worker, place), "worker": lanes[worker.id] if by_number else worker.id}
                for place, assigned in enumerate(worker.queue)
                if assigned.order == first
            ]
    return rows


def unit_columns(index: RunIndex, found: NDArray[np.intp]) -> dict[str, Any]:
    """Units in columns, with names."""
    table, rows = index.units, index.units.rows[found]
    return {
        "worker": [table.workers.names[number] for number in rows["worker"]],
        "trial": [table.trials.names[number] for number in rows["trial"]],
        "partition": [table.partitions.names[number] for number in rows["partition"]],
        **_numbers(rows),
        "number": found.tolist(),
    }


def _unit(worker: WorkerView, place: int) -> dict[str, Any]:
    assigned = worker.queue[place]
    unit, workers = assigned.unit, assigned.workers or (worker.id,)
    rank = workers.index(worker.id)
    return {
        "trial": unit.trial,
        "epoch": unit.epoch,
        "partition": unit.partitions[rank],
        "kind": unit.kind,
        "start": finite(worker.since),
        "width": worker.together,
        "group": len(workers),
        "rank": rank,
    }


def _lanes(index: RunIndex) -> dict[str, int]:
    return {worker: lane for lane, worker in enumerate(index.view.timeline.joined)}


def _frame(index: RunIndex, start: float, end: float) -> dict[str, Any]:
    timeline, lanes = index.view.timeline, _lanes(index)
    failures = [one for one in index.failures if start <= one.at <= end and one.worker in lanes]
    return {
        "from_at": finite(start),
        "to_at": finite(end),
        "now": finite(index.view.now),
        "workers": [
            {"id": worker, "host": timeline.hosts.get(worker, ""), "joined": finite(at)}
            for worker, at in timeline.joined.items()
        ],
        "absences": [
            {"worker": lanes[absence.worker], "start": finite(absence.start), "end": finite(absence.end)}
            for absence in timeline.absences
            if absence.worker in lanes
        ],
        "failures": [
            {"worker": lanes[one.worker], "at": finite(one.at), "trial": one.trial, "kind": one.kind, "text": one.text}
            for one in failures[-_MOST_FAILURES:]
        ],
        "running": running(index),
    }


def _units(index: RunIndex, found: NDArray[np.intp]) -> dict[str, Any]:
    table, rows = index.units, index.units.rows[found]
    trials, of_trial = np.unique(rows["trial"], return_inverse=True)
    lanes = _lanes(index)
    lane_of = np.array([lanes.get(name, -1) for name in table.workers.names], int)
    return {
        "detail": "units",
        "trial": [table.trials.names[number] for number in trials],
        "partition": list(table.partitions.names),
        "units": {
            "worker": lane_of[rows["worker"]].tolist() if len(rows) else [],
            "index": of_trial.tolist(),
            "part": rows["partition"].tolist(),
            **_numbers(rows),
            "number": found.tolist(),
        },
    }


def _numbers(rows: Rows) -> dict[str, Any]:
    return {
        "epoch": rows["epoch"].tolist(),
        "start": [finite(value) for value in rows["start"].tolist()],
        "end": [finite(value) for value in rows["end"].tolist()],
        "train": rows["train"].tolist(),
        "width": rows["width"].tolist(),
        "group": rows["group"].tolist(),
        "rank": rows["rank"].tolist(),
    }


def _bins(index: RunIndex, found: NDArray[np.intp], start: float, end: float, bins: int) -> dict[str, Any]:
    table, rows = index.units, index.units.rows[found]
    edges = np.linspace(0.0, end - start, bins + 1)
    trials, of_trial = np.unique(rows["trial"], return_inverse=True)
    busy, ended, middle = [], [], []
    for worker in index.view.timeline.joined:
        mine = rows["worker"] == table.workers.find(worker)
        begins, ends = rows["start"][mine] - start, rows["end"][mine] - start
        busy.append(busy_share(begins, ends, rows["width"][mine], edges).round(4).tolist())
        ended.append(np.histogram(ends, edges)[0].tolist())
        middle.append(_in_the_middle(begins, ends, of_trial[mine], edges).tolist())
    return {
        "detail": "bins",
        "step": (end - start) / bins,
        "trial": [table.trials.names[number] for number in trials],
        "busy": busy,
        "ended": ended,
        "main": middle,
    }


def busy_share(begins: Floats, ends: Floats, widths: NDArray[np.int32], edges: Floats) -> Floats:
    """For each step between two edges, which share of it units take. Of units that ran together each takes its part.

    >>> busy_share(np.array([0.0, 1.0]), np.array([1.0, 1.5]), np.array([1, 1]), np.array([0.0, 1.0, 2.0]))
    array([1. , 0.5])
    """
    weights = 1.0 / widths
    until = _time_before(begins, weights, edges) - _time_before(ends, weights, edges)
    share: Floats = np.clip(np.diff(until) / np.diff(edges), 0.0, 1.0)
    return share


def _time_before(moments: Floats, weights: Floats, edges: Floats) -> Floats:
    """For each edge, the weighted sum of the times from moments before it until it."""
    order = np.argsort(moments, kind="stable")
    counts = np.concatenate([[0.0], np.cumsum(weights[order])])
    sums = np.concatenate([[0.0], np.cumsum((weights * moments)[order])])
    place = np.searchsorted(moments[order], edges, "left")
    result: Floats = edges * counts[place] - sums[place]
    return result


def _in_the_middle(begins: Floats, ends: Floats, trials: NDArray[np.intp], edges: Floats) -> NDArray[np.intp]:
    """For each step, the trial that runs in its middle, or -1."""
    centres = (edges[1:] + edges[:-1]) / 2
    if not len(begins):
        return np.full(len(centres), -1)
    order = np.argsort(begins, kind="stable")
    place = np.searchsorted(begins[order], centres, "right") - 1
    found = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (ends[found] > centres), trials[found], -1)
