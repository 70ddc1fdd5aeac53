"""A run on processes of this machine, trained again from its log: the same bits, on other workers, whoever died."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from small_search import keras_model_fn, small_dataset, torch_model_fn

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ReplayDiverged
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, Settings, UnitFinished, WorkerLost
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.checkpoints.arrays import read_array
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Objective, Report, Work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Exploiting(FixedSearch):
    """Trains four trials for two epochs, then the second and a new one go on from where the first was, its numbers new.

    The third goes on with another learning rate as soon as its first epoch is known, in the middle of its second.
    """

    def __init__(self) -> None:
        super().__init__([{"lr": lr, "batch_size": size} for lr in (0.01, 0.03) for size in (16, 40)], 2)
        self._known: dict[tuple[str, int], Checkpoint | None] = {}
        self._queue: list[Work] = []
        self._first = True

    def tell(self, report: Report) -> None:
        assert not report.failed, report.error
        self._known[report.trial, report.epoch] = report.checkpoint
        if (report.trial, report.epoch) == ("t2", 1):
            self._queue.append(Work("t2", {"lr": 0.005, "batch_size": 16}, 3))
        if self._first and {("t0", 2), ("t1", 2)} <= set(self._known):
            self._first = False
            source = self._known["t0", 2]
            self._queue.append(Work("t1", {"lr": 0.02, "batch_size": 40}, 3, source))
            self._queue.append(Work("t9", {"lr": 0.05, "batch_size": 16}, 1, source))

    def ask(self) -> Any:
        if self._queue:
            return self._queue.pop(0)
        answer = super().ask()
        return Wait() if isinstance(answer, Done) and len(self._known) < 11 else answer


class Killer:
    """Kills workers in the middle of the run."""

    def __init__(self, backend: LocalBackend, after: tuple[int, ...]) -> None:
        self._backend, self._after = backend, after
        self._units = 0
        self.lost: list[str] = []

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        if isinstance(event, WorkerLost):
            self.lost.append(event.worker)
        elif isinstance(event, UnitFinished):
            self._units += 1
            if self._units in self._after:
                os.kill(pids(self._backend)[0], signal.SIGKILL)


def pids(backend: LocalBackend) -> list[int]:
    return [handle.pid for handle in backend._run.pool.handles.values() if handle.pid]


def train(
    run: str,
    dataset: Dataset,
    model_fn: Any,
    search: Search,
    backend: LocalBackend,
    script: RunScript | None,
    *who: Any,
) -> RunScript:
    """Run, and return what the log says of it."""
    backend.bind(Job(run, dataset.store, dataset, TrainerSpec(Hooks(model_fn), seed=11)))
    settings = Settings(
        dataset.partitions, backend.num_workers, queue_ahead=1, objective=Objective("val_loss", "min"), max_kills=9
    )
    settings = script.settings_like(settings) if script else settings
    log = EventLog(dataset.store, run)
    Engine(search, settings, backend, log, run=run, observers=who).run()
    return RunScript.from_events(log.read())


def kept_arrays(dataset: Dataset, run: str) -> dict[str, dict[str, bytes]]:
    """By checkpoint, without the number of its attempt: every array in it, as bytes."""
    found = {}
    for name in dataset.store.list(paths.checkpoint_folder(run)):
        with open_checkpoint(dataset.store.read(name)) as reader:
            arrays = {array: read_array(reader, array).tobytes() for array in reader.names()}
        found[name.removeprefix(paths.checkpoint_folder(run)).rsplit("-a", 1)[0]] = arrays
    return found


def test_weights_come_out_the_same_although_workers_died_and_others_repeat_it(
    tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    first = kept_backend(2)
    killer = Killer(first, after=(9, 23))
    script = train("r1", dataset, torch_model_fn, Exploiting(), first, None, killer)
    assert len(killer.lost) == 2
    assert len(script.digests) == 3 * 11
    assert script.threads == 1
    weights = kept_arrays(dataset, "r1")
    assert len(weights) == 5
    for name in dataset.store.list(paths.checkpoint_folder("r1")):
        dataset.store.delete(name)
    checker = ReplayChecker(script)
    second = kept_backend(3)
    again = train("r2", dataset, torch_model_fn, ReplaySearch(script), second, script, checker, Killer(second, (15,)))
    checker.finish()
    assert again.digests == script.digests
    assert [course.visits for course in again.trials] == [course.visits for course in script.trials]
    assert {(r.trial, r.epoch): r.metrics for r in again.reports} == {
        (r.trial, r.epoch): r.metrics for r in script.reports
    }
    assert kept_arrays(dataset, "r2") == weights
    assert not dataset.store.list(paths.checkpoint_folder("r1")), "nobody wrote there, and nobody could read there"


@pytest.mark.rare
def test_keras_comes_out_the_same_and_its_metrics_too(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=2)
    search = FixedSearch([{"lr": 0.02, "batch_size": 32}, {"lr": 0.1, "batch_size": 32}], 2)
    script = train("r1", dataset, keras_model_fn, search, LocalBackend(num_workers=2, threads=1), None)
    checker = ReplayChecker(script)
    train("r2", dataset, keras_model_fn, ReplaySearch(script), LocalBackend(num_workers=1, threads=1), script, checker)
    checker.finish()


def test_another_number_of_threads_is_seen_before_anything_is_trained(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    search = FixedSearch([{"lr": 0.02, "batch_size": 32}], 1)
    script = train("r1", dataset, torch_model_fn, search, LocalBackend(num_workers=1, threads=1), None)
    backend = LocalBackend(num_workers=1, threads=2)
    with pytest.raises(ReplayDiverged, match="computes with 2 threads, run r1 did with 1"):
        train("r2", dataset, torch_model_fn, ReplaySearch(script), backend, script, ReplayChecker(script))
    assert not any(isinstance(event, UnitFinished) for event in EventLog(dataset.store, "r2").read())
