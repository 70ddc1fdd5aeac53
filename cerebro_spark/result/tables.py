"""A run as pandas tables, and the trial that came out best. It shows what the record holds, no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cerebro_spark.errors import CerebroError, ConfigurationError, TrialFailed
from cerebro_spark.result.record import Record, UnitRow
from cerebro_spark.types import TrialId

_TRIAL_COLUMNS = ("trial", "status", "epoch", "epochs")


@dataclass(frozen=True, slots=True)
class BestTrial:
    """The trial with the best epoch of a run.

    Args:
        id: The id of the trial, for `result.model(id)`.
        params: Its configuration in that epoch.
        metrics: Its metrics in that epoch, by name; those of validation begin with "val_".
        epoch: The number of that epoch; the first is 1.

    Examples:
        >>> BestTrial("t3", {"lr": 0.01}, {"val_loss": 0.5}, epoch=2).params["lr"]
        0.01
    """

    id: TrialId
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    epoch: int


def best_trial(record: Record) -> BestTrial:
    """The best trial that did not fail; an error that says why there is none otherwise."""
    first = next(iter(record.ranked()), None)
    if first is None or (record.status(first) != "failed" and record.best_epoch(first) is None):
        raise CerebroError(
            f"run {record.run} has no best trial yet: none of its {len(record.trials)} trials has an epoch that was"
            " trained and evaluated; let it go on (cs.resume)"
        )
    if record.status(first) == "failed":
        raise _all_failed(record)
    best = record.best_epoch(first)
    assert best is not None
    objective = record.objective
    if objective is not None and objective.metric not in best.metrics:
        raise ConfigurationError(
            f"no trial of run {record.run} measured {objective.metric!r}, so none is the best: measured were"
            f" {sorted(best.metrics)}; search with one of these as `metric`"
        )
    return BestTrial(first, dict(best.params), dict(best.metrics), best.epoch)


def trials_table(record: Record) -> pd.DataFrame:
    """A row a trial, best first: what became of it, the metrics of its best epoch, its params as `param_...`."""
    rows = []
    for trial in record.ranked():
        best = record.best_epoch(trial)
        params = record.trials[trial].params if best is None else best.params
        rows.append(
            {
                "trial": trial,
                "status": record.status(trial),
                "epoch": None if best is None else best.epoch,
                "epochs": sum(1 for key in record.epochs if key[0] == trial),
                **_shown({} if best is None else best.metrics),
                **{f"param_{name}": value for name, value in params.items()},
                "error": record.errors.get(trial),
            }
        )
    metrics = _metric_names(record)
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith("param_")))
    return _table(rows, [*_TRIAL_COLUMNS, *metrics, *names, "error"]).astype({"epoch": "Int64"})


def history_table(record: Record) -> pd.DataFrame:
    """A row an (trial, epoch) in the order of trials and epochs; `seconds` is when it was known, from the start."""
    order = {trial: index for index, trial in enumerate(record.trials)}
    rows = sorted(record.epochs.values(), key=lambda row: (order[row.trial], row.epoch))
    plain = [{"trial": row.trial, "epoch": row.epoch, "seconds": row.at, **_shown(row.metrics)} for row in rows]
    return _table(plain, ["trial", "epoch", "seconds", *_metric_names(record)])


def units_table(record: Record) -> pd.DataFrame:
    """A row a unit in the order of their ends: who ran it when, and its loss. Times count from the run's start."""
    return _table(record.units, list(UnitRow._fields))


def _table(rows: Sequence[Any], columns: list[str]) -> pd.DataFrame:
    """Rows as a table in which None stays None beside text: pandas 3 would make a column of strings, and NaN of it."""
    table = pd.DataFrame(rows, columns=columns)
    plain: Any = pd.DataFrame(rows, columns=columns, dtype=object)
    for at, dtype in enumerate(table.dtypes):
        if isinstance(dtype, pd.StringDtype):
            table.isetitem(at, plain.iloc[:, at])
    return table


def _metric_names(record: Record) -> list[str]:
    """The columns of metrics: the objective first, then the others as they were first reported."""
    names = dict.fromkeys(name for row in record.epochs.values() for name in row.metrics)
    first = [record.objective.metric] if record.objective and record.objective.metric in names else []
    return list(_shown(dict.fromkeys([*first, *names], 0.0)))


def _shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """A metric whose name is another column's is shown as `metric_...`."""
    taken = (*_TRIAL_COLUMNS, "seconds", "error")
    return {f"metric_{name}" if name in taken else name: value for name, value in metrics.items()}


def _all_failed(record: Record) -> TrialFailed:
    trial, error = next(iter(record.errors.items()))
    params = dict(record.trials[trial].params)
    kept = [each for each in record.trials if record.best_epoch(each) is not None]
    hint = f"; what trial {kept[0]} learnt before is in result.model({kept[0]!r})" if kept else ""
    return TrialFailed(
        f"all {len(record.trials)} trials of run {record.run} failed, so none is the best{hint}. The first was {trial}"
        f" with params {params!r}:\n{error}"
    )
