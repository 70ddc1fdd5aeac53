"""Bundles on real workers come to the weights of a plain loop, whoever is killed, and replays agree bit for bit."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from observing import each_event
from plain_loop import check_run, logged
from small_driver import SEED
from small_search import small_dataset, torch_model_fn

from cerebro_spark import hp, runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, UnitFinished, WorkerLost
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.base import Hooks, Trainer
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm
from cerebro_spark.types import Objective

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EPOCHS = 3
CONFIGURATIONS: list[dict[str, Any]] = [{"lr": 0.002 * (1 + n), "batch_size": 16} for n in range(9)]


def any_width() -> type[Trainer]:
    """A trainer that does not ask which width is fastest: that depends on the machine, and on who else uses it."""
    from cerebro_spark.trainer.torch.trainer import TorchTrainer

    class AnyWidth(TorchTrainer):
        widths_are_tried = False

    return AnyWidth


def fused_recipe(folder: Path) -> Recipe:
    dataset = small_dataset(folder, partitions=3)
    trainer = TrainerSpec(Hooks(torch_model_fn), seed=SEED, framework=any_width())
    return Recipe(FixedSearch(CONFIGURATIONS, EPOCHS), Objective("val_loss", "min"), dataset, trainer, fuse=4)


def widths(events: Sequence[Event]) -> set[int]:
    return {event.width for event in events if isinstance(event, UnitFinished) and event.unit.kind == "train"}


def widest_order(store: Store, run: str, kind: str) -> int:
    """How many units of a kind were given out in one order at most."""
    orders = [order for turn in EventLog(store, run).turns() for outcome in turn.outcomes for order in outcome.orders]
    bundles = [order.bundle for order in orders if order.unit.kind == kind and order.bundle is not None]
    return max(Counter(bundles).values(), default=1)


def pids(backend: LocalBackend) -> list[int]:
    return [handle.pid for handle in backend._run.pool.handles.values() if handle.pid]


def test_every_member_has_the_weights_of_a_plain_loop(tmp_path: Path) -> None:
    recipe = fused_recipe(tmp_path)
    runs.execute(recipe, recipe.dataset.store, LocalBackend(2, threads=1), "r1")
    events = check_run(recipe.dataset, "r1", len(CONFIGURATIONS), EPOCHS, SEED)
    assert max(widths(events)) > 1
    assert widest_order(recipe.dataset.store, "r1", "eval") > 1


def test_workers_with_bundles_are_killed_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    recipe, backend = fused_recipe(tmp_path), LocalBackend(2, threads=1)
    trained: list[Event] = []

    @each_event
    def kill(event: Event) -> None:
        if isinstance(event, UnitFinished) and event.unit.kind == "train":
            trained.append(event)
            if len(trained) in (10, 30):
                os.kill(max(pids(backend)), signal.SIGKILL)

    runs.execute(recipe, recipe.dataset.store, backend, "r1", [kill])
    events = check_run(recipe.dataset, "r1", len(CONFIGURATIONS), EPOCHS, SEED)
    assert sum(isinstance(event, WorkerLost) for event in events) >= 1
    assert max(widths(events)) > 1


def test_asha_in_bundles_is_replayed_without_them_and_that_in_bundles_bit_for_bit(tmp_path: Path) -> None:
    recipe, objective = fused_recipe(tmp_path), Objective("val_loss", "min")
    space = {"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 16}
    recipe = replace(recipe, search=ASHAAlgorithm(space, objective, num_trials=9, max_epochs=9, max_concurrent=9))
    store = recipe.dataset.store
    runs.execute(recipe, store, LocalBackend(2, threads=1), "r1")
    alone = runs.replay(store, "r1", LocalBackend(1, threads=1))  # it compares the digest of every unit
    together = runs.replay(store, alone, LocalBackend(2, threads=1), fuse=4)
    assert max(widths(logged(store, "r1"))) > 1
    assert widths(logged(store, alone)) == {1}
    assert (widest_order(store, "r1", "eval") > 1, widest_order(store, alone, "eval")) == (True, 1)
    assert max(widths(logged(store, together))) > 1
