"""Whom a worker blames for a unit that failed over a checkpoint: the trial whose it is, or the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_search import FEATURES, small_dataset, torch_model_fn

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import FromWorker, Stop
from cerebro_spark.backend.worker.worker import Worker
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import LoadPartition, RunUnit, UnitFailed, UnitFinished
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Checkpoint, Unit

pytestmark = pytest.mark.slow


def reported(dataset: Dataset, model_fn: Callable[[Any], Any], *orders: RunUnit) -> list[UnitFinished | UnitFailed]:
    """What a worker reports of units that it is told to run, one after another."""
    said: list[FromWorker] = []
    worker = Worker(
        "w0", Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn), framework="torch")), said.append
    )
    worker.take(LoadPartition("w0", dataset.train[0].id))
    for order in orders:
        worker.take(order)
    worker.take(Stop())
    worker.work()
    return [message for message in said if isinstance(message, UnitFinished | UnitFailed)]


def wide_model_fn(params: Any) -> Any:
    """Another architecture under the same name."""
    import torch
    from torch import nn

    from cerebro_spark.trainer.torch.model import TorchModel

    module = nn.Sequential(nn.Linear(FEATURES, 9), nn.Linear(9, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.Adam(module.parameters()), nn.BCEWithLogitsLoss())


def unsavable_model_fn(params: Any) -> Any:
    model = torch_model_fn(params)

    class Odd(type(model.module[0])):  # type: ignore[misc]
        def get_extra_state(self) -> Any:
            return object()

        def set_extra_state(self, state: Any) -> None:
            pass

    model.module[0].__class__ = Odd
    return model


def trained(dataset: Dataset) -> Checkpoint:
    """The checkpoint of a first unit, in the store."""
    (report,) = reported(dataset, torch_model_fn, RunUnit("w0", Unit("t0", 1, dataset.train[0].id), 1, {}, step=1))
    assert isinstance(report, UnitFinished)
    assert report.checkpoint is not None
    return report.checkpoint


def second(dataset: Dataset, parent: Checkpoint) -> RunUnit:
    return RunUnit("w0", Unit("t0", 2, dataset.train[0].id), 2, {}, parent, step=1)


def test_a_state_that_no_file_can_hold_is_its_trials_fault(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    first = RunUnit("w0", Unit("t0", 1, dataset.train[0].id), 1, {}, step=1)
    (report,) = reported(dataset, unsavable_model_fn, first)
    assert isinstance(report, UnitFailed)
    assert report.blame == "trial"
    assert "a checkpoint cannot hold" in report.error


def test_a_model_that_does_not_fit_its_file_is_its_trials_fault(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    (report,) = reported(dataset, wide_model_fn, second(dataset, trained(dataset)))
    assert isinstance(report, UnitFailed)
    assert report.blame == "trial"
    assert "the architecture that wrote it" in report.error


def weights(data: bytes) -> int:
    """Where the first array begins."""
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:4],
        lambda data: data[: weights(data)] + bytes([data[weights(data)] ^ 1]) + data[weights(data) + 1 :],
        lambda data: data.replace(b"0.weight", b"7.weight"),  # the names are whole, and those of no model
        lambda data: data.replace(b'"version":"', b'"version":"9', 1),
        None,
    ],
    ids=["cut", "stub", "bit", "name", "release", "gone"],
)
def test_a_file_that_is_not_what_was_written_is_tried_again(tmp_path: Path, damage: Any) -> None:
    dataset = small_dataset(tmp_path)
    parent = trained(dataset)
    name = paths.checkpoint("r1", parent)
    data = dataset.store.read(name)
    dataset.store.delete(name)
    if damage is not None:
        assert damage(data) != data
        dataset.store.write(name, damage(data))
    (report,) = reported(dataset, torch_model_fn, second(dataset, parent))
    assert isinstance(report, UnitFailed)
    assert report.blame == "worker", report.error
