"""All runs of a store, a line each: when, how many trials, the best so far. One damaged run never hides the others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cerebro_spark.errors import CerebroError
from cerebro_spark.result.record import Record, read_record
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
        record = read_record(store, run)
        state = "finished" if record.scheduler.finished else "not finished"
        return RunLine(run, when, str(len(record.trials)), _best(record), state)
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


def _when(store: Store, run: str, names: Iterable[str]) -> str:
    """Ids that we make tell the time; of others a local store knows when their log began."""
    found = _STAMP.fullmatch(run)
    if found:
        return f"{found[1]}-{found[2]}-{found[3]} {found[4]}:{found[5]}"
    first = min(name for name in names if name.startswith(f"{paths.log_folder(run)}/"))
    path = store.local_path(first)
    if path is None or not path.exists():  # meanwhile it may have been joined to others
        return "?"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(path.stat().st_mtime))


def _best(record: Record) -> str:
    for trial in record.ranked()[:1]:
        best = record.best_epoch(trial)
        if best is None or record.status(trial) == "failed":
            break
        objective = record.objective
        if objective is None or objective.metric not in best.metrics:
            return trial
        return f"{objective.metric} {best.metrics[objective.metric]:.6g} ({trial})"
    return "none"
