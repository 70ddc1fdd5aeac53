"""Early stopping around any search: by patience, by a time budget, by a target. It reads no clock but the reports'.

A trial that is under way cannot be called back, so long orders are handed out an epoch at a time: ending a trial is
then no more than not asking for it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.tune.algorithms.base import Algorithm, at_least
from cerebro_spark.tune.objective import value_of
from cerebro_spark.types import Objective, Report, TrialId, Work


def _is_number(value: object) -> bool:
    """NumPy's numbers are numbers; a bool is none, although Python counts with it."""
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(slots=True)
class _Order:
    """What the search wants of a trial, and up to which epoch it has been asked for."""

    params: Mapping[str, Any]
    until: int
    asked: int


@dataclass(slots=True)
class _Record:
    """How a trial fares: its epochs so far, its best value, and for how many epochs there was no better one."""

    epochs: int = 0
    best: float = float("nan")
    stale: int = 0


class Stopping(Search):
    """Ask what `search` asks, until there is a reason to stop.

    - `patience`: a trial ends after so many epochs in a row without a new best value of its own.
    - `time_budget`: after so many seconds of the run nothing more is asked for; what is under way ends with its epoch.
    - `target`: the same, as soon as any trial reaches this value.

    With none of them every order passes as it is. `ahead` epochs may be under way beyond the one that is not reported
    yet: 0 trains nothing in vain; 1 keeps workers busy during evaluations where trials are fewer than workers.

    >>> from cerebro_spark.tune import hp
    >>> from cerebro_spark.tune.algorithms.grid import GridAlgorithm
    >>> objective = Objective("val_loss", "min")
    >>> search = Stopping(GridAlgorithm({"lr": hp.choice([0.1, 0.2])}, objective, epochs=9), objective, target=0.5)
    >>> search.ask()
    Work(trial='t0', params={'lr': 0.1}, until_epoch=1, warm_start=None)
    >>> search.tell(Report("t0", 1, {"val_loss": 0.4}))
    >>> search.ask()
    Done()
    """

    def __init__(
        self,
        search: Algorithm,
        objective: Objective,
        patience: int | None = None,
        time_budget: float | None = None,
        target: float | None = None,
        ahead: int = 0,
    ) -> None:
        if patience is not None:
            at_least("patience", patience, 1)
        if time_budget is not None and not (_is_number(time_budget) and time_budget > 0):
            raise ConfigurationError(
                f"`time_budget` is {time_budget!r}, but must be above 0 seconds: a number, 3600 for an hour"
            )
        if target is not None and not (_is_number(target) and math.isfinite(target)):
            raise ConfigurationError(
                f"`target` is {target!r}, but must be a finite number: the value of the metric that is good enough"
            )
        at_least("ahead", ahead, 0)
        self.search = search
        self._objective = objective
        self._patience, self._budget, self._target = patience, time_budget, target
        self._slice = None if patience is time_budget is target is None else 1 + ahead
        self._orders: dict[TrialId, _Order] = {}
        self._records: dict[TrialId, _Record] = {}
        self._due: list[TrialId] = []
        self.reason: str | None = None

    def ask(self) -> Work | Wait | Done:
        if self.reason is not None:
            return Done()
        if self._due:
            trial = self._due.pop(0)
            return self._sliced(trial, self._orders[trial])
        answer = self.search.ask()
        if isinstance(answer, Work):
            return self._taken(answer)
        unfinished = self._slice is not None and self._orders
        return Wait() if isinstance(answer, Done) and unfinished else answer

    def tell(self, report: Report) -> None:
        self.search.tell(report)
        value = float("nan") if report.failed else value_of(report, self._objective)
        self.reason = self.reason or self._reason(report, value)
        if report.failed:
            self._drop(report.trial)
            return
        record = self._noted(report, value)
        if self._patience is None or record.stale < self._patience:
            self._go_on(report.trial, record)
        elif report.trial not in self._orders or record.epochs >= self._orders[report.trial].asked:
            self._drop(report.trial)
            self.search.end(report.trial)

    # -- orders and their slices

    def _taken(self, work: Work) -> Work:
        record = self._records.setdefault(work.trial, _Record())
        if work.warm_start is not None:
            # These are other weights: what the old ones reached is no measure for them.
            record.best, record.stale = float("nan"), 0
        order = _Order(work.params, work.until_epoch, record.epochs)
        self._orders[work.trial] = order
        return self._sliced(work.trial, order, work)

    def _sliced(self, trial: TrialId, order: _Order, work: Work | None = None) -> Work:
        epochs = self._records[trial].epochs
        order.asked = order.until if self._slice is None else min(order.until, epochs + self._slice)
        return Work(trial, order.params, order.asked, work.warm_start if work else None)

    def _go_on(self, trial: TrialId, record: _Record) -> None:
        order = self._orders.get(trial)
        if order is None:
            return
        if record.epochs >= order.until:
            del self._orders[trial]
        elif order.asked < min(order.until, record.epochs + (self._slice or 0)) and trial not in self._due:
            self._due.append(trial)

    def _drop(self, trial: TrialId) -> None:
        self._orders.pop(trial, None)
        if trial in self._due:
            self._due.remove(trial)

    # -- reasons to stop

    def _noted(self, report: Report, value: float) -> _Record:
        record = self._records.setdefault(report.trial, _Record())
        record.epochs += 1
        if self._objective.better(value, than=record.best):
            record.best, record.stale = value, 0
        else:
            record.stale += 1
        return record

    def _reason(self, report: Report, value: float) -> str | None:
        if self._target is not None and (value == self._target or self._objective.better(value, than=self._target)):
            return f"trial {report.trial} reached {value}, and the target is {self._target}"
        if self._budget is not None and report.at >= self._budget:
            return f"{report.at:.0f} s have passed, and the budget is {self._budget:.0f} s"
        return None
