"""What each route of the dashboard's JSON API answers about a made-up run."""

from __future__ import annotations

from typing import Any

from made_up_run import CLOCK, ORIGINS, TRACEBACK, MadeUpRun
from made_up_units import MadeUnit

from cerebro_spark.commands import Command
from cerebro_spark.forecast.values import Forecast, label_of, to_plain

Json = dict[str, Any]
MOST_UNITS = 4000


def head(run: MadeUpRun, since: int = 0) -> Json:
    """What every answer begins with."""
    return {"generation": run.generation, "version": run.version, "from": since}


def trials(run: MadeUpRun, since: int) -> Json:
    """Trials that changed; to be simple, all of them."""
    return {**head(run, since), "trials": [run.trial(number) for number in range(len(run.params))]}


def curves(run: MadeUpRun, metric: str, since: int) -> Json:
    """The points of a metric."""
    points = run.new_points(since)
    names = list(dict.fromkeys(f"t{trial}" for _, trial, _, _ in points))
    place = {name: index for index, name in enumerate(names)}
    return {
        **head(run, since),
        "metric": metric,
        "metrics": ["auc", "loss", "val_auc", "val_loss"],
        "trial": names,
        "index": [place[f"t{trial}"] for _, trial, _, _ in points],
        "epoch": [epoch for _, _, epoch, _ in points],
        "at": [at for _, _, _, at in points],
        "value": [run.value(trial, epoch, metric) for _, trial, epoch, _ in points],
    }


def running(run: MadeUpRun, by_number: bool = True) -> list[Json]:
    """What runs now: the units that end next, one a worker."""
    if run.state != "running":
        return []
    found: dict[int, list[MadeUnit]] = {}
    for unit in run.units[run.done : run.done + 40]:
        if unit.start <= run.now:
            own = found.setdefault(unit.worker, [])
            if not own or own[0].start == unit.start:
                own.append(unit)
    return [
        {
            "worker": worker if by_number else f"w{worker}",
            "trial": f"t{unit.trial}",
            "epoch": unit.epoch,
            "partition": f"p{unit.partition}",
            "kind": "train" if unit.train else "eval",
            "start": unit.start,
            "width": unit.width,
            "group": 1,
            "rank": 0,
        }
        for worker, units in found.items()
        for unit in units
    ]


def gantt(run: MadeUpRun, start: float | None, end: float | None, bins: int) -> Json:
    """A window of the chart."""
    begin, until = start or 0.0, run.now if end is None else end
    found = [(n, unit) for n, unit in enumerate(run.units[: run.done]) if unit.end >= begin and unit.start <= until]
    lanes = range(run.workers)
    frame = {
        **head(run),
        "from_at": begin,
        "to_at": until,
        "now": run.now,
        "workers": [{"id": f"w{n}", "host": f"node{n % 3 + 1}", "joined": 0.0} for n in lanes],
        "absences": [{"worker": 1, "start": 14.0, "end": 17.5}] if run.workers > 1 else [],
        "failures": [
            {"worker": 1, "at": 14.0, "trial": None, "kind": "worker", "text": "the process was killed"},
            {"worker": 0, "at": 4.0, "trial": "t5", "kind": "unit", "text": "ValueError: 512 hidden units do not fit"},
        ],
        "running": running(run),
    }
    return {**frame, **(_units(found) if len(found) <= MOST_UNITS else _bins(run, found, begin, until, bins))}


def _units(found: list[tuple[int, MadeUnit]]) -> Json:
    names = list(dict.fromkeys(unit.trial for _, unit in found))
    place = {name: index for index, name in enumerate(names)}
    units = [unit for _, unit in found]
    return {
        "detail": "units",
        "trial": [f"t{name}" for name in names],
        "partition": [f"p{n}" for n in range(1 + max((unit.partition for unit in units), default=0))],
        "units": {
            "worker": [unit.worker for unit in units],
            "index": [place[unit.trial] for unit in units],
            "part": [unit.partition for unit in units],
            **_columns(units),
            "number": [number for number, _ in found],
        },
    }


def _columns(units: list[MadeUnit]) -> Json:
    return {
        "epoch": [unit.epoch for unit in units],
        "start": [unit.start for unit in units],
        "end": [unit.end for unit in units],
        "train": [int(unit.train) for unit in units],
        "width": [unit.width for unit in units],
        "group": [1] * len(units),
        "rank": [0] * len(units),
    }


