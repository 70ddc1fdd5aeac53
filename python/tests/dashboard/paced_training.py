"""Real searches that train nothing: their units only take a while, and are noted by the workers when they begin.

Their trainer is no framework's, so that workers start without one. It is for tests that need a run which lasts until
somebody ends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.commands import Command
from cerebro_spark.errors import RunKilled
from cerebro_spark.live.handle import OVER
from cerebro_spark.live.run import Run
from cerebro_spark.trainer.base import Hooks, Params, Resources, SavedCheckpoint, Trainer
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.tune import training
from cerebro_spark.types import DigestName, Metrics, TrialId, Unit

SECONDS = 300.0
UNIT_SECONDS = 0.1
ROWS = 32
ENDLESS = 10_000
BEGAN = "began"


def noting(folder: str) -> Callable[[Params], str]:
    """A `model_fn` whose models are the name of the file in which units are noted."""

    def model_fn(params: Params) -> str:
        return os.path.join(folder, BEGAN)

    return model_fn


class PacedTrainer(Trainer):
    """Counts the units of each trial. The more of them, and the higher its `lr`, the smaller its loss."""

    framework = "paced"

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self._hooks = hooks
        self._trial, self._params, self._units = "", {}, 0  # type: tuple[str, Params, int]

    def build(self, trial: TrialId, params: Params) -> None:
        self._trial, self._params, self._units = trial, params, 0

    def load(
        self,
        trial: TrialId,
        params: Params,
        source: Path | BinaryIO | bytes,
        *,
        digest: str = "",
        warm_start: bool = False,
    ) -> None:
        data = source.read_bytes() if isinstance(source, Path) else source
        self._trial, self._params = trial, params
        self._units = json.loads(data if isinstance(data, bytes) else data.read())

    def save(self, target: Path | BinaryIO, digest: DigestName = DIGEST) -> SavedCheckpoint:
        data = json.dumps(self._units).encode()
        target.write_bytes(data) if isinstance(target, Path) else target.write(data)
        return SavedCheckpoint(len(data), hashlib.sha256(data).hexdigest())

    def holds(self, trial: TrialId, digest: str) -> bool:
        return False

    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        with open(self._hooks.model_fn(self._params), "a") as began:
            began.write(f"{unit.trial} {unit.epoch} {unit.partition}\n")
        threading.Event().wait(UNIT_SECONDS)  # this is what the unit takes
        self._units += 1
        return self._measured()

    def evaluate(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        return self._measured()

    def _measured(self) -> Metrics:
        loss = 0.2 + 0.5 * math.exp(-self._params["lr"] * self._units)
        return Metrics({"loss": ROWS * loss, "accuracy": ROWS * (1 - loss)}, {"loss": ROWS, "accuracy": ROWS})

    def predict(self, feed: Feed | Iterable[Batch]) -> dict[str, Array]:
        raise NotImplementedError

    def finish(self, metrics: Metrics) -> dict[str, float]:
        return metrics.values()

    def model(self) -> Any:
        return self._units


@dataclass(frozen=True)
class PacedRun:
    """A run under way, and what its workers noted."""

    run: Run
    folder: Path

    def began(self, trial: TrialId) -> int:
        """How many training units of a trial have begun, as the workers saw it."""
        return sum(line.startswith(f"{trial} ") for line in (self.folder / BEGAN).read_text().splitlines())

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so, and look with every turn of the run."""
        self.run._live.wait_for_answer(Command("pause"), lambda: ready() or self.run._ended.is_set(), SECONDS)
        assert ready(), f"{self.run!r}: {self.run.error}"

    def wait_for_epochs(self, trial: TrialId, more: int) -> None:
        """Wait until a trial has done so many epochs more than now."""
        goal = self.epochs(trial) + more
        self.wait_until(lambda: self.epochs(trial) >= goal)

    def epochs(self, trial: TrialId) -> int:
        """How many epochs of a trial are known."""
        return sum(known == trial for known, _ in self.run.snapshot().epochs)

    def is_out(self, trial: TrialId) -> bool:
        """Whether a worker has a unit of a trial to do, or does it now."""
        return any(one.unit.trial == trial for each in self.run.snapshot().workers.values() for one in each.queue)

    def status(self, trial: TrialId) -> str:
        """How a trial stands."""
        return str(self.run.snapshot().status(trial))

    def close(self) -> None:
        """Kill the run if it is not over."""
        if self.run.status not in OVER:
            self.run.kill(timeout=SECONDS)
        with contextlib.suppress(RunKilled):
            self.run.wait(SECONDS)


def start_run(store: Path, folder: Path, run_id: str, trials: int = 4, workers: int = 2) -> PacedRun:
    """Begin a search over `trials` learning rates which does not end by itself, and wait for its first epoch.

    Args:
        store: The store.
        folder: Where workers note their units; it must be there.
        run_id: The id of the run.
        trials: How many trials. Defaults to 4.
        workers: How many worker processes. Defaults to 2.
    """
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(ROWS, 3)).astype("float32"), "y": np.arange(ROWS) % 2}
    with pytest.MonkeyPatch.context() as patch:
        # Searches take the names of two frameworks: this trainer is none of them.
        patch.setattr(training, "_chosen_framework", lambda model_fn, framework: PacedTrainer)
        search = cs.GridSearch(
            noting(str(folder)),
            space={"lr": hp.choice([round(0.02 * (number + 1), 2) for number in range(trials)]), "batch_size": 8},
            backend=cs.LocalBackend(workers, threads=1, heartbeat=SECONDS),
            store=str(store),
            features="x",
            label="y",
            validation=0.25,
            partitions=2,
            metric="val_loss",
            epochs=ENDLESS,
            progress=False,
        )
        started = PacedRun(search.start(data, run_id=run_id), folder)
        started.wait_until(lambda: started.run.status != "starting")
    started.wait_until(lambda: len(started.run.snapshot().epochs) >= trials)
    return started
