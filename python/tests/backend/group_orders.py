"""A LocalBackend that is driven by hand: orders of groups go out, and what workers say is taken one by one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from small_search import FEATURES

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import (
    Action,
    Event,
    LoadPartition,
    PartitionLoaded,
    RunUnit,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
)
from cerebro_spark.store.base import Store
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import Checkpoint, Unit, WorkerId

E = TypeVar("E", bound=Event)
BATCH = 32
SECONDS = 60.0


def paced_model_fn(params: Mapping[str, Any]) -> TorchModel:
    """A model whose steps take `pause` seconds, and leave a file `marker` once the first share of a batch comes.

    In the process `stuck` the first of them never ends.
    """
    import torch
    from torch import nn

    class Paced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

        def forward(self, x: Any) -> Any:
            # What is tried before a group begins has the rows of a whole batch, or a third of it.
            if self.training and len(x) == params["share"]:
                Path(f"{params['marker']}-{os.getpid()}").touch()
                time.sleep(params["pause"])
                if params.get("stuck") == os.getpid():
                    threading.Event().wait()
                if params.get("failing") == os.path.exists(f"{params['marker']}-fails-{os.getpid()}"):
                    raise ValueError("this member fails")
            return self.body(x)

    module = Paced()
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


class DeadlyStore(LocalStore):
    """A store that kills who has just written a checkpoint there, once."""

    def write(self, name: str, data: Any) -> None:
        super().write(name, data)
        if "/checkpoints/" in name:
            with suppress(FileExistsError), open(self.root / "deadly", "x"):
                os.kill(os.getpid(), signal.SIGKILL)


class Hand:
    """Drives a backend by hand.

    Args:
        backend: The backend.
        dataset: The data.
        model_fn: Makes the model.
        folder: Where models leave files; the run is named as it is.
        store: Where checkpoints go. Defaults to None: to the store of the data.
        strategy: How the model lies on the workers. Defaults to "auto".
    """

    def __init__(
        self,
        backend: RemoteBackend,
        dataset: Dataset,
        model_fn: Any,
        folder: Path,
        store: Store | None = None,
        strategy: Any = "auto",
        **hooks: Any,
    ) -> None:
        self._backend, self._dataset, self._folder = backend, dataset, folder
        self._heard: list[Event] = []
        self._attempts = 0
        resources = Resources(threads=1, device="cpu", strategy=strategy)
        trainer = TrainerSpec(Hooks(model_fn, **hooks), framework="torch", resources=resources)
        self.job = Job(folder.name, store or dataset.store, dataset, trainer, smallest_batch=2)
        backend.bind(self.job)
        backend.start(dataset.partitions)
        joined = [self.take(WorkerJoined) for _ in range(backend.num_workers)]
        self.workers = sorted(event.worker for event in joined)
        for worker, partition in zip(self.workers, dataset.train, strict=False):
            backend.submit(LoadPartition(worker, partition.id))
        for _ in self.workers:
            self.take(PartitionLoaded)

    def take(self, *kinds: type[E]) -> E:
        """Wait for the next event of one of these kinds; others are kept."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for event in self._heard:
                if isinstance(event, kinds):
                    self._heard.remove(event)
                    return event
            news = self._backend.events()
            failed = [event for event in news if isinstance(event, UnitFailed) and UnitFailed not in kinds]
            assert not failed, failed
            self._heard += news
        raise TimeoutError(f"no {kinds}, but {self._heard}")

    @property
    def heard(self) -> Sequence[Event]:
        """The events that came and were not taken."""
        return self._heard

    def order(self, workers: Sequence[WorkerId], parent: Checkpoint | None = None, **params: Any) -> RunUnit:
        """Have workers train a unit together, or one alone."""
        self._attempts += 1
        partitions = [self._dataset.train[self.workers.index(worker)].id for worker in workers]
        epoch = 1 if parent is None else parent.epoch + 1
        unit = Unit("t0", epoch, partitions[0], beside=tuple(partitions[1:]))
        given = {
            "batch_size": BATCH,
            "marker": str(self._folder / f"m{self._attempts}"),
            "pause": 0.0,
            "share": 0,
            **params,
        }
        first, *partners = workers
        order = RunUnit(first, unit, self._attempts, given, parent, step=1, final=True, partners=tuple(partners))
        self._backend.submit(order)
        return order

    def submit(self, action: Action) -> None:
        """Give any other order."""
        self._backend.submit(action)

    def finish(self, order: RunUnit) -> UnitFinished:
        """Wait for the end of a unit."""
        event = self.take(UnitFinished)
        assert (event.attempt, event.workers) == (order.attempt, order.workers)
        return event

    def pid(self, worker: WorkerId) -> int:
        pid = self._backend._run.pool.handles[worker].pid
        assert isinstance(pid, int)
        return pid

    def wait_until_training(self, order: RunUnit) -> None:
        """Wait until all members of a group have begun their first step."""
        deadline = time.monotonic() + SECONDS
        marks = [Path(f"{order.params['marker']}-{self.pid(worker)}") for worker in order.workers]
        while not all(mark.exists() for mark in marks):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def strike(self, worker: WorkerId, blow: signal.Signals) -> None:
        os.kill(self.pid(worker), blow)
