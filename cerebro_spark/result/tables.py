"""A run as pandas tables, and the trial that came out best. It shows what a view of the run holds, no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cerebro_spark.errors import CerebroError, ConfigurationError, TrialFailed
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import UnitRow
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


def best_trial(view: RunView) -> BestTrial:
    """The best trial that did not fail; an error that says why there is none otherwise."""
    best, objective = view.best(), view.objective
    if best is None:
        if view.trials and all(trial.status == "failed" for trial in view.trials.values()):
            raise _all_failed(view)
        raise _nothing_measured(view)
    if objective is not None and objective.metric not in best.metrics:
        raise ConfigurationError(
            f"no trial of run {view.run} measured {objective.metric!r}, so none is the best: measured were"
            f" {sorted(best.metrics)}; search with one of these as `metric`"
        )
    if objective is not None and not _is_measured(view):
        raise CerebroError(
            f"{objective.metric!r} was no finite number in any epoch of run {view.run}, so no trial is the best: look"
            " at result.history, and search with another `metric`, or one that has a value for the rows of validation"
        )
    return BestTrial(best.trial, dict(best.params), dict(best.metrics), best.epoch)


def find_best(view: RunView) -> BestTrial | None:
    """The best trial that did not fail; None if there is none, or none with a finite value."""
    return best_trial(view) if _is_measured(view) else None


def _is_measured(view: RunView) -> bool:
    best, objective = view.best(), view.objective
    return best is not None and (objective is None or math.isfinite(best.metrics.get(objective.metric, 0.0)))


def check_trial(view: RunView, trial: TrialId) -> TrialId:
    """Return the id of a trial of the run; raise ConfigurationError if there is no such trial."""
    if trial not in view.trials:
        raise ConfigurationError(f"run {view.run} has no trial {trial!r}: it has {list(view.trials)}")
    return trial


def trials_table(view: RunView) -> pd.DataFrame:
    """A row a trial, best first: what became of it, the metrics of its best epoch, its params as `param_...`."""
    rows = []
    for trial in view.ranked():
        best = view.best_epoch(trial)
        params = view.trials[trial].params if best is None else best.params
        rows.append(
            {
                "trial": trial,
                "status": view.status(trial),
                "epoch": None if best is None else best.epoch,
                "epochs": view.trials[trial].epochs,
                **_shown({} if best is None else best.metrics),
                **{f"param_{name}": value for name, value in params.items()},
                "error": view.errors.get(trial),
            }
        )
    metrics = _metric_names(view)
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith("param_")))
    return _table(rows, [*_TRIAL_COLUMNS, *metrics, *names, "error"]).astype({"epoch": "Int64"})


def history_table(view: RunView) -> pd.DataFrame:
    """A row an (trial, epoch) in the order of trials and epochs; `seconds` is when it was known, from the start."""
    order = {trial: index for index, trial in enumerate(view.trials)}
    rows = sorted(view.epochs.values(), key=lambda row: (order[row.trial], row.epoch))
    plain = [{"trial": row.trial, "epoch": row.epoch, "seconds": row.at, **_shown(row.metrics)} for row in rows]
    return _table(plain, ["trial", "epoch", "seconds", *_metric_names(view)])


def units_table(view: RunView) -> pd.DataFrame:
    """A row a unit in the order of their ends: who ran it when, and its loss. Times count from the run's start.

    `width` is how many trials were trained, or evaluated, at once then, and `seconds` the unit's share of the time.
    `steps` is how the steps of a training unit were taken: "eager", "graph" (a CUDA graph), "stacked" (one model of
    several trials), or "" where that is not known or no choice. `group` is how many workers trained it together: each
    of them has a row, with its own partition and the loss of all.
    """
    return _table(view.units, list(UnitRow._fields))


def workers_table(view: RunView) -> pd.DataFrame:
    """A row a worker in the order of their coming: what it does, since which second of the run, what waits for it."""
    rows = [
        (worker.id, worker.host, worker.up, worker.activity, worker.since, max(len(worker.orders) - 1, 0))
        for worker in view.workers.values()
    ]
    return _table(rows, ["worker", "host", "up", "doing", "since", "queued"])


def _table(rows: Sequence[Any], columns: list[str]) -> pd.DataFrame:
    """Rows as a table in which None stays None beside text: pandas 3 would make a column of strings, and NaN of it."""
    table = pd.DataFrame(rows, columns=columns)
    plain: Any = pd.DataFrame(rows, columns=columns, dtype=object)
    for at, dtype in enumerate(table.dtypes):
        if isinstance(dtype, pd.StringDtype):
            table.isetitem(at, plain.iloc[:, at])
    return table


def _metric_names(view: RunView) -> list[str]:
    """The columns of metrics: the objective first, then the others as they were first reported."""
    names = dict.fromkeys(name for row in view.epochs.values() for name in row.metrics)
    first = [view.objective.metric] if view.objective and view.objective.metric in names else []
    return list(_shown(dict.fromkeys([*first, *names], 0.0)))


def _shown(metrics: Mapping[str, float]) -> dict[str, float]:
    """A metric whose name is another column's is shown as `metric_...`."""
    taken = (*_TRIAL_COLUMNS, "seconds", "error")
    return {f"metric_{name}" if name in taken else name: value for name, value in metrics.items()}


def _nothing_measured(view: RunView) -> CerebroError:
    """What is over, by itself or because a person ended it, does not go on."""
    has_none = "is over and has no best trial" if view.finished else "has no best trial yet"
    way_on = "start another one" if view.finished else "let it go on (cs.resume)"
    return CerebroError(
        f"run {view.run} {has_none}: none of its {len(view.trials)} trials has an epoch that was trained and"
        f" evaluated; {way_on}"
    )


def _all_failed(view: RunView) -> TrialFailed:
    trial, error = next(iter(view.errors.items()))
    params = dict(view.trials[trial].params)
    kept = [each for each in view.trials if view.best_epoch(each) is not None]
    hint = f"; what trial {kept[0]} learnt before is in result.model({kept[0]!r})" if kept else ""
    return TrialFailed(
        f"all {len(view.trials)} trials of run {view.run} failed, so none is the best{hint}. The first was {trial}"
        f" with params {params!r}:\n{error}"
    )
