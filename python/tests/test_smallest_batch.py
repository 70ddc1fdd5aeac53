"""A run says in its log which last batches it folds, and whoever goes on with it or repeats it does the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from observing import each_event
from plain_loop import logged
from small_search import FEATURES, small_dataset

from cerebro_spark import recipe as recipes
from cerebro_spark import runs
from cerebro_spark.codec import decode, encode
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import Event, RunStarted, Settings, UnitFailed, UnitFinished
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import Objective, Partition

ROWS = 44  # 33 to train on, which is a batch of 32 and a single row


def normed(params: dict[str, Any]) -> TorchModel:
    import torch

    layers = [torch.nn.Linear(FEATURES, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)]
    module = torch.nn.Sequential(*layers)
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss())


def plain(params: dict[str, Any]) -> TorchModel:
    import torch

    module = torch.nn.Linear(FEATURES, 1)
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss())


def recipe_of(dataset: Dataset, model_fn: Any, epochs: int = 1) -> Recipe:
    search = FixedSearch([{"batch_size": 32}], epochs)
    return Recipe(search, Objective("val_loss", "min"), dataset, TrainerSpec(Hooks(model_fn), framework="torch"))


def digests(events: list[Event]) -> list[str]:
    return [e.checkpoint.digest for e in events if isinstance(e, UnitFinished) and e.checkpoint is not None]


def rule(events: list[Event]) -> int:
    start = events[0]
    assert isinstance(start, RunStarted)
    return start.settings.smallest_batch


def test_a_log_of_old_means_the_rule_of_old() -> None:
    settings = Settings((Partition("p0"),), workers=1, smallest_batch=2)
    line = json.loads(encode(RunStarted(0.0, "r1", settings)))
    assert decode(json.dumps(line)) == RunStarted(0.0, "r1", settings)
    del line["settings"]["smallest_batch"]
    assert rule([decode(json.dumps(line))]) == 1


@pytest.mark.slow
def test_batch_norm_trains_whatever_is_left_over(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, ROWS, partitions=1)
    assert [partition.rows for partition in dataset.train] == [33]
    runs.execute(recipe_of(dataset, normed), dataset.store, kept_backend(1), "r1", progress=False)
    events = logged(dataset.store, "r1")
    assert rule(events) == 2
    assert len(digests(events)) == 1
    assert not any(isinstance(event, UnitFailed) for event in events)


@pytest.mark.slow
def test_old_runs_are_resumed_and_repeated_by_their_own_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_backend: KeptWorkers
) -> None:
    dataset = small_dataset(tmp_path, ROWS, partitions=1)

    @each_event
    def stop(event: Event) -> None:
        if isinstance(event, UnitFinished):
            raise KeyboardInterrupt

    backend = kept_backend(1)
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "SMALLEST_BATCH", 1)
        runs.execute(recipe_of(dataset, plain, 2), dataset.store, backend, "old", progress=False)
        with pytest.raises(KeyboardInterrupt):
            runs.execute(recipe_of(dataset, plain, 2), dataset.store, backend, "cut", [stop], progress=False)
    runs.execute(recipe_of(dataset, plain, 2), dataset.store, backend, "new", progress=False)
    runs.resume(dataset.store, "cut", backend, progress=False)
    runs.replay(dataset.store, "old", backend, "again", progress=False)
    old, cut, new, again = (logged(dataset.store, run) for run in ("old", "cut", "new", "again"))
    assert [rule(events) for events in (old, cut, new, again)] == [1, 1, 2, 1]
    assert digests(old) == digests(cut) == digests(again)
    assert not set(digests(old)) & set(digests(new)), "the rules differ in what they come to"
