"""Whole runs and what their logs say of them, for tests that compare both with plain loops. It never trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observing import each_event
from plain_loops import Course, train_plainly
from safetensors.numpy import load
from trial_models import CONFIGURATIONS, FEATURES, MODEL_FNS

from cerebro_spark import runs
from cerebro_spark.backend.base import Backend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.engine import Observer
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, RunStarted, TellSearch, UnitFinished, WorkerJoined
from cerebro_spark.recipe import Recipe
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective, Unit

SEED = 11
EPOCHS = 3
PARTITIONS = 4
RUN = "r1"
_PREFIX = {"keras": "model/model/", "torch": "model/parameters/"}


def rows(count: int = 800) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes that a line divides, nearly."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, FEATURES)).astype("float32")
    return {"x": x, "y": (x.sum(axis=1) + rng.normal(size=count) > 0).astype("float32")}


@dataclass
class Told:
    """A run's story: its events, the units that count, what the search was told, and the weights after each epoch."""

    events: list[Event]
    units: list[UnitFinished] = field(default_factory=list)
    history: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    weights: dict[tuple[str, int], dict[str, np.ndarray[Any, Any]]] = field(default_factory=dict)

    @property
    def trained(self) -> list[UnitFinished]:
        return [event for event in self.units if event.unit.kind == "train"]

    @property
    def hosts(self) -> dict[str, str]:
        """Where each worker of the run was."""
        return {event.worker: event.host for event in self.events if isinstance(event, WorkerJoined)}


def run_to_end(
    framework: str,
    dataset: Dataset,
    store: Store,
    backend: Backend,
    observers: Sequence[Observer] = (),
    epochs: int = EPOCHS,
) -> Told:
    """Run all configurations, and tell what came of it."""
    weights: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    patient = RetryingStore(store)  # as the run itself is, also when a data node has just died

    @each_event
    def keep(event: Event) -> None:
        """Later epochs make the checkpoint of this one needless; just now it is there."""
        if isinstance(event, UnitFinished) and event.checkpoint and event.checkpoint.step == len(dataset.train):
            data = patient.read(paths.checkpoint(RUN, event.checkpoint))
            weights[event.checkpoint.name] = _weights(data, framework)

    recipe = Recipe(
        FixedSearch(CONFIGURATIONS, epochs),
        Objective("val_loss", "min"),
        dataset,
        TrainerSpec(Hooks(MODEL_FNS[framework]), seed=SEED, resources=Resources(threads=1)),
    )
    runs.execute(recipe, store, backend, RUN, [keep, *observers], progress=False)
    told = _retell(list(EventLog(store, RUN).read()))
    for event in told.trained:
        assert event.checkpoint is not None
        if event.checkpoint.name in weights:
            told.weights[event.unit.trial, event.unit.epoch] = weights[event.checkpoint.name]
    return told


def check_complete(told: Told, dataset: Dataset, epochs: int = EPOCHS) -> None:
    """Every trial saw every partition once an epoch, and was measured on every one."""
    wanted = [
        Unit(f"t{trial}", epoch, partition.id, kind)  # type: ignore[arg-type]
        for trial in range(len(CONFIGURATIONS))
        for epoch in range(1, epochs + 1)
        for kind, partitions in (("train", dataset.train), ("eval", dataset.validation))
        for partition in partitions
    ]
    assert sorted(event.unit for event in told.units) == sorted(wanted)


def check_against_plain_loop(told: Told, framework: str, dataset: Dataset, folder: Path, epochs: int = EPOCHS) -> None:
    """After every epoch of every trial: weights bit for bit, metrics up to the rounding of sums."""
    train = {partition.id: load_arrays(dataset, partition) for partition in dataset.train}
    measured = [load_arrays(dataset, partition) for partition in dataset.validation]
    validation = {name: np.concatenate([part[name] for part in measured]) for name in measured[0]}
    plain = train_plainly(framework, _courses(told, train), train, validation, folder)
    names = {f"{prefix}{name}" for prefix in ("", "val_") for name in ("loss", "accuracy", "auc")}
    assert set(told.history) == set(told.weights) == {(t, e) for t in plain for e in range(1, epochs + 1)}
    for (trial, epoch), found in told.weights.items():
        expected = plain[trial][epoch - 1]
        assert set(found) == set(expected.weights)
        for name, array in expected.weights.items():
            assert found[name].dtype == array.dtype
            assert found[name].tobytes() == array.tobytes(), f"{name} of {trial} after epoch {epoch}"
        assert set(told.history[trial, epoch]) == names
        assert told.history[trial, epoch] == pytest.approx(expected.metrics, rel=1e-5)
    learnt = [told.history[trial, 1]["val_loss"] - told.history[trial, epochs]["val_loss"] for trial in plain]
    assert min(learnt) > 0, "a test of training in which nothing is learnt tests nothing"


def _courses(told: Told, train: dict[str, Any]) -> dict[str, Course]:
    visits: dict[str, dict[int, list[tuple[str, np.ndarray[Any, Any]]]]] = {}
    for event in told.trained:
        unit = event.unit
        order = row_order(len(train[unit.partition]["label"]), SEED, unit.trial, unit.epoch, unit.partition)
        visits.setdefault(unit.trial, {}).setdefault(unit.epoch, []).append((unit.partition, order))
    return {
        trial: Course(_seed_of(trial), CONFIGURATIONS[int(trial[1:])], list(by_epoch.values()))
        for trial, by_epoch in visits.items()
    }


def _seed_of(trial: str) -> int:
    """What a trial is seeded with, said a second time: 32 bits of a hash of the run's seed and its name."""
    text = json.dumps([str(SEED), trial]).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")


def _weights(checkpoint: bytes, framework: str) -> dict[str, np.ndarray[Any, Any]]:
    """A checkpoint's weights by name, read by the library that defines the format; Keras' by their number."""
    prefix = _PREFIX[framework]
    found = {name.removeprefix(prefix): array for name, array in load(checkpoint).items() if name.startswith(prefix)}
    return {name[:4]: array for name, array in found.items()} if framework == "keras" else found


def _retell(events: list[Event]) -> Told:
    start = events[0]
    assert isinstance(start, RunStarted)
    scheduler = MopScheduler(start.settings)
    told = Told(events)
    for event in events:
        if isinstance(event, UnitFinished) and scheduler.expects(event):
            told.units.append(event)
        for action in scheduler.handle(event):
            if isinstance(action, TellSearch):
                assert not action.report.failed, action.report.error
                told.history[action.report.trial, action.report.epoch] = dict(action.report.metrics)
        scheduler.check_invariants()
    assert scheduler.finished
    return told
