"""A run from its beginning, or from where it stopped, to its end: new, resumed or replayed. It decides nothing.

Whatever ends a run early (an interrupt, a lost store, a dead driver), its log is whole and `resume` goes on from it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from cerebro_spark import recipe as recipes
from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.driver.checkpoints import CheckpointSweep
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.metric_states import MetricStateFiles
from cerebro_spark.engine import Engine, Observer
from cerebro_spark.errors import (
    AlreadyInStore,
    ConfigurationError,
    EventLogError,
    NotFoundInStore,
    ReplayDiverged,
    StoreError,
    StoreForbidden,
)
from cerebro_spark.eventlog import EventLog, signature
from cerebro_spark.events import Event, RunStarted, Settings, WorkerJoined
from cerebro_spark.hold import Hold, wait_until_free
from cerebro_spark.progress import Progress
from cerebro_spark.recipe import Recipe
from cerebro_spark.replay import Checker, ReplaySearch, Script
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import Search
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.patience import Patient

_log = logging.getLogger("cerebro_spark")

StoreLike = str | os.PathLike[str] | Store
PATIENCE = 120.0
"""Seconds for which a store that fails is tried again before the run ends."""
_PATIENCE_TO_SWEEP = 10.0
"""Seconds for which it is tried again where nothing but tidiness is at stake."""


def execute(
    recipe: Recipe,
    store: StoreLike,
    backend: Backend,
    run: str | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    *,
    led_by: Search | None = None,
    store_patience: float = PATIENCE,
) -> str:
    """Run a recipe to its end, and return the run's id: `run`, or a new one.

    The recipe stays as it is: what runs is the copy that lies beside the log, so that doing it twice does the same.
    What can be wrong before anything is launched is found before: functions that cannot be sent, a store that cannot be
    written, an id that is taken. `progress` asks for a bar (True), for none (False), or for one where somebody can see
    it (None). `led_by` is asked instead of the recipe's search: one that lives in this process alone, so that nobody
    can resume its run.
    """
    place = open_store(store)
    data, stores = recipes.pack(dataclasses.replace(recipe, dataset=backend.located(recipe.dataset)), place)
    name = _new_id() if run is None else paths.check_id(run)
    check_writable(place)
    _claim(place, name, data)
    copy = recipes.unpack(data, stores)
    if led_by is not None:
        copy = dataclasses.replace(copy, search=led_by)
    log = EventLog(Patient(place, seconds=store_patience), name)
    drive = _Drive(place, name, copy, backend, copy.settings(backend.num_workers), store_patience, log)
    drive.resumable = led_by is None
    try:
        with Hold(place, name, log.writer):
            drive(lambda engine: engine.run(), recipes.digest(data), observers, progress)
    except BaseException as error:
        if not drive.begun:
            _forget(place, name, error)
        raise
    return name


def resume(
    store: StoreLike,
    run: str,
    backend: Backend,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    *,
    threads: int | None = None,
    store_patience: float = PATIENCE,
    data_store: StoreLike | None = None,
    take_over: bool = False,
) -> Recipe:
    """Go on with a run whose driver died or was stopped; no finished unit is trained again. Returns its recipe.

    Workers compute with as many threads as the log says, because results depend on it; `threads` says otherwise. A run
    that came to its end stays as it is. A run whose driver left without a word is looked at for up to 30 seconds: if it
    lives, the run is left to it, with an EventLogError that says who it is. `take_over` does not look: a driver that
    lives then ends with such an error itself. Data that lies in the run's own store is read from `store`, whose address
    and credentials may be others than they were; `data_store` is where it lies otherwise.
    """
    place = open_store(store)
    recipe, events = read(place, run)
    recipe = _with_data(recipe, events, run, place, data_store)
    start = events[0]
    assert isinstance(start, RunStarted)
    check_writable(place)
    log = EventLog(Patient(place, seconds=store_patience), run)
    if not take_over:
        wait_until_free(Patient(place, seconds=store_patience), run)
    with Hold(place, run, log.writer):
        events = log.claim()
        copy = recipes.unpack(*recipes.pack(recipe))
        copy = with_threads(copy, threads or recipe.resources.threads or _threads(events))
        drive = _Drive(place, run, copy, backend, start.settings, store_patience, log, events)
        drive(lambda engine: engine.resume(), start.recipe, observers, progress)
    return recipe


def replay(
    store: StoreLike,
    run: str,
    backend: Backend,
    new: str | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    *,
    store_patience: float = PATIENCE,
    data_store: StoreLike | None = None,
) -> str:
    """Train a run again as it was trained, from its log, its recipe and its partitions; returns the id of the new run.

    Raises ReplayDiverged at the first unit that leaves other weights than it did then. `data_store` is where the data
    lies, if neither in `store` nor where it was.
    """
    place = open_store(store)
    recipe, events = read(place, run)
    recipe = _with_data(recipe, (), run, place, data_store)
    script = Script.of(events)
    again = with_threads(dataclasses.replace(recipe, search=ReplaySearch(script)), script.threads)
    return execute(again, place, backend, new, observers, progress, store_patience=store_patience)


def read(store: StoreLike, run: str) -> tuple[Recipe, list[Event]]:
    """A run as it lies in a store: what it is made from, and all that has happened.

    Raises NotFoundInStore for a run that is not there, EventLogError for one that is damaged.
    """
    place = open_store(store)
    events = list(EventLog(place, run).read())
    if not events:
        known = paths.run_ids(place.list(paths.RUNS))
        there = f"there are {', '.join(known[-10:])}" if known else "there are none yet"
        raise NotFoundInStore(f"{place.url} has no run {run!r}: {there}")
    start = events[0]
    if not isinstance(start, RunStarted):
        raise EventLogError(f"the log of run {run} does not begin with its start: it is damaged")
    if not start.recipe:
        raise EventLogError(f"run {run} was started without a recipe: nobody but its own program can go on with it")
    return recipes.read(place, run, start.recipe), events


def check_writable(store: Store) -> None:
    """Raise a StoreError, with the fix, if nothing can be written to the store or deleted from it."""
    probe = paths.probe(secrets.token_hex(8))
    try:
        store.write(probe, b"")
        store.delete(probe)
    except StoreError as error:
        raise type(error)(
            f"the store {store.url} cannot be written, so no run can be kept there: {_fix(error)}"
        ) from error


def with_threads(recipe: Recipe, threads: int | None) -> Recipe:
    """The recipe for workers that compute with so many threads; as it is, if that is not known."""
    if not threads:
        return recipe
    return dataclasses.replace(recipe, resources=dataclasses.replace(recipe.resources, threads=threads))


class _Drive:
    """One driver's part of a run: everything around the engine."""

    def __init__(
        self,
        store: Store,
        run: str,
        recipe: Recipe,
        backend: Backend,
        settings: Settings,
        patience: float,
        log: EventLog,
        earlier: Sequence[Event] = (),
    ) -> None:
        self._store = Patient(store, seconds=patience)
        self._run = run
        self._recipe = recipe
        self._backend = backend
        self._settings = settings
        self._patience = patience
        self._earlier = earlier
        self._script = recipe.search.script if isinstance(recipe.search, ReplaySearch) else None
        self._log = log
        self._sweeper = CheckpointSweep(Patient(store, seconds=min(patience, _PATIENCE_TO_SWEEP)), run)
        self._carried = MetricStateFiles(Patient(store, seconds=min(patience, _PATIENCE_TO_SWEEP)), run)
        self._engine: Engine | None = None
        self._inherited = bool(earlier)
        self.begun = bool(earlier)
        self.resumable = True

    def __call__(
        self, go: Callable[[Engine], None], recipe: str, observers: Sequence[Observer], progress: bool | None
    ) -> None:
        self._backend.bind(self._job())
        checker = self._checker()
        log = self._log
        try:
            with closing(log), self._sweeper, self._carried, Progress(progress, self._earlier) as watching:
                everybody: list[Observer] = [self._note, watching, *([checker] if checker else []), *observers]
                search, settings = self._recipe.search, self._scripted()
                self._engine = Engine(search, settings, self._backend, log, self._run, everybody, recipe=recipe)
                go(self._engine)
                self._sweep()
                self._carried.clear(inherited=bool(self._earlier))
        except BaseException as error:
            self._say_how_to_go_on(error)
            raise
        if checker is not None:
            checker.finish()

    def _job(self) -> Job:
        job = self._recipe.job(self._run, self._store)
        data = dataclasses.replace(job.dataset, store=Patient(job.dataset.store, seconds=self._patience))
        return dataclasses.replace(job, dataset=data, smallest_batch=self._scripted().smallest_batch)

    def _scripted(self) -> Settings:
        """A run that repeats another follows its script; one that is resumed has it in its log already."""
        if self._script is None or self._earlier:
            return self._settings
        return self._script.settings_like(self._settings)

    def _checker(self) -> Checker | None:
        if self._script is None:
            return None
        checker = Checker(self._script)
        for event in self._earlier:
            checker(event)
        return checker

    def _note(self, event: Event) -> None:
        """Told of every event first, once it is logged and before anything is done about it.

        With the first of them the log is this driver's, and no other can be writing checkpoints that are to stay: now
        is the time to delete what earlier drivers decided to delete, and did not, or never knew of.
        """
        self.begun = True
        assert self._engine is not None
        self._carried.note(event, self._engine.scheduler.state.trials)
        if self._inherited:
            self._inherited = False
            self._sweep(self._log.is_mine)

    def _sweep(self, owned: Callable[[], bool] = lambda: True) -> None:
        assert self._engine is not None
        self._sweeper.sweep(self._engine.scheduler.state.retention.kept(), owned)

    def _say_how_to_go_on(self, error: BaseException) -> None:
        if not self.begun or not self.resumable or isinstance(error, (EventLogError, ReplayDiverged)):
            return
        note = f'run {self._run} can be resumed: cs.resume("{self._store.url}", "{self._run}", backend=...)'
        error.add_note(note)
        _log.warning("the run ended early (%s); %s", type(error).__name__, note)


