"""A run from its beginning, or from where it stopped, to its end: new, resumed or replayed. It decides nothing.

Whatever ends a run early (an interrupt, a lost store, a dead driver), its log is complete and `resume` continues it.
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
from cerebro_spark.backend.driver.deletions import CheckpointSweep, MetricStateFiles
from cerebro_spark.backend.job import Job
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
from cerebro_spark.outcomes import view_of, with_outcomes
from cerebro_spark.progress import Progress
from cerebro_spark.recipe import Recipe
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.search import Search
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.turns import Turn, events_of

_log = logging.getLogger("cerebro_spark")

StoreLike = str | os.PathLike[str] | Store
PATIENCE = 120.0
"""Seconds for which a store that fails is tried again before the run ends."""
_PATIENCE_TO_SWEEP = 10.0
"""Seconds for which it is tried again where only superfluous files are deleted."""


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
    """Run a recipe to its end.

    The recipe is not changed: the copy beside the log is what runs, so that a second call does the same. Mistakes that
    can be found before workers start are found then: functions that cannot be pickled, a store that cannot be written,
    an id that is taken.

    Args:
        recipe: What to run.
        store: Where its log and checkpoints go.
        backend: Where its units run.
        run: The id of the run. Defaults to None: one is made.
        observers: Called with each event, after it was logged. Defaults to `()`: none.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen.
        led_by: A search to ask instead of the recipe's. It exists in this process alone, so the run cannot be resumed.
            Defaults to None: none.
        store_patience: The seconds for which a failing store is tried again.

    Returns:
        The id of the run.
    """
    place = open_store(store)
    data, stores = recipes.pack(dataclasses.replace(recipe, dataset=backend.located(recipe.dataset)), place)
    name = _new_id() if run is None else paths.check_id(run)
    check_writable(place)
    _claim(place, name, data)
    copy = recipes.unpack(data, stores)
    if led_by is not None:
        copy = dataclasses.replace(copy, search=led_by)
    log = EventLog(RetryingStore(place, seconds=store_patience), name)
    drive = _Drive(place, name, copy, backend, copy.settings(backend.num_workers), store_patience, log)
    drive.resumable = led_by is None
    try:
        with Hold(place, name, log.writer):
            drive(recipes.digest(data), observers, progress)
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
    """Continue a run whose driver died or was stopped. No finished unit is trained again; a finished run is left alone.

    If the last driver did not sign off, the run is watched for up to 30 seconds. If that driver is alive, this raises
    an EventLogError that names it.

    Args:
        store: The store of the run. Data in the same store is read from it as it is opened now.
        run: The id of the run.
        backend: Where its units run.
        observers: Called with each event, after it was logged. Defaults to `()`: none.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen.
        threads: How many threads a worker computes with. Defaults to None: as many as before, because results depend on
            it.
        store_patience: The seconds for which a failing store is tried again.
        data_store: The store of the data, if it is neither in `store` nor where it was. Defaults to None: it is looked
            for.
        take_over: Whether not to watch the run first. A driver that is alive then ends with an EventLogError. Defaults
            to False.

    Returns:
        The recipe of the run.
    """
    place = open_store(store)
    recipe, events = read(place, run)
    recipe = _with_data(recipe, events, run, place, data_store)
    start = events[0]
    assert isinstance(start, RunStarted)
    check_writable(place)
    log = EventLog(RetryingStore(place, seconds=store_patience), run)
    if not take_over:
        wait_until_free(RetryingStore(place, seconds=store_patience), run)
    with Hold(place, run, log.writer):
        turns = with_outcomes(log.claim())
        copy = recipes.unpack(*recipes.pack(recipe))
        copy = with_threads(copy, threads or recipe.trainer.resources.threads or _threads(events_of(turns)))
        drive = _Drive(place, run, copy, backend, start.settings, store_patience, log, turns)
        drive(start.recipe, observers, progress)
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
    fuse: int = 1,
) -> str:
    """Train a run again as it was trained, from its log, its recipe and its partitions.

    Args:
        store: The store of the run, and of the new one.
        run: The id of the run.
        backend: Where its units run.
        new: The id of the new run. Defaults to None: one is made.
        observers: Called with each event, after it was logged. Defaults to `()`: none.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen.
        store_patience: The seconds for which a failing store is tried again.
        data_store: The store of the data, if it is neither in `store` nor where it was. Defaults to None: it is looked
            for.
        fuse: How many trials may train together, whether they did then or not. Defaults to 1: each by itself.

    Returns:
        The id of the new run.

    Raises:
        ReplayDiverged: A unit left other weights than it did then.
    """
    place = open_store(store)
    recipe, events = read(place, run)
    recipe = _with_data(recipe, (), run, place, data_store)
    script = RunScript.from_events(events)
    again = with_threads(dataclasses.replace(recipe, search=ReplaySearch(script), fuse=fuse), script.threads)
    return execute(again, place, backend, new, observers, progress, store_patience=store_patience)


def read(store: StoreLike, run: str) -> tuple[Recipe, list[Event]]:
    """Return a run from a store: its recipe, and all its events.

    Raises NotFoundInStore if there is no such run, EventLogError if it is damaged.
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
        raise EventLogError(f"run {run} was started without a recipe: only its own program can continue it")
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
    """Return the recipe for workers with a number of threads; unchanged if that is not known."""
    if not threads:
        return recipe
    return dataclasses.replace(recipe, trainer=recipe.trainer.with_resources(threads=threads))


