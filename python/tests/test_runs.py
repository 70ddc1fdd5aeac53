"""Runs begin once or not at all, end early without harm, and go on from where they stopped: in virtual time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plain_loop import judged, logged
from small_driver import Stop, small_recipe, stopping_after
from small_search import small_dataset

from cerebro_spark import hold, runs
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import (
    ConfigurationError,
    EventLogError,
    NotFoundInStore,
    PreflightFailed,
    StoreError,
    StoreForbidden,
)
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Action,
    DeleteCheckpoint,
    Event,
    FailRun,
    PartitionLoaded,
    RunStarted,
    RunUnit,
    Settings,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.recipe import Recipe
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.types import Checkpoint, Objective, Partition, Unit, Work

TESTS = Path(__file__).parent
WORLD = World(cost=lambda params: 1.0)


def simulated(workers: int = 2) -> SimulatedBackend:
    return SimulatedBackend([SimulatedWorker(f"w{i}") for i in range(workers)], WORLD)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set that no test writes to; runs go to stores of their own."""
    return small_dataset(tmp_path_factory.mktemp("data"), partitions=3)


# -- before anything is launched


def test_a_run_has_an_id_that_tells_its_time_and_can_be_read(template: Dataset, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    recipe = small_recipe(template, 2)
    first, second = (runs.execute(recipe, store, simulated()) for _ in range(2))
    assert re.fullmatch(r"20\d{6}-\d{6}-[0-9a-f]{6}", first)
    assert first != second
    found, events = runs.read(store.url, first)
    assert isinstance(events[0], RunStarted)
    assert events[0].run == first
    assert found.search.ask() == small_recipe(template, 2).search.ask(), "the recipe is as it was before the run"
    again = runs.read(store, second)[1]
    assert [e for e in again if isinstance(e, UnitFinished)] == [e for e in events if isinstance(e, UnitFinished)]


def test_an_id_is_taken_once(template: Dataset, tmp_path: Path) -> None:
    runs.execute(small_recipe(template, 1), tmp_path, simulated(), "mine")
    before = LocalStore(tmp_path).list()
    with pytest.raises(ConfigurationError, match=r"has a run 'mine' already.*cs\.resume"):
        runs.execute(small_recipe(template, 1), tmp_path, Untouchable(), "mine")
    assert LocalStore(tmp_path).list() == before
    with pytest.raises(ConfigurationError, match=r"the run id is '\.\./x'"):
        runs.execute(small_recipe(template, 1), tmp_path, Untouchable(), "../x")


class Meeting(LocalStore):
    """All who want an id have seen that it is free before any of them takes it."""

    def __init__(self, root: Path, barrier: threading.Barrier) -> None:
        super().__init__(root)
        self._barrier = barrier

    def exists(self, name: str) -> bool:
        found = super().exists(name)
        if name == paths.run_folder("mine"):
            self._barrier.wait(30)
        return found


def test_of_several_that_start_the_same_recipe_under_one_id_at_once_one_has_it(
    template: Dataset, tmp_path: Path
) -> None:
    """Their recipes are the same bytes, which a store takes for one write that was sent twice."""
    store = Meeting(tmp_path, threading.Barrier(4))

    def start(_: int) -> str:
        try:
            return runs.execute(small_recipe(template, 1), store, simulated(), "mine", progress=False)
        except ConfigurationError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(start, range(4)), key=len)
    assert said[0] == "mine"
    assert all("has a run 'mine' already" in other for other in said[1:])
    assert judged(logged(LocalStore(tmp_path), "mine"))[0].finished


class Untouchable(SimulatedBackend):
    """Nothing may be launched on it."""

    def __init__(self) -> None:
        super().__init__([SimulatedWorker("w0")], WORLD)

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        raise AssertionError("something was launched")


class ReadOnly(LocalStore):
    """What a store looks like to somebody who may only read; chmod means nothing to root, as whom tests may run."""

    def _stage(self, name: str) -> Any:
        with self._errors(name):
            raise PermissionError(13, "Permission denied")


