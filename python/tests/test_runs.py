"""Runs begin once or not at all, end early without harm, and go on from where they stopped: in virtual time."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from observing import each_event
from plain_loop import judged, logged
from small_driver import Stop, small_recipe, stopping_after
from small_search import small_dataset
from virtual_runs import WORLD, Untouchable, simulated

from cerebro_spark import runs
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import (
    ConfigurationError,
    EventLogError,
    NotFoundInStore,
    PreflightFailed,
    StoreError,
    StoreForbidden,
)
from cerebro_spark.events import (
    Event,
    FailRun,
    PartitionLoaded,
    RunStarted,
    Settings,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.recipe import Recipe
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective, Partition, Unit, Work


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
    recipe = Recipe(
        FixedSearch([{}], 1), Objective("val_loss", "min"), template, TrainerSpec(Hooks(lambda params: lock))
    )
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
    @each_event
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