def _bins(run: MadeUpRun, found: list[tuple[int, MadeUnit]], begin: float, until: float, bins: int) -> Json:
    names = list(dict.fromkeys(unit.trial for _, unit in found))
    place = {name: index for index, name in enumerate(names)}
    step = (until - begin) / bins
    busy = [[0.0] * bins for _ in range(run.workers)]
    ended = [[0] * bins for _ in range(run.workers)]
    main = [[-1] * bins for _ in range(run.workers)]
    for _, unit in found:
        middle = min(bins - 1, max(0, int(((unit.start + unit.end) / 2 - begin) / step)))
        busy[unit.worker][middle] = min(1.0, busy[unit.worker][middle] + (unit.end - unit.start) / step)
        ended[unit.worker][middle] += 1
        main[unit.worker][middle] = place[unit.trial]
    names_of = [f"t{name}" for name in names]
    return {"detail": "bins", "step": step, "trial": names_of, "busy": busy, "ended": ended, "main": main}


def workers(run: MadeUpRun) -> Json:
    """The cluster."""
    names = [f"p{n}" for n in range(run.workers)]
    partitions = [
        {"id": name, "split": "train", "rows": 25_000, "bytes": 6_400_000, "holders": [f"w{n}"]}
        for n, name in enumerate(names)
    ]
    return {**head(run), "now": run.now, "workers": worker_rows(run), "utilisation": 0.93, "partitions": partitions}


def worker_rows(run: MadeUpRun) -> list[Json]:
    """All workers; the first of those that do nothing loads a partition."""
    doing: dict[int, list[Json]] = {}
    for now in running(run):
        doing.setdefault(now["worker"], []).append(now)
    rows = []
    for number in range(run.workers):
        own = doing.get(number, [])
        unit = own[0] if own else None
        what = "idle" if unit is None else f"{unit['trial']}/{unit['epoch']}/{unit['partition']}"
        rows.append(
            {
                "id": f"w{number}",
                "host": f"node{number % 3 + 1}",
                "up": True,
                "activity": what,
                "unit": unit and {name: unit[name] for name in ("trial", "epoch", "partition", "kind")},
                "together": len(own),
                "queue": [what] if own else [],
                "loading": [],
                "loaded": [f"p{number}"],
                "since": unit["start"] if unit else run.now,
                "since_clock": None,
                "joined": 0.0,
                "units": sum(unit.worker == number for unit in run.units[: run.done]),
                "busy": run.now * 0.93,
                "utilisation": 0.9 + 0.02 * (number % 4),
                "deaths": int(number == 1),
                "last_loss": "the process was killed" if number == 1 else None,
                "threads": 2,
            }
        )
    return rows


def events(run: MadeUpRun, since: int, before: int | None, limit: int) -> Json:
    """Events in words."""
    found = [event for event in run.events if event["n"] > since and (before is None or event["n"] < before)]
    return {**head(run, since), "events": found[-limit:], "more": len(found) > limit}


def commands(run: MadeUpRun) -> Json:
    """All commands."""
    return {**head(run), "commands": list(run.commands.values())}


def forecast(run: MadeUpRun) -> Json:
    """What a forecast said last."""
    return {**head(run), "forecast": run.forecast_made}


