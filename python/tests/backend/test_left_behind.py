"""What workers leave behind when they die, or are given up by their driver: nothing that anybody could stumble over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from plain_loop import check_run, judged, logged
from small_driver import CONFIGURATIONS, SEED, Stop, small_recipe
from small_search import small_dataset, torch_model_fn
from wire_credentials import RUN

from cerebro_spark import runs
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import FromWorker, Hello
from cerebro_spark.backend.worker.session import WorkerSpec, work_for
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    DeleteCheckpoint,
    Event,
    LoadPartition,
    RunStarted,
    RunUnit,
    Settings,
    UnitFinished,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Objective, Unit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECONDS = 300.0


class DeadlyStore(LocalStore):
    """Kills whoever writes the first checkpoint of a second epoch to it, once it is written and nobody knows."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        super().write(name, data)
        if "e0002-s00001" in name and not (self.root / "struck").exists():
            (self.root / "struck").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def kept(store: LocalStore) -> list[str]:
    return store.list(paths.checkpoint_folder("r1"))


def test_a_checkpoint_that_nobody_heard_of_is_deleted(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)
    store = DeadlyStore(tmp_path / "store")
    backend = kept_backend(1)
    backend.bind(Job("r1", store, dataset, TrainerSpec(Hooks(torch_model_fn))))
    settings = Settings(dataset.partitions, 1, queue_ahead=1, objective=Objective("val_loss", "min"))
    engine = Engine(FixedSearch([{"lr": 0.01}, {"lr": 0.02}], 2), settings, backend, EventLog(store, "r1"), "r1")
    engine.run()
    assert [event for event in EventLog(store, "r1").read() if isinstance(event, WorkerLost)]
    best = [trial.best for trial in engine.scheduler.state.trials.values()]
    assert kept(store) == sorted(paths.checkpoint("r1", checkpoint) for checkpoint in best if checkpoint)


class StoppingAtADeletion:
    """Ends the driver when an event was logged by which a checkpoint is to be deleted, before anybody does so."""

    def __init__(self) -> None:
        self._scheduler: MopScheduler | None = None
        self.given_up: list[Checkpoint] = []

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._scheduler = MopScheduler(event.settings)
        assert self._scheduler is not None
        actions = self._scheduler.handle(event)
        self.given_up = [action.checkpoint for action in actions if isinstance(action, DeleteCheckpoint)]
        if self.given_up and isinstance(event, UnitFinished) and event.unit.epoch > 1:
            raise Stop


def test_what_a_driver_left_is_deleted_when_its_run_is_resumed(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    """It ended before it could delete what the last event it logged gave up, and forgot what was never reported."""
    dataset = small_dataset(tmp_path, partitions=3)
    store = LocalStore(tmp_path / "store")
    stopping = StoppingAtADeletion()
    with pytest.raises(Stop):
        runs.execute(small_recipe(dataset, 3), store, kept_backend(2), "r1", [stopping])
    left = {paths.checkpoint("r1", checkpoint) for checkpoint in stopping.given_up}
    assert left <= set(kept(store)), "a deletion was decided, logged and never done"
    for orphan in (Checkpoint("t0", 1, 1, 9999), Checkpoint("t3", 3, 2, 9998)):
        store.write(paths.checkpoint("r1", orphan), b"")
    runs.resume(store, "r1", kept_backend(1))
    check_run(dataset, "r1", len(CONFIGURATIONS), 3, SEED)
    retained = judged(logged(store, "r1"))[0].state.retention.kept()
    assert kept(store) == sorted(paths.checkpoint("r1", checkpoint) for checkpoint in retained)


class GatedTraining:
    """A `train_fn` that says where it is and waits until it may go on."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.inside = threading.Event()
        self.gate = threading.Event()

    def __call__(self, model: Any, batches: Iterable[Any], params: Any) -> dict[str, float]:
        self.begun.append(params["lr"])
        self.inside.set()
        assert self.gate.wait(SECONDS)
        return {"loss": 1.0, "rows": 1}


def test_a_worker_that_was_given_up_does_no_more_than_it_must(tmp_path: Path) -> None:
    """Its driver hangs up in the middle of a unit: that one ends, is not kept, and the next is not begun."""
    dataset = small_dataset(tmp_path)
    store = LocalStore(tmp_path / "store")
    training = GatedTraining()
    job = Job("r1", store, dataset, TrainerSpec(Hooks(torch_model_fn, train_fn=training)))
    joined = threading.Event()
    peers: list[int] = []

    def heard(peer: int, message: FromWorker) -> None:
        if isinstance(message, Hello):
            peers.append(peer)
            joined.set()

    hub = Hub(RUN.driver, heard, lambda peer, reason: None)
    connection = DriverConnection(hub.address, RUN.worker, SECONDS)
    connection.send(Hello("w0"))
    spec = WorkerSpec(hub.address, RUN.worker, "w0", b"")
    worker = threading.Thread(target=work_for, args=(job, connection, spec), daemon=True)
    worker.start()
    try:
        assert joined.wait(SECONDS)
        partition = dataset.train[0].id
        orders = [RunUnit("w0", Unit(f"t{n}", 1, partition), n, {"lr": float(n)}, step=1) for n in (1, 2)]
        hub.send(peers[0], LoadPartition("w0", partition))
        for order in orders:
            hub.send(peers[0], order)
        assert training.inside.wait(SECONDS)
        listener = next(thread for thread in threading.enumerate() if thread.name == "listen-w0")
        hub.lose(peers[0], "it is let go")
        listener.join(SECONDS)
        assert not listener.is_alive()
        training.gate.set()
        worker.join(SECONDS)
        assert not worker.is_alive()
    finally:
        training.gate.set()
        hub.close()
    assert training.begun == [1.0]
    assert kept(store) == []


class NotedTrainer(TorchTrainer):
    """A kind of trainer of one's own."""


def test_units_say_how_long_their_worker_waited(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    backend = LocalBackend(num_workers=1, threads=1)
    job = Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn), 3, NotedTrainer))
    backend.bind(job)
    settings = Settings(dataset.partitions, 1, queue_ahead=1)
    Engine(FixedSearch([{"lr": 0.01}], 3), settings, backend, EventLog(dataset.store, "r1"), "r1").run()
    units = [event for event in EventLog(dataset.store, "r1").read() if isinstance(event, UnitFinished)]
    units.sort(key=lambda event: event.attempt)
    assert [event.waited == 0.0 for event in units] == [True] + [False] * (len(units) - 1)
