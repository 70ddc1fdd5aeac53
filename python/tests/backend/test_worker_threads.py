"""Workers of one host do not fight: each burns CPU on as many threads as it owns, whatever its framework starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Settings
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BUSY = 0.25
"""Seconds of CPU. Every worker trains for several times as long; threads that only wait stay far below."""


def wide_dataset(folder: Path) -> Dataset:
    """Enough rows, wide enough, that every framework would use all the threads it may."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(8_000, 256)).astype("float32")
    data = {"x": x, "y": x[:, :4].sum(axis=1)}
    return prepare(data, store=str(folder / "store"), features="x", label="y", validation=0.1, partitions=2)


# Made inside functions, so that they are sent by value: a worker has no tests to import.


def torch_model() -> Callable[[Any], Any]:
    def model_fn(params: Any) -> Any:
        import torch
        from torch import nn

        from cerebro_spark.trainer.torch.model import TorchModel

        layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1), nn.Flatten(0)]
        module = nn.Sequential(*layers)
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=1e-4), nn.MSELoss())

    return model_fn


def keras_model() -> Callable[[Any], Any]:
    def model_fn(params: Any) -> Any:
        import keras

        wide = [keras.layers.Dense(1024, activation="relu") for _ in range(2)]
        model = keras.Sequential([*wide, keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(1e-4), loss="mse")
        return model

    return model_fn


def count_into(folder: Path) -> Callable[..., dict[str, float]]:
    """An `eval_fn` that writes down what each thread of its worker has burnt so far, and what pools there are."""

    def eval_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        import json
        import os
        import sys

        burnt = {}
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            burnt[thread] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        seen: dict[str, Any] = {"main": burnt.pop(str(os.getpid())), "others": list(burnt.values())}
        if "tensorflow" in sys.modules:
            pools = sys.modules["tensorflow"].config.threading
            seen["pools"] = [pools.get_intra_op_parallelism_threads(), pools.get_inter_op_parallelism_threads()]
        with open(folder / f"{os.getpid()}.json", "w") as file:
            json.dump(seen, file)
        return {"loss": 0.0, "rows": 1}

    return eval_fn


def burnt(tmp_path: Path, model_fn: Any, workers: int, threads: int) -> list[dict[str, Any]]:
    """What each worker's threads burnt in a run on so many workers, as they saw it after their last evaluation."""
    dataset = wide_dataset(tmp_path)
    counts = tmp_path / "counts"
    counts.mkdir()
    backend = LocalBackend(num_workers=workers, threads=threads)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn, eval_fn=count_into(counts)), seed=3)))
    settings = Settings(dataset.partitions, workers, queue_ahead=1, objective=Objective("val_loss", "min"))
    search = FixedSearch([{"batch_size": 512}, {"batch_size": 500}], 2)
    Engine(search, settings, backend, EventLog(dataset.store, "r1"), run="r1").run()
    seen = [json.loads(path.read_text()) for path in counts.iterdir()]
    assert len(seen) == workers
    return seen


@pytest.mark.parametrize(("workers", "threads"), [(2, 1), (1, 2)])
def test_torch_workers_burn_cpu_on_the_threads_they_own(tmp_path: Path, workers: int, threads: int) -> None:
    """PyTorch computes on the thread that trains and on helpers beside it."""
    for seen in burnt(tmp_path, torch_model(), workers, threads):
        assert sum(cpu > BUSY for cpu in seen["others"]) == threads - 1, seen
        assert seen["main"] > BUSY


@pytest.mark.parametrize(("workers", "threads"), [(2, 1), (1, 2)])
@pytest.mark.rare
def test_keras_workers_burn_cpu_on_the_threads_they_own(tmp_path: Path, workers: int, threads: int) -> None:
    """TensorFlow computes on its pools while the thread that trains waits for them."""
    for seen in burnt(tmp_path, keras_model(), workers, threads):
        assert seen["pools"] == [threads, threads]
        assert sum(cpu > BUSY for cpu in seen["others"]) == threads, seen
