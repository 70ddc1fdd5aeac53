"""A run from its beginning, or from where it stopped, to its end: new, resumed or replayed. It decides nothing.

Whatever ends a run early (an interrupt, a lost store, a dead driver), its log is complete and `resume` continues it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence

from cerebro_spark import recipe as recipes
from cerebro_spark.backend.base import Backend
from cerebro_spark.driver import Driver
from cerebro_spark.engine import Expected, Observer
from cerebro_spark.errors import (
    AlreadyInStore,
    ConfigurationError,
    EventLogError,
    NotFoundInStore,
    StoreError,
    StoreForbidden,
)
from cerebro_spark.eventlog import EventLog, signature
from cerebro_spark.events import Event, RunStarted, WorkerJoined
from cerebro_spark.hold import Hold, wait_until_free
from cerebro_spark.outcomes import view_of, with_outcomes
from cerebro_spark.recipe import Recipe
from cerebro_spark.relay import Relay
from cerebro_spark.replays import ReplaySearch, RunScript
from cerebro_spark.search import Search
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.turns import Turn, events_of

StoreLike = str | os.PathLike[str] | Store
PATIENCE = 120.0
"""Seconds for which a store that fails is tried again before the run ends."""


def execute(
    recipe: Recipe,
    store: StoreLike,
    backend: Backend,
    run: str | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    *,
    led_by: Search | None = None,
    way_on: str | None = None,
    store_patience: float = PATIENCE,
    relay: Relay | None = None,
    expected: Expected = lambda params: None,
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
        led_by: A search to ask instead of the recipe's, which exists in this process alone. Defaults to None: none.
        way_on: How to go on with the run if it ends early, for people. Defaults to None: with `cs.resume`.
        store_patience: The seconds for which a failing store is tried again.
        relay: Where commands of this process come in. Defaults to None: only those from the store's mailbox are heard.
        expected: Returns the seconds that a training unit of a configuration was measured to take before the run, or
            None. Knows nothing by default.

    Returns:
        The id of the run.
    """
    place = open_store(store)
    data, stores = recipes.pack(dataclasses.replace(recipe, dataset=backend.located(recipe.dataset)), place)
    name = new_id() if run is None else paths.check_id(run)
    check_writable(place)
    _claim(place, name, data)
    copy = recipes.unpack(data, stores)
    if led_by is not None:
        copy = dataclasses.replace(copy, search=led_by)
    log = EventLog(RetryingStore(place, seconds=store_patience), name)
    settings = copy.settings(backend.num_workers)
    driver = Driver(
        place, name, copy, backend, settings, store_patience, log, relay=relay, way_on=way_on, expected=expected
    )
    try:
        with Hold(place, name, log.writer):
            driver.drive(recipes.digest(data), observers, progress)
    except BaseException as error:
        if not driver.begun:
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
    led_by: Search | None = None,
    way_on: str | None = None,
    on_claim: Callable[[Sequence[Turn]], None] | None = None,
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
        led_by: A search to ask instead of the recipe's, which says first what the log has. Defaults to None: none.
        way_on: How to go on with the run if it ends early, for people. Defaults to None: with `cs.resume`.
        on_claim: Called with all turns of the log and their outcomes, once no other driver can write it and before the
            search is asked. Defaults to None: nothing is.

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
        if on_claim is not None:
            on_claim(turns)
        copy = recipes.unpack(*recipes.pack(recipe))
        copy = with_threads(copy, threads or recipe.trainer.resources.threads or _threads(events_of(turns)))
        if led_by is not None:
            copy = dataclasses.replace(copy, search=led_by)
        driver = Driver(place, run, copy, backend, start.settings, store_patience, log, turns, way_on=way_on)
        driver.drive(start.recipe, observers, progress)
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
    trainer = dataclasses.replace(recipe.trainer, strategies=script.strategies)
    again = dataclasses.replace(recipe, search=ReplaySearch(script), fuse=fuse, trainer=trainer)
    again = with_threads(again, script.threads)
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


def new_id() -> str:
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
