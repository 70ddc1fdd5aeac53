"""A result as people see it: a plain table in terminals, HTML in notebooks. What users named is always escaped."""

from __future__ import annotations

import html
import time

import pandas as pd

from cerebro_spark.errors import CerebroError
from cerebro_spark.result.tables import best_trial, trials_table
from cerebro_spark.run_view import RunView, WorkerView

_MOST_ROWS = 20
_MOST_TEXT = 60


def as_text(view: RunView) -> str:
    """A headline and the best trials, for terminals."""
    table = _short(view)
    shown = table.to_string(index=False, na_rep="", max_colwidth=_MOST_TEXT) if len(table) else "no trials yet"
    return "\n".join([*_headline(view), shown, *_more(view)])


def workers_as_text(view: RunView) -> str:
    """What each worker that is up does, and since when, as far as the log says: a driver that died does not say so."""
    lines = [
        f"  {worker.id}{f' on {worker.host}' if worker.host else ''}: {worker.activity}, since {_since(worker)}"
        for worker in view.workers.values()
        if worker.up
    ]
    when = "" if view.wall_clock is None else f" at {_utc(view.wall_clock)}"
    return "\n".join([f"Workers when the log was last written{when}:", *(lines or ["  none is up"])])


def _since(worker: WorkerView) -> str:
    return f"{worker.since:.1f} s of the run" if worker.since_clock is None else _utc(worker.since_clock)


def _utc(clock: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(clock))


def as_html(view: RunView) -> str:
    """The same as a table of a notebook; every name and value is escaped."""
    lines = "<br>".join(html.escape(line) for line in _headline(view))
    return f"<div><p>{lines}</p>{table_as_html(view)}</div>"


def table_as_html(view: RunView) -> str:
    """The best trials as a table of a notebook; every name and value is escaped."""
    table = _short(view).to_html(index=False, na_rep="", escape=True, border=0, max_rows=None)
    return table + "".join(f"<p>{html.escape(line)}</p>" for line in _more(view))


def _headline(view: RunView) -> list[str]:
    states = pd.Series([view.status(trial) for trial in view.trials], dtype=object).value_counts()
    counts = ", ".join(f"{count} {status}" for status, count in states.items())
    lines = [f"Run {view.run}: {len(view.trials)} trials ({counts or 'none yet'}), {len(view.units)} units"]
    lines += [f"Not in groups: {reason.splitlines()[0]}" for reason in view.refusals() if reason]
    try:
        best = best_trial(view)
    except CerebroError as error:
        return [*lines, str(error).splitlines()[0]]
    objective = view.objective
    value = f", {objective.metric} {best.metrics[objective.metric]:.6g}" if objective else ""
    return [*lines, f"Best: trial {best.id} at epoch {best.epoch}{value}, params {dict(best.params)}"]


def _short(view: RunView) -> pd.DataFrame:
    table = trials_table(view).head(_MOST_ROWS)
    if not view.errors:
        return table.drop(columns="error")
    return table.assign(error=table["error"].map(_last_line))


def _last_line(error: str | None) -> str | None:
    """Of a traceback, what was raised."""
    if not error:
        return None
    line = error.strip().splitlines()[-1].strip()
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 3] + "..."


def _more(view: RunView) -> list[str]:
    hidden = len(view.trials) - _MOST_ROWS
    return [f"... and {hidden} more: result.trials has them all"] if hidden > 0 else []
