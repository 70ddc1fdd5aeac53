"""A made-up run in the words of the dashboard's JSON API, which tests let go on step by step."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter
from typing import Any

from made_up_units import MadeUnit, rotation, schedule

RUN = "20261116-101500-ab12cd"
OLDER = "20261115-090000-77aa01"
CLOCK = 1_794_822_900.0
# Whose clone a trial is.
ORIGINS = {2: 1, 4: 2}
TRACEBACK = """Traceback (most recent call last):
  File "model.py", line 12, in model_fn
    return build(params["hidden"])
  File "model.py", line 31, in build
    raise ValueError(f"{hidden} hidden units do not fit")
ValueError: 512 hidden units do not fit"""
Json = dict[str, Any]


class MadeUpRun:
    """A run of which `done` units are over.

    Args:
        name: Its id.
        trials: How many trials there are.
        epochs: How many epochs each is to train.
        workers: How many workers there are, and so partitions.
        share: Which share of the units is done at first.
        fused: How many trials hop together.
        failing: The number of the trial that failed, if any.
        names: The params' names and how to draw each.
    """

    def __init__(
        self,
        name: str,
        trials: int = 16,
        epochs: int = 8,
        workers: int = 4,
        share: float = 0.6,
        fused: int = 0,
        failing: int | None = 5,
        seed: int = 7,
        params: Json | None = None,
    ) -> None:
        self.name, self.epochs, self.workers, self.failing = name, epochs, workers, failing
        self.generation, self.state, self.driver = "g1", "running", "alive"
        chance = random.Random(seed)
        self.params = [self._draw(chance, params) for _ in range(trials)]
        self.speed = [chance.uniform(0.25, 0.8) for _ in range(trials)]
        self.top = [chance.uniform(0.78, 0.94) for _ in range(trials)]
        made = schedule(trials, epochs, workers, seed, fused) if trials <= 100 else rotation(trials, epochs, workers)
        self.units = [unit for unit in made if self._may_run(unit)]
        self.left = Counter((unit.trial, unit.epoch) for unit in self.units)
        self.own_units: Counter[int] = Counter()
        self.own_epochs: dict[int, list[int]] = {trial: [] for trial in range(trials)}
        self.best: tuple[float, int, int] | None = None
        self.stopped: set[int] = set()
        self.commands: dict[str, Json] = {}
        self.events: list[Json] = []
        self.forecast_made: Json | None = None
        self.problem: str | None = None
        self.ticks = 1
        self.done = 0
        self.points: list[tuple[int, int, int, float]] = []
        self._note("RunStarted", f"the run {name} started", at=0.0)
        for worker in range(workers):
            self._note("WorkerJoined", f"w{worker} joined on node{worker % 3 + 1}", at=0.1 * worker, worker=worker)
        self.advance(int(share * len(self.units)))
        if failing is not None:
            text = f"t{failing}, epoch 2, on p1 failed at w1 (the trial's own fault): ValueError: 512 hidden units"
            self._note("UnitFailed", text, level="error", at=4.0, trial=failing, worker=1)

    @staticmethod
    def _draw(chance: random.Random, more: Json | None) -> Json:
        return {
            "lr": float(f"{10 ** chance.uniform(-4, -1):.3g}"),
            "hidden": chance.choice([64, 128, 256, 512]),
            "dropout": round(chance.uniform(0, 0.5), 3),
            "optimizer": chance.choice(["adam", "sgd", "rmsprop"]),
            "batch_size": 256,
            **(more or {}),
        }

    def _may_run(self, unit: MadeUnit) -> bool:
        return unit.trial != self.failing or unit.epoch < 2

    # -- how it goes on

    @property
    def now(self) -> float:
        return (self.units[self.done - 1].end if self.done else 1.0) + 0.3

    @property
    def version(self) -> int:
        return self.ticks

    def advance(self, units: int) -> None:
        """Let so many more units end."""
        for unit in self.units[self.done : self.done + units]:
            self.done += 1
            self.ticks += 1
            self.own_units[unit.trial] += 1
            self.left[unit.trial, unit.epoch] -= 1
            if not self.left[unit.trial, unit.epoch]:
                self._report(unit)
        if self.done >= len(self.units):
            self.state = "finished"

    def _report(self, unit: MadeUnit) -> None:
        self.points.append((self.ticks, unit.trial, unit.epoch, unit.end))
        self.own_epochs[unit.trial].append(unit.epoch)
        found = (self.value(unit.trial, unit.epoch, "val_auc"), unit.trial, unit.epoch)
        self.best = max(self.best or found, found)

    def _note(
        self,
        kind: str,
        text: str,
        level: str = "info",
        at: float | None = None,
        trial: int | None = None,
        worker: int | None = None,
    ) -> None:
        self.ticks += 1
        when = self.now if at is None else at
        self.events.append(
            {
                "n": self.ticks,
                "at": when,
                "clock": CLOCK + when,
                "kind": kind,
                "level": level,
                "text": text,
                "trial": None if trial is None else f"t{trial}",
                "worker": None if worker is None else f"w{worker}",
            }
        )

    def happen(self, text: str) -> None:
        """Log an event that changes nothing."""
        self._note("Note", text)

    def take(self, command: Json) -> Json:
        """Write a command down as the server does: one that came before stays as it is."""
        if command.get("id") in self.commands:
            return self.commands[command["id"]]
        self.ticks += 1
        made = {
            "id": f"c{len(self.commands)}",
            "by": "dashboard",
            "trial": "",
            "worker": "",
            "workers": 0,
            "epochs": None,
            "params": {},
            "warm_start": True,
            **command,
            "state": "sent",
            "reason": "",
            "sent_clock": CLOCK + self.now,
            "at": None,
            "clock": None,
            "answered_at": None,
        }
        made["words"] = f"{made['verb'].replace('_', ' ')} {made['trial'] or made['worker']}".strip()
        self.commands[made["id"]] = made
        return made

    def answer(self, command: str, done: bool, reason: str = "") -> None:
        """Answer a command; one that is done has its effect on what is shown."""
        found = self.commands[command]
        found.update(state="done" if done else "refused", reason=reason, answered_at=self.now)
        verb = found["verb"]
        if done and verb == "stop_trial":
            self.stopped.add(int(found["trial"][1:]))
        if done and verb in ("pause", "unpause"):
            self.state = "paused" if verb == "pause" else "running"
        word = "done" if done else f"refused: {reason}"
        self._note("CommandAnswered", f"{found['words']}: {word}", level="info" if done else "warning")

    # -- what the API says

    def value(self, trial: int, epoch: int, metric: str) -> float:
        """A metric as a function of the epoch."""
        gone = 1 - math.exp(-self.speed[trial] * epoch)
        wobble = 0.004 * math.sin(7.3 * trial + 3.1 * epoch)
        score = 0.5 + (self.top[trial] - 0.5) * gone + wobble
        values = {"val_auc": score, "auc": score + 0.03 * gone, "loss": 1.1 - score, "val_loss": 1.16 - score - wobble}
        return round(values[metric], 5)

    def metrics(self, trial: int, epoch: int) -> dict[str, float]:
        """All metrics of an epoch."""
        return {name: self.value(trial, epoch, name) for name in ("auc", "loss", "val_auc", "val_loss")}

    def row(self) -> Json:
        """RUN."""
        failed = int(self.failing is not None)
        over = len({trial for trial in self.own_epochs if self._last(trial) == self.epochs} | self.stopped)
        return {
            "run": self.name,
            "generation": self.generation,
            "version": self.version,
            "state": self.state,
            "problem": self.problem,
            "driver": self.driver,
            "started_clock": CLOCK,
            "last_clock": CLOCK + self.now,
            "now": self.now,
            "ended_at": self.now if self.state == "finished" else None,
            "trials": len(self.params),
            "counts": {
                "units": self.done,
                "all_units": len(self.units),
                "epochs": len(self.points),
                "all_epochs": self.epochs * len(self.params),
                "running": len(self.params) - failed - over,
                "done": over,
                "failed": failed,
                "workers": self.workers,
            },
            "objective": {"metric": "val_auc", "mode": "max"},
            "best": self._best(),
            "utilisation": 0.93,
        }

    def _best(self) -> Json | None:
        if self.best is None:
            return None
        value, trial, epoch = self.best
        metrics = self.metrics(trial, epoch)
        return {"trial": f"t{trial}", "epoch": epoch, "value": value, "metrics": metrics, "params": self.params[trial]}

    def summary(self) -> Json:
        """The answer of api/runs/{run}."""
        settings = {"workers": self.workers, "partitions": self.workers, "validation": 1, "replicas": 1}
        return {
            **self.row(),
            "search_ended": False,
            "finished": self.state == "finished",
            "paused": self.state == "paused",
            "settings": {**settings, "policy": "hopper", "seed": 7, "fuse": 1, "rows": 100_000, "bytes": 25_600_000},
            "metrics": ["auc", "loss", "val_auc", "val_loss"],
            "params": sorted({name for params in self.params for name in params}),
            "hosts": ["node1", "node2", "node3"],
            "units": self.done,
            "failures": 1,
            "commands": len(self.commands),
            "events": len(self.events),
        }

    def status(self, trial: int) -> str:
        """The state of a trial."""
        if trial == self.failing:
            return "failed"
        if trial in self.stopped:
            return "stopped"
        return "finished" if self._last(trial) == self.epochs else "running"

    def _last(self, trial: int) -> int:
        return max(self.own_epochs[trial], default=0)

    def trial(self, number: int) -> Json:
        """TRIAL."""
        own = self.own_epochs[number]
        best = max(own, key=lambda epoch: self.value(number, epoch, "val_auc"), default=None)
        last = max(own, default=0)
        return {
            "id": f"t{number}",
            "number": number,
            "status": self.status(number),
            "params": self.params[number],
            "until": self.epochs,
            "epochs": len(own),
            "last": last,
            "units": self.own_units[number],
            "best_epoch": best,
            "best_value": None if best is None else self.value(number, best, "val_auc"),
            "metrics": self.metrics(number, last) if own else {},
            "best_metrics": {} if best is None else self.metrics(number, best),
            "parent": f"t{ORIGINS[number]}" if number in ORIGINS else None,
            "by_command": number == 2,
            "error": TRACEBACK.splitlines()[-1] if number == self.failing else None,
        }

    def new_points(self, since: int) -> list[tuple[int, int, int, float]]:
        """What was reported after a version."""
        return self.points[bisect_right(self.points, since, key=lambda point: point[0]) :]
