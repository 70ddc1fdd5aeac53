"""Large metric states go through the store: log and wire stay small, values exact, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from observing import each_event
from plain_loop import logged
from small_search import FEATURES, small_dataset

from cerebro_spark import runs
from cerebro_spark.backend.driver.deletions import MetricStateFiles
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.metric_states import LIMIT, digest_states, load_states, store_large_states
from cerebro_spark.codec import encode, from_plain, to_plain
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import StoreError
from cerebro_spark.events import Event, UnitFinished
from cerebro_spark.recipe import Recipe
from cerebro_spark.scheduling.evaluations import infer_merging
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import CarriedFile, Metrics, Objective, Unit

LARGE = Metrics({"loss": 1.0}, {"loss": 2.0}, carried={"auc": {"seen": [0.1] * 30_000}})
SMALL = Metrics({"loss": 1.0}, {"loss": 2.0}, carried={"auc": {"seen": [0.1]}})


def job_in(store: Any) -> Job:
    return Job("r1", store, None, TrainerSpec(Hooks(lambda params: None)))  # type: ignore[arg-type]  # the data are not looked at


def test_a_large_state_comes_back_as_it_was(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    light = store_large_states(LARGE, job_in(store), "t0", 7, final=False)
    assert light.carried == {}
    assert light.stored is not None
    assert light.stored.name == paths.carried("r1", "t0", 7)
    assert len(json.dumps(to_plain(light, "metrics"))) < 1000
    logged_light = from_plain(Metrics, to_plain(light, "metrics"))
    assert logged_light == light
    assert infer_merging(logged_light) == "carried"
    assert load_states(logged_light, store) == LARGE
    assert digest_states(light) == digest_states(LARGE), "an old log, which has it whole, compares with a new one"


def test_a_small_state_stays_where_it_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert store_large_states(SMALL, job_in(store), "t0", 7, final=False) is SMALL
    assert load_states(SMALL, store) is SMALL
    assert load_states(None, store) is None
    assert list(store.list("runs")) == []


def test_the_last_state_of_an_epoch_is_needed_by_nobody(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    light = store_large_states(LARGE, job_in(store), "t0", 7, final=True)
    assert light.stored is not None
    assert (light.stored.name, light.stored.digest) == ("", digest_states(LARGE))
    assert infer_merging(light) == "carried"
    assert list(store.list("runs")) == []


def test_another_file_in_its_place_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    light = store_large_states(LARGE, job_in(store), "t0", 7, final=False)
    store.delete(paths.carried("r1", "t0", 7))
    store.write(paths.carried("r1", "t0", 7), b"{}")
    with pytest.raises(StoreError, match=r"a7.json is not the metric state"):
        load_states(light, store)


def test_of_several_states_the_last_stands() -> None:
    one, two = (Metrics(stored=CarriedFile(f"a{n}", 9, str(n))) for n in (1, 2))
    assert Metrics.merge([one, two]).stored == two.stored
    assert Metrics.merge([SMALL, one]).carried == {}
    assert Metrics.merge([one, SMALL]) == Metrics({"loss": 1.0}, {"loss": 2.0}, {}, SMALL.carried)
    assert Metrics.merge([one, Metrics({"loss": 1.0}, {"loss": 1.0})]).stored == one.stored


def test_a_file_goes_once_a_later_unit_is_logged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    trial = TrialRecord("t0", 0, {}, 1)
    with MetricStateFiles(store, "r1") as files:
        for attempt, partition in enumerate(("p0", "p1", "p2")):
            light = store_large_states(LARGE, job_in(store), "t0", attempt, final=partition == "p2")
            trial.trained[partition] = light
            files.note(UnitFinished(0.0, "w0", Unit("t0", 1, partition), attempt, 1.0, metrics=light), {"t0": trial})
            files._pool.submit(lambda: None).result()
            expected = [] if partition == "p2" else [paths.carried("r1", "t0", attempt)]
            assert list(store.list("runs")) == expected


# Whole runs


class Bulky:
    """Counts positive labels, and keeps far more than it needs."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        import torch

        self.bulk = torch.arange(10_000, dtype=torch.float64) / 7
        self.positive, self.rows = 0.0, 0

    def update(self, output: Any, label: Any) -> None:
        self.positive += float(label.sum())
        self.rows += len(label)
        self.bulk = self.bulk + float(label.sum())

    def compute(self) -> float:
        return self.positive / self.rows


def bulky(params: Mapping[str, Any]) -> TorchModel:
    import torch

    module = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"])
    return TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss(), metrics={"positive": Bulky()})


def recipe_of(dataset: Dataset) -> Recipe:
    search = FixedSearch([{"lr": 0.1, "batch_size": 40}, {"lr": 0.2, "batch_size": 40}], 2)
    return Recipe(search, Objective("val_loss", "min"), dataset, TrainerSpec(Hooks(bulky), framework="torch"))


def stopping_after(units: int) -> Any:
    seen: list[Event] = []

    @each_event
    def observe(event: Event) -> None:
        if isinstance(event, UnitFinished):
            seen.append(event)
            if len(seen) == units:
                raise KeyboardInterrupt

    return observe


def values(events: list[Event]) -> set[tuple[str, float]]:
    found = [event for event in events if isinstance(event, UnitFinished) and event.values is not None]
    return {(event.unit.kind, round(event.values["positive"], 9)) for event in found if event.values}


@pytest.mark.slow
def test_whole_runs_keep_logs_small_and_values_exact(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    from cerebro_spark.data.loading.arrays import load_arrays

    dataset = small_dataset(tmp_path, 240, partitions=2)
    labels = {
        kind: [float(y) for p in parts for y in load_arrays(dataset, p)["label"]]
        for kind, parts in (("train", dataset.train), ("eval", dataset.validation))
    }
    expected = {(kind, round(sum(found) / len(found), 9)) for kind, found in labels.items()}
    assert len(dataset.validation) > 1
    backend = kept_backend(2)
    with pytest.raises(KeyboardInterrupt):
        runs.execute(recipe_of(dataset), dataset.store, backend, "r1", [stopping_after(5)], progress=False)
    runs.resume(dataset.store, "r1", backend, progress=False)
    runs.replay(dataset.store, "r1", backend, "r2", progress=False)
    for run in ("r1", "r2"):
        events = logged(dataset.store, run)
        assert values(events) == expected
        assert max(len(encode(event)) for event in events) < LIMIT
        stored = [e.metrics.stored for e in events if isinstance(e, UnitFinished) and e.metrics.stored]
        assert any(file.name for file in stored), "a state did go through the store"
        assert list(dataset.store.list(paths.carried_folder(run))) == []
