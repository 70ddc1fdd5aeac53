"""The table of trials. PURE."""

from __future__ import annotations

import math
from typing import Any

from cerebro_spark.dashboard.json_values import finite, first_line, metrics, plain
from cerebro_spark.dashboard.run_index import RunIndex


def trials(index: RunIndex, since: int = 0) -> dict[str, Any]:
    """The trials that changed after a version, in the order of their numbers."""
    rows = [trial_row(index, trial) for trial in changed_trials(index, since)]
    rows.sort(key=lambda row: int(row["number"]))
    return {"from": since, "trials": rows}


def changed_trials(index: RunIndex, since: int) -> list[str]:
    """The trials that changed after a version, the latest first."""
    changed = []
    for trial, version in reversed(index.changes.items()):
        if version <= since:
            break
        changed.append(trial)
    return changed


def trial_row(index: RunIndex, trial: str) -> dict[str, Any]:
    """One trial."""
    view = index.view
    shown, objective = view.trials[trial], view.objective
    best, last = shown.best, view.epochs.get((trial, shown.last))
    best_metrics = metrics(best.metrics) if best else {}
    error = view.errors.get(trial)
    return {
        "id": trial,
        "number": shown.number,
        "status": view.status(trial),
        "params": plain(shown.params),
        "until": shown.until,
        "epochs": shown.epochs,
        "last": shown.last,
        "units": shown.units,
        "best_epoch": best.epoch if best else None,
        "best_value": best_metrics.get(objective.metric) if objective else None,
        "metrics": metrics(last.metrics) if last else {},
        "best_metrics": best_metrics,
        "parent": shown.parent,
        "by_command": any(work.command for work in index.works.get(trial, [])[:1]),
        "error": first_line(error) if error is not None else None,
    }


def trial_page(index: RunIndex, trial: str) -> dict[str, Any]:
    """All about one trial. Raises KeyError if there is none of that name."""
    return {
        "trial": trial_row(index, trial),
        "error": index.view.errors.get(trial),
        "works": _works(index, trial),
        "ancestors": _ancestors(index, trial),
        "children": _children(index, trial),
        "curves": _curves(index, trial),
        "units": _units(index, trial),
        "failures": [error._asdict() for error in index.errors.get(trial, ())],
        "failed": index.failed_units.get(trial, 0),
    }


def _works(index: RunIndex, trial: str) -> list[dict[str, Any]]:
    return [
        {
            "at": finite(work.at),
            "until": work.until,
            "params": plain(work.params),
            "from": {"trial": work.start.trial, "epoch": work.start.epoch} if work.start else None,
            "counted": work.counted,
        }
        for work in index.works.get(trial, ())
    ]


def _ancestors(index: RunIndex, trial: str) -> list[dict[str, Any]]:
    """From whom it went on, from whom that one went on, and so on; a circle, as PBT makes them, ends it."""
    found: list[dict[str, Any]] = []
    seen, until = {trial}, math.inf
    while (step := _origin(index, trial, until)) is not None and step[0] not in seen:
        trial, epoch, until = step
        seen.add(trial)
        found.append({"trial": trial, "epoch": epoch, "at": finite(until)})
    return found


def _origin(index: RunIndex, trial: str, until: float) -> tuple[str, int | None, float] | None:
    """The trial it was cloned from, or whose weights it took over last before that time, the epoch, and when.

    What it takes over later is not in what others have from it. There is no epoch if it took no weights.
    """
    works = [work for work in index.works.get(trial, ()) if work.counted and work.at < until]
    for work in reversed(works):
        if work.start is not None and work.start.trial != trial:
            return work.start.trial, work.start.epoch, work.at
    asked = index.commands.get(works[0].command) if works else None
    if asked is None or asked.command.verb != "clone":
        return None
    return asked.command.trial, None, works[0].at


def _children(index: RunIndex, trial: str) -> list[dict[str, Any]]:
    """Those that were cloned from it, or took its weights over."""
    found = []
    for child, works in index.works.items():
        taken = [work for work in works if child != trial and work.start is not None and work.start.trial == trial]
        found += [{"trial": child, "epoch": w.start.epoch, "at": finite(w.at)} for w in taken if w.start is not None]
        if not taken and index.view.trials[child].parent == trial:
            found.append({"trial": child, "epoch": None, "at": finite(works[0].at)})
    return found


def _curves(index: RunIndex, trial: str) -> dict[str, Any]:
    epochs = range(1, index.view.trials[trial].last + 1)
    rows = [row for epoch in epochs if (row := index.view.epochs.get((trial, epoch))) is not None]
    names = sorted({name for row in rows for name in row.metrics})
    values = [metrics(row.metrics) for row in rows]
    return {
        "epoch": [row.epoch for row in rows],
        "at": [finite(row.at) for row in rows],
        "metrics": {name: [value.get(name) for value in values] for name in names},
        "checkpoint": [row.checkpoint.name if row.checkpoint else None for row in rows],
    }


def _units(index: RunIndex, trial: str) -> dict[str, Any]:
    table = index.units
    rows = table.of_trial(trial)
    workers = [table.workers.names[number] for number in rows["worker"]]
    hosts = index.view.timeline.hosts
    columns: dict[str, Any] = {
        "worker": workers,
        "host": [hosts.get(worker, "") for worker in workers],
        "partition": [table.partitions.names[number] for number in rows["partition"]],
        "kind": ["train" if train else "eval" for train in rows["train"].tolist()],
        "steps": [table.steps.names[number] for number in rows["steps"]],
    }
    columns.update({name: rows[name].tolist() for name in ("epoch", "width", "group", "rank", "attempt")})
    columns.update({name: [finite(x) for x in rows[name].tolist()] for name in ("start", "end", "seconds", "loss")})
    return columns
