"""Runs that train nothing, and load no framework: for tests of processes that stay when a run is over."""

from __future__ import annotations

from typing import Any

from cerebro_spark.backend.driver.parents import Parent
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import WorkerJoined
from cerebro_spark.trainer.base import Hooks, Trainer
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec


class NoTrainer(Trainer):
    """A kind of trainer of one's own, which is never made."""


def no_model(params: Any) -> None:
    """A `model_fn` that is never called."""


def leave_processes(backend: RemoteBackend, dataset: Dataset, resources: Resources | None = None) -> list[Parent]:
    """Begin a run on a backend inside its `with` block, end it, and return what stays.

    Args:
        backend: The backend.
        dataset: What the run would train on.
        resources: What its workers would use. Default: what the backend says.
    """
    trainer = TrainerSpec(Hooks(no_model), framework=NoTrainer, resources=resources or Resources())
    backend.bind(Job("r1", dataset.store, dataset, trainer))
    backend.start(dataset.partitions)
    joined = 0
    while joined < backend.num_workers:
        joined += sum(isinstance(event, WorkerJoined) for event in backend.events())
    backend.close()
    assert backend._parents is not None
    return [parent for parent in backend._parents._parents if not parent.leaving]
