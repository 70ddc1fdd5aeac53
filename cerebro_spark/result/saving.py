"""Saves a result outside of the run's store: copies of the log, the functions and the models.

A saved result has the layout of a run, so that it is read as one. `result.json` is written last: half a copy is none.
It deletes nothing but saved results.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cerebro_spark._version import __version__
from cerebro_spark.errors import AlreadyInStore, ConfigurationError, EventLogError, NotFoundInStore
from cerebro_spark.eventlog import EventLog
from cerebro_spark.result.tables import check_trial
from cerebro_spark.run_view import RunView
from cerebro_spark.store import open_store, paths
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, TrialId

_FORMAT = "cerebro-spark result"
_VERSION = 1


def save_result(
    view: RunView,
    source: Store,
    path: str | os.PathLike[str] | Store,
    trials: Iterable[TrialId] | None,
    overwrite: bool,
) -> None:
    """Copy a run's log, recipe and best checkpoints of these trials (None: of all) to the store at `path`."""
    target = open_store(path)
    if target.url == source.url:
        raise ConfigurationError(f"{target.url} is the store of the run itself: save the result somewhere else")
    chosen = _best_checkpoints(view, trials)
    _make_room(target, view.run, overwrite)
    try:
        _copy(view, source, target, chosen)
    except BaseException:
        # Only the first error matters; nothing of this run was there before.
        with suppress(Exception):
            target.delete(paths.run_folder(view.run))
        raise


def _make_room(target: Store, run: str, overwrite: bool) -> None:
    """Remove an older saved result if that is wanted; a run, or anything else, is never touched."""
    saved = [old for old in _list_saved(target) if _read_about(target, old).get("format") == _FORMAT]
    if saved and not overwrite:
        raise AlreadyInStore(
            f"{target.url} holds a saved result already (run {saved[0]}): choose another path, or say overwrite=True"
        )
    if run not in saved and target.list(paths.run_folder(run)):
        raise AlreadyInStore(
            f"{target.url} has a folder of run {run} that is no saved result: it is a run, or a copy that was cut off;"
            " choose another path"
        )
    for old in saved:
        target.delete(paths.run_folder(old))


def _copy(view: RunView, source: Store, target: Store, chosen: Iterable[Checkpoint]) -> None:
    run = view.run
    EventLog(target, run).append(*_turns(view, source))
    names = [paths.checkpoint(run, checkpoint) for checkpoint in chosen]
    for name in [paths.functions(run), *names] if view.recipe else names:
        with source.reader(name) as file, target.writer(name) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    about = {"format": _FORMAT, "version": _VERSION, "run": run, "by": __version__, "models": names}
    target.write(paths.result(run), json.dumps(about, indent=1).encode())


def _turns(view: RunView, source: Store) -> list[Turn]:
    """The log as far as the view has seen it. What was read once never changes, so it can be read again."""
    turns, seen = [], 0
    for turn in EventLog(source, view.run).turns():
        if seen == view.events:
            break
        turns.append(turn)
        seen += len(turn.events)
    return turns


def open_saved(path: str | os.PathLike[str] | Store) -> tuple[Store, str]:
    """Return the store at `path` and the name of the run whose result was saved there."""
    store = open_store(path)
    saved = _list_saved(store)
    if not saved:
        raise NotFoundInStore(f"{store.url} holds no saved result: give the path that result.save was given")
    if len(saved) > 1:
        raise ConfigurationError(f"{store.url} holds {len(saved)} saved results, of the runs {saved}: keep one a path")
    about = _read_about(store, saved[0])
    if about.get("format") != _FORMAT or about.get("version") != _VERSION:
        raise EventLogError(
            f"{paths.result(saved[0])} in {store.url} is {about.get('format')!r} of version {about.get('version')}, but"
            f" this release reads {_FORMAT!r} of version {_VERSION}: use the release that wrote it"
        )
    return store, saved[0]


def _read_about(store: Store, run: str) -> dict[str, Any]:
    try:
        about = json.loads(store.read(paths.result(run)))
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _list_saved(store: Store) -> list[str]:
    names = set(store.list(paths.RUNS))
    return [run for run in paths.run_ids(names) if paths.result(run) in names]


def _best_checkpoints(view: RunView, trials: Iterable[TrialId] | None) -> list[Checkpoint]:
    best = [view.best_epoch(check_trial(view, trial)) for trial in (view.trials if trials is None else trials)]
    return [epoch.checkpoint for epoch in best if epoch is not None and epoch.checkpoint is not None]
