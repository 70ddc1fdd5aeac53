"""Runs that a store has already: `cs.attach` looks at one, `cs.resume` continues one, `cs.replay` trains one again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cerebro_spark import runs
from cerebro_spark.backend.base import Backend
from cerebro_spark.live.attached import AttachedRun
from cerebro_spark.result import Result
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.tune.arguments import fused_trials
from cerebro_spark.tune.trackers.base import Tracker, Tracking
from cerebro_spark.tune.training import default_backend, open_result

_PATIENCE = 30.0
"""Seconds for which a failing store is tried again by who only looks."""


def attach(store: Store | str, run_id: str, *, leave: bool = False) -> AttachedRun:
    """Return a handle of a run that another process drives, here or on another machine.

    It reads the log of the run, and sends commands through the mailbox in its store: who may write the store may
    command the run. The driver looks into the mailbox about every second.

    Args:
        store: The store of the run: an address, or what `cs.open_store` returned.
        run_id: The id of the run; `run.id` and `cerebro-spark runs STORE` tell it.
        leave: Whether commands are left in the mailbox while nobody drives the run: the next driver obeys them.
            Defaults to False, such commands are refused.

    Returns:
        The handle.

    Raises:
        NotFoundInStore: The store has no such run.

    >>> attach("memory://runs", "yesterday")
    Traceback (most recent call last):
    cerebro_spark.errors.NotFoundInStore: memory://runs has no run 'yesterday': it has none at all
    """
    place = open_store(store)
    patient = RetryingStore(place, seconds=_PATIENCE)
    return AttachedRun(patient, run_id, lambda _, run: open_result(place, run), leave=leave)


def resume(
    store: Store | str,
    run_id: str,
    *,
    backend: Backend | None = None,
    progress: bool | None = None,
    data_store: Store | str | None = None,
    take_over: bool = False,
) -> Result:
    """Continue a run that was stopped, or whose driver died. A finished run stays as it is.

    A driver that was killed could not say so. Its run is watched for up to 30 seconds, and left alone if its driver
    turns out to be alive.

    The store may have moved, and may need other credentials than before: the run is read from `store` as it is opened
    now, and so is its data if it is in the same store. Data in another store is looked for where it was, with the
    credentials of the environment.

    Args:
        store: The store of the run: an address, or what `cs.open_store` returned.
        run_id: The id of the run; `Result.run_id` and `cerebro-spark runs STORE` tell it.
        backend: Where the units run. Defaults to None: the cluster of the active Spark session; without a session, two
            processes on this machine.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen, in a terminal or
            notebook.
        data_store: The store of the data, if it is neither in `store` nor where it was. Defaults to None: it is looked
            for.
        take_over: Whether to continue at once. If the earlier driver is alive, it ends with an EventLogError. Defaults
            to False, the run is watched first.

    Returns:
        The result of the run.

    Raises:
        NotFoundInStore: The store has no such run, or its data cannot be found.
        EventLogError: Another driver is alive, the log is damaged, or the run was led by Hyperopt or Optuna.

    >>> resume("memory://runs", "yesterday")
    Traceback (most recent call last):
    cerebro_spark.errors.NotFoundInStore: memory://runs has no run 'yesterday': there are none yet
    """
    place = open_store(store)
    runs.resume(
        place, run_id, backend or default_backend(), progress=progress, data_store=data_store, take_over=take_over
    )
    return open_result(place, run_id)


def replay(
    store: Store | str,
    run_id: str,
    *,
    backend: Backend | None = None,
    new_run_id: str | None = None,
    progress: bool | None = None,
    data_store: Store | str | None = None,
    trackers: Sequence[Tracker] = (),
    fuse: Literal["auto"] | bool | int = False,
) -> Result:
    """Train a run again: the same trials, which visit the partitions in the same order.

    On a CPU the weights are the same, bit for bit. Everything but the backend is read from the store: functions,
    trials, seed, data. The checkpoints of the earlier run are not needed.

    Args:
        store: The store of the run: an address, or what `cs.open_store` returned. The new run is written there too.
        run_id: The id of the run to train again.
        backend: Where the units run; it may have another number of workers. Defaults to None: the cluster of the active
            Spark session; without a session, two processes on this machine.
        new_run_id: The id of the new run. Defaults to None: one is made.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen, in a terminal or
            notebook.
        data_store: The store of the data, if it is neither in `store` nor where it was. Defaults to None: it is looked
            for.
        trackers: What records the new run as it goes on, such as `[cs.CSVTracker("run.csv")]`. Defaults to `()`: none.
        fuse: Whether trials that differ in real numbers only may be trained together, as of every search: "auto", or
            how many at most. It need not be what the run had: the weights are the same. Defaults to False: every trial
            is trained by itself.

    Returns:
        The result of the new run.

    Raises:
        ReplayDiverged: A unit left other weights than it did then.
        NotFoundInStore: The store has no such run, or its data cannot be found.
        ConfigurationError: The store has a run `new_run_id` already, or `fuse` is none of its values.

    >>> replay("memory://runs", "yesterday")
    Traceback (most recent call last):
    cerebro_spark.errors.NotFoundInStore: memory://runs has no run 'yesterday': there are none yet
    """
    place, at_once = open_store(store), fused_trials(fuse)
    if new_run_id is not None:
        runs.check_free(place, new_run_id)
    recipe, _ = runs.read(place, run_id)
    with Tracking(trackers, recipe.objective) as tracking:
        new = runs.replay(
            place,
            run_id,
            backend or default_backend(),
            new_run_id,
            [tracking],
            progress,
            data_store=data_store,
            fuse=at_once,
        )
        result = open_result(place, new)
        tracking.finish(result)
    return result
