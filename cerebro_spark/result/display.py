"""A result as people see it: a plain table in terminals, HTML in notebooks. What users named is always escaped."""

from __future__ import annotations

import html

import pandas as pd

from cerebro_spark.errors import CerebroError
from cerebro_spark.result.record import Record
from cerebro_spark.result.tables import best_trial, trials_table

_MOST_ROWS = 20
_MOST_TEXT = 60


def as_text(record: Record) -> str:
    """A headline and the best trials, for terminals."""
    table = _short(record)
    shown = table.to_string(index=False, na_rep="", max_colwidth=_MOST_TEXT) if len(table) else "no trials yet"
    return "\n".join([*_headline(record), shown, *_more(record)])


def as_html(record: Record) -> str:
    """The same as a table of a notebook; every name and value is escaped."""
    lines = "<br>".join(html.escape(line) for line in _headline(record))
    table = _short(record).to_html(index=False, na_rep="", escape=True, border=0, max_rows=None)
    more = "".join(f"<p>{html.escape(line)}</p>" for line in _more(record))
    return f"<div><p>{lines}</p>{table}{more}</div>"


def _headline(record: Record) -> list[str]:
    states = pd.Series([record.status(trial) for trial in record.trials], dtype=object).value_counts()
    counts = ", ".join(f"{count} {status}" for status, count in states.items())
    lines = [f"Run {record.run}: {len(record.trials)} trials ({counts or 'none yet'}), {len(record.units)} units"]
    try:
        best = best_trial(record)
    except CerebroError as error:
        return [*lines, str(error).splitlines()[0]]
    objective = record.objective
    value = f", {objective.metric} {best.metrics[objective.metric]:.6g}" if objective else ""
    return [*lines, f"Best: trial {best.id} at epoch {best.epoch}{value}, params {dict(best.params)}"]


def _short(record: Record) -> pd.DataFrame:
    table = trials_table(record).head(_MOST_ROWS)
    if not record.errors:
        return table.drop(columns="error")
    return table.assign(error=table["error"].map(_last_line))


def _last_line(error: str | None) -> str | None:
    """Of a traceback, what was raised."""
    if not error:
        return None
    line = error.strip().splitlines()[-1].strip()
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 3] + "..."


def _more(record: Record) -> list[str]:
    hidden = len(record.trials) - _MOST_ROWS
    return [f"... and {hidden} more: result.trials has them all"] if hidden > 0 else []
