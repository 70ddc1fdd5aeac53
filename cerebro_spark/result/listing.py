"""The runs of a store: one of them as a view, or all in a list. One damaged run never hides the others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cerebro_spark.errors import CerebroError, NotFoundInStore
from cerebro_spark.eventlog import EventLog
from cerebro_spark.outcomes import view_of
from cerebro_spark.run_view import RunView
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-[0-9a-f]{6}")


class RunLine(NamedTuple):
    """A run in a list. `when` is its start in UTC, as far as it can be known."""

    run: str
    when: str
    trials: str
    best: str
    state: str


def read_view(store: Store, run: str) -> RunView:
    """What became of a run, from its log alone.

    Args:
        store: The store in which the run is.
        run: Its id.

    Returns:
        The run as far as it has come.

    Raises:
        NotFoundInStore: There is no such run; the error names those that there are.
        EventLogError: Its log is damaged.
    """
    if not store.list(paths.log_folder(run)):
        there = paths.run_ids(store.list(paths.RUNS))
        raise NotFoundInStore(f"{store.url} has no run {run!r}: it has {there or 'none at all'}")
    return view_of(EventLog(store, run).turns())


def listed(store: Store) -> Iterator[RunLine]:
    """The runs of a store, sorted by their ids; a log that cannot be read is said in the run's own line.

    >>> from cerebro_spark.store.opening import open_store
    >>> list(listed(open_store("memory://no-runs")))
    []
    """
    names = store.list(paths.RUNS)
    for run in paths.run_ids(names):
        yield _line(store, run, names)


def _line(store: Store, run: str, names: Iterable[str]) -> RunLine:
    when = "?"
    try:
        when = _when(store, run, names)
        view = read_view(store, run)
        state = "finished" if view.finished else "not finished"
        if when == "?" and view.started is not None:
            when = _minute(view.started)
        return RunLine(run, when, str(len(view.trials)), _best(view), state)
    except Exception as error:  # whatever is wrong with this run, the others are to be seen
        said = str(error) if isinstance(error, CerebroError) else f"{type(error).__name__}: {error}"
        return RunLine(run, when, "?", "?", f"unreadable: {' '.join(said.split())}")


def as_text(lines: Iterable[RunLine]) -> str:
    """The list as a plain table.

    >>> print(as_text([RunLine("r1", "2026-11-15 10:00", "4", "val_loss 0.5 (t2)", "finished")]))
    run  when (UTC)        trials  best               state
    r1   2026-11-15 10:00  4       val_loss 0.5 (t2)  finished
    """
    table = [("run", "when (UTC)", "trials", "best", "state"), *lines]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )


def _minute(clock: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(clock))


def _when(store: Store, run: str, names: Iterable[str]) -> str:
    """Ids that we make tell the time; of others a local store knows when their log began."""
    found = _STAMP.fullmatch(run)
    if found:
        return f"{found[1]}-{found[2]}-{found[3]} {found[4]}:{found[5]}"
    first = min(name for name in names if name.startswith(f"{paths.log_folder(run)}/"))
    path = store.local_path(first)
    if path is None or not path.exists():  # meanwhile it may have been joined to others
        return "?"
    return _minute(path.stat().st_mtime)


def _best(view: RunView) -> str:
    best, objective = view.best(), view.objective
    if best is None:
        return "none"
    if objective is None or objective.metric not in best.metrics:
        return best.trial
    return f"{objective.metric} {best.metrics[objective.metric]:.6g} ({best.trial})"