class Unreachable(LocalStore):
    def _stage(self, name: str) -> Any:
        with self._errors(name):
            raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("kind", "error", "fix"),
    [(ReadOnly, StoreForbidden, "where you may write"), (Unreachable, StoreError, "the address is right")],
)
def test_an_unwritable_store_is_said_before_anything_is_launched(
    kind: type[LocalStore], error: type[StoreError], fix: str, template: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(error, match=rf"the store file://.* cannot be written.*{fix}"):
        runs.execute(small_recipe(template, 1), kind(tmp_path), Untouchable())
    runs.execute(small_recipe(template, 1), tmp_path, simulated(), "r1")
    with pytest.raises(error, match=rf"the store file://.* cannot be written.*{fix}"):
        runs.resume(kind(tmp_path), "r1", Untouchable())


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    runs.check_writable(LocalStore(tmp_path))
    assert LocalStore(tmp_path).list() == []


def test_functions_that_cannot_be_sent_are_said_before_anything_is_launched(template: Dataset, tmp_path: Path) -> None:
    lock = threading.Lock()
    recipe = Recipe(FixedSearch([{}], 1), Objective("val_loss", "min"), template, Hooks(lambda params: lock))
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        runs.execute(recipe, tmp_path, Untouchable())
    assert LocalStore(tmp_path).list() == []


class Refusing(SimulatedBackend):
    def rehearse(self, params: Any) -> str | None:
        return "no such layer"


def test_a_run_that_never_began_leaves_its_id_free(template: Dataset, tmp_path: Path) -> None:
    with pytest.raises(PreflightFailed) as caught:
        runs.execute(small_recipe(template, 1), tmp_path, Refusing([SimulatedWorker("w0")], WORLD), "mine")
    assert getattr(caught.value, "__notes__", []) == [], "there is nothing to resume"
    assert LocalStore(tmp_path).list() == []
    runs.execute(small_recipe(template, 1), tmp_path, simulated(), "mine")


def test_a_run_that_is_not_there_is_said_with_those_that_are(template: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFoundInStore, match="has no run 'r2': there are none yet"):
        runs.resume(tmp_path, "r2", Untouchable())
    runs.execute(small_recipe(template, 1), tmp_path, simulated(), "r1")
    with pytest.raises(NotFoundInStore, match="has no run 'r2': there are r1"):
        runs.resume(tmp_path, "r2", Untouchable())


def test_a_recipe_that_was_exchanged_is_not_opened(template: Dataset, tmp_path: Path) -> None:
    runs.execute(small_recipe(template, 1), tmp_path, simulated(), "r1")
    store = LocalStore(tmp_path)
    store.delete(paths.functions("r1"))
    store.write(paths.functions("r1"), b"cos\nsystem\n(S'echo pwned'\ntR.")
    with pytest.raises(EventLogError, match="digest differs"):
        runs.resume(store, "r1", Untouchable())


# -- stopping and going on, in virtual time


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_that_was_stopped_goes_on_with_any_number_of_workers(
    workers: int, template: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        runs.execute(small_recipe(template, 2), tmp_path, simulated(), "r1", [stopping_after(7, KeyboardInterrupt())])
    how = f'run r1 can be resumed: cs.resume("{LocalStore(tmp_path).url}", "r1", backend=...)'
    assert caught.value.__notes__ == [how]
    assert how in caplog.text
    before = logged(LocalStore(tmp_path), "r1")
    runs.resume(tmp_path, "r1", simulated(workers))
    after = logged(LocalStore(tmp_path), "r1")
    assert after[: len(before)] == before
    scheduler, counted = judged(after)
    assert scheduler.finished
    assert sorted(len(order) for order in counted.values()) == [6, 6, 6, 6]
    runs.resume(tmp_path, "r1", Untouchable())
    assert logged(LocalStore(tmp_path), "r1") == after, "a run that came to its end stays as it is"


def test_a_run_whose_driver_died_while_it_waited_for_workers_goes_on_with_fewer(
    template: Dataset, tmp_path: Path
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, WorkerJoined):
            raise Stop

    with pytest.raises(Stop):
        runs.execute(small_recipe(template, 1), tmp_path, simulated(4), "r1", [stop])
    runs.resume(tmp_path, "r1", simulated(2))
    assert judged(logged(LocalStore(tmp_path), "r1"))[0].finished


def test_a_store_that_fails_workers_ends_the_run_and_no_trial() -> None:
    scheduler = MopScheduler(Settings((Partition("p0"),), workers=1))
    for event in (WorkAdded(0.0, Work("t0", {}, 1)), WorkerJoined(0.0, "w0"), PartitionLoaded(0.0, "w0", "p0")):
        scheduler.handle(event)
    for attempt in range(1, 9):
        actions = scheduler.handle(UnitFailed(1.0, "w0", Unit("t0", 1, "p0"), attempt, "StoreFull: no room", "store"))
        assert FailRun("the store failed worker w0 with t0/1/p0: StoreFull: no room") in actions
        scheduler.check_invariants()
    assert scheduler.state.trials["t0"].status == "training"


# -- checkpoints that nobody would ever delete


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
    late = [lambda event: write(store, ORPHANS) if isinstance(event, RunStarted) else None]
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
        self._log.append([WorkerLost(at, "nobody")])


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


# -- who holds a run


class Paused:
    """An observer that lets a driver get so far, and no further until it may."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.go = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, UnitFinished):
            self.there.set()
            assert self.go.wait(60)


def test_a_run_whose_driver_lives_is_refused_with_who_holds_it(
    template: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cerebro_spark.hold.EVERY", 0.02)
    monkeypatch.setattr("cerebro_spark.hold._LOOK", 0.02)
    paused = Paused()
    with ThreadPoolExecutor(1) as pool:
        alive = pool.submit(runs.execute, small_recipe(template, 2), tmp_path, simulated(), "r1", [paused])
        assert paused.there.wait(60)
        with pytest.raises(EventLogError, match=rf"run r1: process {os.getpid()} on .* since 20.* UTC") as caught:
            runs.resume(tmp_path, "r1", Untouchable())
        assert getattr(caught.value, "__notes__", []) == []
        paused.go.set()
        assert alive.result(60) == "r1", "the first driver does not even notice"
    assert "looking for up to 30 s" in caplog.text
    assert judged(logged(LocalStore(tmp_path), "r1"))[0].finished
    assert LocalStore(tmp_path).list(paths.beats("r1")) == []


def test_a_run_that_is_taken_over_ends_where_it_was(template: Dataset, tmp_path: Path) -> None:
    paused = Paused()
    with ThreadPoolExecutor(1) as pool:
        alive = pool.submit(runs.execute, small_recipe(template, 2), tmp_path, simulated(), "r1", [paused])
        assert paused.there.wait(60)
        runs.resume(tmp_path, "r1", simulated(), take_over=True)
        after = logged(LocalStore(tmp_path), "r1")
        paused.go.set()
        with pytest.raises(EventLogError, match="another driver goes on with run r1"):
            alive.result(60)
    assert judged(after)[0].finished
    assert logged(LocalStore(tmp_path), "r1") == after


def test_a_run_whose_driver_was_killed_goes_on_after_a_while(
    template: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(template, LocalStore(tmp_path))
    LocalStore(tmp_path).write(paths.beat("r1", "dead", 7), b'{"by": "process 7 on mars", "since": "yesterday"}')
    slept: list[float] = []
    patient = partial(hold.wait_until_free, clock=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("cerebro_spark.runs.wait_until_free", patient)
    runs.resume(tmp_path, "r1", simulated())
    assert sum(slept) == 30.0
    assert judged(logged(LocalStore(tmp_path), "r1"))[0].finished
    runs.resume(tmp_path, "r1", Untouchable())
    assert sum(slept) == 30.0, "who ended well has left no doubt"