class _Drive:
    """One driver's part of a run, which begins now or goes on after `earlier` turns: all that surrounds the engine."""

    _engine: Engine

    def __init__(
        self,
        store: Store,
        run: str,
        recipe: Recipe,
        backend: Backend,
        settings: Settings,
        patience: float,
        log: EventLog,
        earlier: Sequence[Turn] = (),
    ) -> None:
        self._store = RetryingStore(store, seconds=patience)
        self._run = run
        self._recipe = recipe
        self._backend = backend
        self._settings = settings
        self._patience = patience
        self._earlier = earlier
        self._script = recipe.search.script if isinstance(recipe.search, ReplaySearch) else None
        self._log = log
        superfluous = RetryingStore(store, seconds=min(patience, _PATIENCE_TO_SWEEP))
        self._sweeper, self._carried = CheckpointSweep(superfluous, run), MetricStateFiles(superfluous, run)
        self._inherited = self.begun = bool(earlier)
        self.resumable = True

    def __call__(self, recipe: str, observers: Sequence[Observer], progress: bool | None) -> None:
        """Run to the end. `recipe` is the digest of the recipe."""
        self._backend.bind(self._job())
        checker, log = self._checker(), self._log
        try:
            with closing(log), self._sweeper, self._carried, Progress(progress, self._earlier) as watching:
                all_observers: list[Observer] = [self._note, watching, *([checker] if checker else []), *observers]
                search, settings = self._recipe.search, self._scripted()
                self._engine = Engine(search, settings, self._backend, log, self._run, all_observers, recipe=recipe)
                go = self._engine.resume if self._earlier else self._engine.run
                go()
                self._sweep()
                self._carried.clear(inherited=bool(self._earlier))
        except BaseException as error:
            self._say_how_to_go_on(error)
            raise
        if checker is not None:
            checker.finish()

    def _job(self) -> Job:
        job = self._recipe.job(self._run, self._store)
        data = dataclasses.replace(job.dataset, store=RetryingStore(job.dataset.store, seconds=self._patience))
        settings = self._scripted()
        return dataclasses.replace(job, dataset=data, smallest_batch=settings.smallest_batch, digest=settings.digest)

    def _scripted(self) -> Settings:
        """Return the settings; a replay follows a script, and one that is resumed has it in its log already."""
        if self._script is None or self._earlier:
            return self._settings
        return self._script.settings_like(self._settings)

    def _checker(self) -> ReplayChecker | None:
        if self._script is None:
            return None
        checker = ReplayChecker(self._script)
        for turn in self._earlier:
            checker(turn)
        return checker

    def _note(self, turn: Turn) -> None:
        """Told of every turn first, once it is logged and before anything is done about it.

        With the first event the log belongs to this driver, and no other one writes checkpoints that must be kept. So
        this is when those are deleted that earlier drivers left behind.
        """
        self.begun = True
        for event in turn.events:
            self._carried.note(event, self._engine.scheduler.state.trials)
        if self._inherited:
            self._inherited = False
            self._sweep(self._log.is_mine)

    def _sweep(self, owned: Callable[[], bool] = lambda: True) -> None:
        self._sweeper.sweep(self._engine.scheduler.state.retention.kept(), owned)

    def _say_how_to_go_on(self, error: BaseException) -> None:
        if not self.begun or not self.resumable or isinstance(error, (EventLogError, ReplayDiverged)):
            return
        note = f'run {self._run} can be resumed: cs.resume("{self._store.url}", "{self._run}", backend=...)'
        error.add_note(note)
        _log.warning("the run ended early (%s); %s", type(error).__name__, note)


def _with_data(recipe: Recipe, events: Sequence[Event], run: str, store: Store, data_store: StoreLike | None) -> Recipe:
    """Return the recipe with its data where it can be read now; a finished run needs none."""
    try:
        return recipes.with_data(recipe, run, store, None if data_store is None else open_store(data_store))
    except StoreError:
        if data_store is None and events and view_of([Turn(events)]).finished:
            return recipe
        raise


def check_free(store: Store, run: str) -> None:
    """Raise ConfigurationError if there is such a run already."""
    if store.exists(paths.run_folder(run)):
        raise _taken(store, run)


def _claim(store: Store, run: str, data: bytes) -> None:
    """Take an id for a new run by writing a claim. It is signed: recipes may be equal, signatures never are."""
    check_free(store, run)
    try:
        store.write(paths.claim(run), json.dumps({"by": signature()}).encode())
    except AlreadyInStore as error:
        raise _taken(store, run) from error
    store.write(paths.functions(run), data)


def _taken(store: Store, run: str) -> ConfigurationError:
    return ConfigurationError(
        f"{store.url} has a run {run!r} already: choose another id, leave it out, or continue that run with cs.resume"
    )


def _forget(store: Store, run: str, error: BaseException) -> None:
    """Delete a run in which nothing has happened, so that its id is free again."""
    try:
        store.delete(paths.run_folder(run))
    except StoreError as second:
        error.add_note(f"run {run} never began, but its folder could not be removed: {second}")


def _new_id() -> str:
    """Return a unique id; ids sort by the time at which they were made."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def _threads(events: Sequence[Event]) -> int | None:
    """Return how many threads the workers had, if all had the same number."""
    found = {event.threads for event in events if isinstance(event, WorkerJoined)} - {0}
    return found.pop() if len(found) == 1 else None


def _fix(error: StoreError) -> str:
    if isinstance(error, StoreForbidden):
        return f"{error}. Give `store` a place where you may write and delete, or get the right to do so there"
    if isinstance(error, NotFoundInStore):
        return "the folder or bucket that it is in does not exist. Make it, or give `store` another address"
    return f"{error}. See that the address is right and that the store answers, or give `store` another one"