def trial(run: MadeUpRun, number: int) -> Json:
    """All of one trial."""
    own = [(epoch, at) for _, owner, epoch, at in run.points if owner == number]
    units = [(n, unit) for n, unit in enumerate(run.units[: run.done]) if unit.trial == number]
    failed = number == run.failing
    failure = {"at": 4.0, "worker": "w1", "epoch": 2, "partition": "p1", "blame": "worker", "text": "disk is full"}
    names = ("auc", "loss", "val_auc", "val_loss")
    params = run.params[number]
    source = {"trial": f"t{ORIGINS[number]}", "epoch": 2} if number in ORIGINS else None
    return {
        **head(run),
        "trial": run.trial(number),
        "error": TRACEBACK if failed else None,
        "works": [{"at": 0.0, "until": run.epochs, "params": params, "from": source, "counted": True}],
        "ancestors": _ancestors(number),
        "children": [{"trial": f"t{child}", "epoch": 2, "at": 3.0} for child, one in ORIGINS.items() if one == number],
        "curves": {
            "epoch": [epoch for epoch, _ in own],
            "at": [at for _, at in own],
            "metrics": {name: [run.value(number, epoch, name) for epoch, _ in own] for name in names},
            "checkpoint": [f"t{number}/e{epoch:04}-s00004-a{epoch}" for epoch, _ in own],
        },
        "units": {
            "worker": [f"w{unit.worker}" for _, unit in units],
            "host": [f"node{unit.worker % 3 + 1}" for _, unit in units],
            "epoch": [unit.epoch for _, unit in units],
            "partition": [f"p{unit.partition}" for _, unit in units],
            "kind": ["train" if unit.train else "eval" for _, unit in units],
            "start": [unit.start for _, unit in units],
            "end": [unit.end for _, unit in units],
            "seconds": [unit.end - unit.start for _, unit in units],
            "loss": [run.value(number, unit.epoch, "loss") for _, unit in units],
            "width": [unit.width for _, unit in units],
            "group": [1] * len(units),
            "rank": [0] * len(units),
            "attempt": [n for n, _ in units],
            "steps": ["eager" for _ in units],
        },
        "failures": [{**failure, "text": TRACEBACK, "blame": "trial"}, failure] if failed else [],
        "failed": 2 if failed else 0,
        "events": [event for event in run.events if event["trial"] == f"t{number}"],
        "commands": [one for one in run.commands.values() if one["trial"] == f"t{number}"],
    }


def _ancestors(number: int) -> list[Json]:
    """From whom a trial was cloned, the nearest first."""
    found: list[Json] = []
    while number in ORIGINS:
        number = ORIGINS[number]
        found.append({"trial": f"t{number}", "epoch": 2, "at": 3.0})
    return found


def compared(run: MadeUpRun) -> Json:
    """A run beside others."""
    best, steps = 0.0, []
    for place, (_, number, epoch, at) in enumerate(run.points):
        value = run.value(number, epoch, "val_auc")
        if value > best:
            best = value
            steps.append((at, place + 1, value))
    found = run.row()["best"]
    own = range(1, 1 + (found["epoch"] if found else 0))
    return {
        **run.row(),
        "progress": {"at": [s[0] for s in steps], "epochs": [s[1] for s in steps], "best": [s[2] for s in steps]},
        "best_curve": {
            "epoch": list(own),
            "value": [run.value(int(found["trial"][1:]), epoch, "val_auc") for epoch in own],
        },
        "params": run.summary()["params"],
    }


def update(run: MadeUpRun, since: int, first_unit: int, known: set[str]) -> Json:
    """What the stream says after a step. `known` are commands whose last state was sent before."""
    points = run.new_points(since)
    touched = {f"t{number}" for _, number, _, _ in points} | {f"t{number}" for number in run.stopped}
    units = run.units[first_unit : run.done]
    return {
        "generation": run.generation,
        "from": since,
        "version": run.version,
        "run": run.row(),
        "trials": [run.trial(int(name[1:])) for name in sorted(touched)],
        "points": {
            "trial": [f"t{number}" for _, number, _, _ in points],
            "epoch": [epoch for _, _, epoch, _ in points],
            "at": [at for _, _, _, at in points],
            "metrics": {
                name: [run.value(number, epoch, name) for _, number, epoch, _ in points]
                for name in ("auc", "loss", "val_auc", "val_loss")
            },
        },
        "units": {
            "worker": [f"w{unit.worker}" for unit in units],
            "trial": [f"t{unit.trial}" for unit in units],
            "partition": [f"p{unit.partition}" for unit in units],
            **_columns(units),
            "number": list(range(first_unit, run.done)),
        },
        "running": running(run, by_number=False),
        "workers": worker_rows(run),
        "events": [event for event in run.events if event["n"] > since][-50:],
        "commands": [command for command in run.commands.values() if command["id"] not in known],
        "forecast": run.forecast_made,
    }


def made_forecast(run: MadeUpRun) -> Json:
    """A forecast as the driver writes it."""
    made, done = CLOCK + run.now, CLOCK + run.now + 900
    sooner = Forecast(made, run.version, done - 300, done - 420, done)
    answers = {label_of(Command("stop_trial", trial="t0")): sooner}
    return to_plain(Forecast(made, run.version, done, done - 240, done + 600, what_if=answers))
