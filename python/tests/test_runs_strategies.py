"""A run by a strategy comes to the weights of a plain one, says so in its log, and is replayed by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from small_driver import CONFIGURATIONS, SEED, small_recipe
from small_search import FEATURES, small_dataset

from cerebro_spark import runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import UnitFinished
from cerebro_spark.recipe import Recipe
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def model_fn(params: Mapping[str, Any]) -> Any:
    import torch

    from cerebro_spark.trainer import TorchModel

    layers = [torch.nn.Linear(FEATURES, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    module = torch.nn.Sequential(
        *layers, torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1), torch.nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss())


def recipe_of(dataset: Dataset, strategy: str) -> Recipe:
    spec = TrainerSpec(Hooks(model_fn), seed=SEED).with_resources(strategy=strategy)
    return replace(small_recipe(dataset, 2), trainer=spec, fuse=4)


def trained(dataset: Dataset, run: str) -> dict[Any, UnitFinished]:
    events = EventLog(dataset.store, run).read()
    return {each.unit: each for each in events if isinstance(each, UnitFinished) and each.unit.kind == "train"}


def digests(units: Mapping[Any, UnitFinished]) -> dict[Any, str]:
    return {unit: event.checkpoint.digest for unit, event in units.items() if event.checkpoint}


def test_a_run_by_a_strategy(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=2)
    runs.execute(recipe_of(dataset, "recompute"), dataset.store, kept_backend(2), "r1")
    first = trained(dataset, "r1")
    assert len(first) == len(CONFIGURATIONS) * 2 * 2
    assert {(each.strategy, each.steps, each.width) for each in first.values()} == {("recompute", "eager", 1)}
    runs.replay(dataset.store, "r1", kept_backend(2), "r2")
    second = trained(dataset, "r2")
    assert {each.strategy for each in second.values()} == {"recompute"}
    assert digests(second) == digests(first)


def parts_model_fn(params: Mapping[str, Any]) -> Any:
    import torch

    from cerebro_spark.trainer import TorchModel

    layers = [torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 7), torch.nn.Linear(7, 1)]
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(0))
    return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), torch.nn.BCEWithLogitsLoss())


def test_a_run_in_parts(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    spec = TrainerSpec(Hooks(parts_model_fn), seed=SEED).with_resources(strategy="shard")
    recipe = replace(small_recipe(dataset, 2), trainer=spec, group=2)
    runs.execute(recipe, dataset.store, kept_backend(3), "r1")
    first = trained(dataset, "r1")
    # A third partition is left, which one worker trains as a whole.
    assert {(len(each.workers), each.strategy) for each in first.values()} == {(2, "shard"), (1, "plain")}
    runs.replay(dataset.store, "r1", kept_backend(3), "r2")
    second = trained(dataset, "r2")
    assert {(len(each.workers), each.strategy) for each in second.values()} == {(2, "shard"), (1, "plain")}
    assert digests(second) == digests(first)
