"""Runs in virtual time, on stores of their own: what their tests share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from plain_loop import judged, logged
from small_driver import Stop, small_recipe, stopping_after

from cerebro_spark import runs
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import DeleteCheckpoint
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Checkpoint, Partition

WORLD = World(cost=lambda params: 1.0)


def simulated(workers: int = 2) -> SimulatedBackend:
    return SimulatedBackend([SimulatedWorker(f"w{i}") for i in range(workers)], WORLD)


class Untouchable(SimulatedBackend):
    """Nothing may be launched on it."""

    def __init__(self) -> None:
        super().__init__([SimulatedWorker("w0")], WORLD)

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        raise AssertionError("something was launched")


ORPHANS = [Checkpoint("t0", 1, 1, 9999), Checkpoint("t1", 2, 3, 9998), Checkpoint("stranger", 1, 1, 9997)]


def checkpoints(store: LocalStore) -> list[str]:
    return store.list(paths.checkpoint_folder("r1"))


def write(store: LocalStore, wanted: Sequence[Checkpoint]) -> list[str]:
    names = sorted(paths.checkpoint("r1", checkpoint) for checkpoint in wanted)
    for name in names:
        LocalStore(store.root).write(name, b"weights")
    return names


def stopped(template: Dataset, store: LocalStore) -> tuple[list[str], list[str]]:
    """A run that was stopped while it trained: what is kept of it, and what its last logged event gave up."""
    with pytest.raises(Stop):
        runs.execute(small_recipe(template, 2), store, simulated(), "r1", [stopping_after(7, Stop())])
    events = logged(store, "r1")
    scheduler = judged(events[:-1])[0]
    actions = scheduler.handle(events[-1])
    given_up = [action.checkpoint for action in actions if isinstance(action, DeleteCheckpoint)]
    assert given_up
    return write(store, list(scheduler.state.retention.kept())), write(store, given_up)
