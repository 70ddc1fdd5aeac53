"""Checkpoints that a driver left are deleted by the next, and by nobody who does not own the run any more."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from observing import each_event
from plain_loop import judged, logged
from small_driver import small_recipe
from small_search import small_dataset
from virtual_runs import ORPHANS, WORLD, Untouchable, checkpoints, simulated, stopped, write

from cerebro_spark import runs
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import (
    EventLogError,
    StoreError,
)
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Action,
    Event,
    RunStarted,
    RunUnit,
    WorkerLost,
)
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn
from cerebro_spark.types import Partition


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set that no test writes to; runs go to stores of their own."""
    return small_dataset(tmp_path_factory.mktemp("data"), partitions=3)


class Noting(LocalStore):
    """Notes when checkpoints are listed, and orders given; knows what was deleted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.notes: list[str] = []
        self._deleted: set[str] = set()
        self._news = threading.Condition()

    def delete(self, name: str) -> None:
        super().delete(name)
        with self._news:
            self._deleted.add(name)
            self._news.notify_all()

    def wait_until_deleted(self, names: Sequence[str]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self._deleted.issuperset(names), timeout=30)

    def list(self, folder: str = "") -> list[str]:
        if folder == paths.checkpoint_folder("r1"):
            self.notes.append("listed")
        return super().list(folder)


class Ordered(SimulatedBackend):
    """Notes when units are ordered."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__([SimulatedWorker("w0"), SimulatedWorker("w1")], WORLD)
        self._notes = notes

    def submit(self, action: Action) -> None:
        if isinstance(action, RunUnit):
            self._notes.append("ordered")
        super().submit(action)


def test_a_driver_that_takes_over_deletes_what_its_predecessor_left_before_it_orders_anything(
    template: Dataset, tmp_path: Path
) -> None:
    store = Noting(tmp_path)
    kept, given_up = stopped(template, store)
    orphans = write(store, ORPHANS)
    foreign = f"{paths.checkpoint_folder('r1')}/notes.txt"
    store.write(foreign, b"mine")
    assert checkpoints(store) == sorted([*kept, *given_up, *orphans, foreign])
    store.notes.clear()
    swept: list[list[str]] = []

    @each_event
    def look(event: Event) -> None:
        if not swept:
            store.wait_until_deleted([*given_up, *orphans])
            swept.append(checkpoints(LocalStore(tmp_path)))

    runs.resume(store, "r1", Ordered(store.notes), [look])
    assert swept == [sorted([*kept, foreign])], "nothing else is touched"
    assert (store.notes[0], set(store.notes[1:-1]), store.notes[-1]) == ("listed", {"ordered"}, "listed")


def test_a_run_that_came_to_its_end_is_rid_of_what_its_driver_left(template: Dataset, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    runs.execute(small_recipe(template, 2), store, simulated(), "r1")
    kept = write(store, list(judged(logged(store, "r1"))[0].state.retention.kept()))
    assert len(kept) == 4
    write(store, ORPHANS)
    runs.resume(store, "r1", Untouchable())
    assert checkpoints(store) == kept


def test_a_checkpoint_that_was_written_and_never_logged_is_gone_at_the_end(template: Dataset, tmp_path: Path) -> None:
    """Its worker was given up, and spoke up when the search was over: nobody listened any more."""
    store = LocalStore(tmp_path)
    late = [each_event(lambda event: write(store, ORPHANS) if isinstance(event, RunStarted) else None)]
    runs.execute(small_recipe(template, 1), store, simulated(), "r1", late)
    assert checkpoints(store) == []


class NoLists(LocalStore):
    def list(self, folder: str = "") -> list[str]:
        if folder == paths.checkpoint_folder("r1"):
            raise StoreError("lists are out today")
        return super().list(folder)


class NoDeletions(LocalStore):
    tried = 0

    def delete(self, name: str) -> None:
        if name.startswith(paths.checkpoint_folder("r1")):
            self.tried += 1
            raise StoreError("deletions are out today")
        super().delete(name)


@pytest.mark.parametrize("kind", [NoLists, NoDeletions])
def test_a_store_that_cannot_be_swept_holds_nothing_up(
    kind: type[LocalStore], template: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = kind(tmp_path)
    kept, given_up = stopped(template, store)
    left = sorted([*kept, *given_up, *write(store, ORPHANS)])
    runs.resume(store, "r1", simulated(), store_patience=0.1)
    assert judged(logged(store, "r1"))[0].finished
    assert "are out today" in caplog.text
    assert "stay for now" in caplog.text
    assert checkpoints(LocalStore(tmp_path)) == left
    if isinstance(store, NoDeletions):
        assert store.tried <= 2 * 3, "of each sweep the first failure is the last"
    runs.resume(tmp_path, "r1", Untouchable())
    assert set(checkpoints(LocalStore(tmp_path))).isdisjoint(left), "the next driver finds it"


class Raced(SimulatedBackend):
    """While its workers start, the driver that was thought dead goes on."""

    def __init__(self, log: EventLog) -> None:
        super().__init__([SimulatedWorker("w0")], WORLD)
        self._log = log

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        super().start(partitions, at)
        self._log.append(Turn([WorkerLost(at, "nobody")]))


def test_a_driver_that_lives_loses_no_checkpoint_to_one_that_believes_it_dead(
    template: Dataset, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    kept, _ = stopped(template, store)
    before = sorted({*checkpoints(store), *write(store, ORPHANS), *kept})
    with pytest.raises(EventLogError, match="another driver goes on"):
        runs.resume(store, "r1", Raced(EventLog(store, "r1")))
    assert checkpoints(store) == before


class TakenOver(LocalStore):
    """While checkpoints are listed, another driver takes the run over, and its workers write theirs."""

    taken = False

    def list(self, folder: str = "") -> list[str]:
        if folder == paths.checkpoint_folder("r1") and not self.taken:
            self.taken = True
            EventLog(LocalStore(self.root), "r1").claim()
            write(self, ORPHANS)
        return super().list(folder)


def test_a_driver_that_was_taken_over_deletes_nothing_of_its_successors(template: Dataset, tmp_path: Path) -> None:
    store = TakenOver(tmp_path)
    kept, given_up = stopped(template, LocalStore(tmp_path))
    with pytest.raises(EventLogError, match="another driver goes on"):
        runs.resume(store, "r1", simulated())
    assert checkpoints(LocalStore(tmp_path)) == sorted(
        [*kept, *given_up, *(paths.checkpoint("r1", checkpoint) for checkpoint in ORPHANS)]
    )