def _with_data(recipe: Recipe, events: Sequence[Event], run: str, store: Store, data_store: StoreLike | None) -> Recipe:
    """The recipe with its data where it can be read now; a run that is over needs none."""
    try:
        return recipes.with_data(recipe, run, store, None if data_store is None else open_store(data_store))
    except StoreError:
        if data_store is None and _is_over(events):
            return recipe
        raise


def _is_over(events: Sequence[Event]) -> bool:
    if not events or not isinstance(events[0], RunStarted):
        return False
    scheduler = MopScheduler(events[0].settings)
    for event in events:
        scheduler.handle(event)
    return scheduler.finished


def check_free(store: Store, run: str) -> None:
    """Raise ConfigurationError if there is such a run already."""
    if store.exists(paths.run_folder(run)):
        raise _taken(store, run)


def _claim(store: Store, run: str, data: bytes) -> None:
    """Take an id for a new run: whoever writes the claim has it. Recipes may be alike, signatures are not."""
    check_free(store, run)
    try:
        store.write(paths.claim(run), json.dumps({"by": signature()}).encode())
    except AlreadyInStore as error:
        raise _taken(store, run) from error
    store.write(paths.functions(run), data)


def _taken(store: Store, run: str) -> ConfigurationError:
    return ConfigurationError(
        f"{store.url} has a run {run!r} already: choose another id, leave it out, or go on with that run by cs.resume"
    )


def _forget(store: Store, run: str, error: BaseException) -> None:
    """Nothing has happened in this run: its id shall be free again."""
    try:
        store.delete(paths.run_folder(run))
    except StoreError as second:
        error.add_note(f"run {run} never began, but its folder could not be removed: {second}")


def _new_id() -> str:
    """Sorts by the time of its making, and is nobody else's."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _threads(events: Sequence[Event]) -> int | None:
    """With how many threads the workers computed, if all of them did so with as many."""
    found = {event.threads for event in events if isinstance(event, WorkerJoined)} - {0}
    return found.pop() if len(found) == 1 else None


def _fix(error: StoreError) -> str:
    if isinstance(error, StoreForbidden):
        return f"{error}. Give `store` a place where you may write and delete, or get the right to do so there"
    if isinstance(error, NotFoundInStore):
        return "the folder or bucket that it is in does not exist. Make it, or give `store` another address"
    return f"{error}. See that the address is right and that the store answers, or give `store` another one"
