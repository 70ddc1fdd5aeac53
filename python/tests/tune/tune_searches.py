"""All searches, and a small world to run them in: trials report in any order, and some of them fail."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.fixed import GridAlgorithm, RandomAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm
from cerebro_spark.types import Checkpoint, Objective, Report, Work

LOSS = Objective("val_loss", "min")
ACCURACY = Objective("val_accuracy", "max")
SPACE = {
    "lr": hp.loguniform(1e-4, 1e-1),
    "net": hp.choice(["linear", {"name": "mlp", "units": [hp.quniform(16, 64, 16), 8], "dropout": hp.uniform(0, 0.5)}]),
    "depth": hp.randint(1, 4),
    "batch_size": 32,
}
GRID = {
    "lr": hp.choice([0.1, 0.01, 0.001]),
    "net": hp.choice(["linear", {"name": "mlp", "units": [hp.quniform(16, 64, 16), 8]}]),
    "batch_size": 32,
}

Make = Callable[[Objective, int | None], Algorithm]
ALGORITHMS: dict[str, Make] = {
    "grid": lambda objective, limit: GridAlgorithm(GRID, objective, epochs=3, max_concurrent=limit),
    "random": lambda objective, limit: RandomAlgorithm(SPACE, objective, 3, num_trials=12, max_concurrent=limit),
    "tpe": lambda objective, limit: TPEAlgorithm(SPACE, objective, 2, num_trials=9, max_concurrent=limit, startup=3),
    "hyperband": lambda objective, limit: HyperbandAlgorithm(SPACE, objective, 9, max_concurrent=limit),
    "asha": lambda objective, limit: ASHAAlgorithm(SPACE, objective, 14, max_epochs=9, max_concurrent=limit),
    "pbt": lambda objective, limit: PBTAlgorithm(SPACE, objective, 6, epochs=7, perturb_every=2, max_concurrent=limit),
}


def wrapped(name: str, objective: Objective, limit: int | None = None, **options: Any) -> Search:
    """The search as it is, or within a Stopping where there are options for one."""
    search = ALGORITHMS[name](objective, limit)
    return Stopping(search, objective, **options) if options else search


def quality(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    """A loss that depends on params, trial and epoch, and goes up and down."""
    noise = random.Random(f"{trial}/{epoch}").uniform(0, 0.3)
    return abs(float(params["lr"]) - 0.01) * 10 + 1 / epoch + noise


@dataclass
class Journal:
    """What a search said and was told."""

    works: list[Work] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    most: int = 0

    def epochs(self) -> dict[str, int]:
        """How far each trial came."""
        return {report.trial: report.epoch for report in self.reports if not report.failed}


@dataclass
class Player:
    """Plays the engine's part, checks that the search keeps to the rules, and lets trials run in a seeded order."""

    search: Search
    objective: Objective = LOSS
    seed: int = 0
    failure_rate: float = 0.0
    sign: float = 1.0
    value: Callable[[str, Mapping[str, Any], int], float] = quality
    seconds: float = 1.0
    journal: Journal = field(default_factory=Journal)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._running: dict[str, Work] = {}
        self._epochs: dict[str, int] = {}
        self._kept: dict[str, Checkpoint] = {}
        self._failed: set[str] = set()
        self.done = False

    def play(self, steps: int = 5000) -> Journal:
        """Until the search is done and nothing is under way, or for so many reports."""
        for _ in range(steps):
            self.ask()
            if not self._running:
                assert self.done, "the search waits for reports that cannot come"
                return self.journal
            self.step()
        assert steps < 5000, "the search does not end"
        return self.journal

    def ask(self) -> None:
        while not self.done:
            answer = self.search.ask()
            if isinstance(answer, Done):
                self.done = True
            elif isinstance(answer, Wait):
                return
            else:
                self._accept(answer)

    def _accept(self, work: Work) -> None:
        assert work.trial not in self._failed
        assert work.until_epoch > self._epochs.get(work.trial, 0)
        assert json.loads(json.dumps(work.params, allow_nan=False)) == work.params
        if work.warm_start is not None:
            assert work.trial not in self._running
            assert work.warm_start in self._kept.values(), "that checkpoint is gone"
        self._running[work.trial] = work
        self.journal.works.append(work)
        self.journal.most = max(self.journal.most, len(self._running))

    def step(self) -> None:
        trial = self._rng.choice(sorted(self._running))
        work = self._running[trial]
        at = self.seconds * (len(self.journal.reports) + 1)
        epoch = self._epochs.get(trial, 0) + 1
        if self._rng.random() < self.failure_rate:
            self._failed.add(trial)
            self._kept.pop(trial, None)
            del self._running[trial]
            self._tell(Report(trial, epoch, at=at, error="out of memory"))
            return
        self._epochs[trial] = epoch
        self._kept[trial] = Checkpoint(trial, epoch, 1, len(self.journal.reports))
        if epoch == work.until_epoch:
            del self._running[trial]
        value = self.sign * self.value(trial, work.params, epoch)
        self._tell(Report(trial, epoch, {self.objective.metric: value, "loss": 1.0}, at, self._kept[trial]))

    def _tell(self, report: Report) -> None:
        self.journal.reports.append(report)
        self.search.tell(report)
