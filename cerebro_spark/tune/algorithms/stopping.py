"""Early stopping around any search: by patience, a time budget or a target. It takes the time from the reports alone.

Work that was given out cannot be cancelled, so it is given out one epoch at a time: to end a trial, it is not asked for
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cerebro_spark.checks import check_at_least, is_number
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.objective import value_of
from cerebro_spark.types import Objective, Report, TrialId, Work


@dataclass(slots=True)
class _TrialScore:
    """How good a trial is: its epochs so far, its best value, and for how many epochs there was no better one."""

    epochs: int = 0
    best: float = float("nan")
    stale: int = 0


class Stopping(Search):
    """Ask what `search` asks, one epoch at a time, until there is a reason to stop.

    Args:
        search: The algorithm.
        objective: What counts as better.
        patience: After how many epochs in a row without a new best value of its own a trial ends. Defaults to None:
            never.
        time_budget: The seconds of the run after which nothing is asked for; the epochs that have begun are finished.
            They stand still while a person pauses the run. Defaults to None: no limit.
        target: The value that ends the run in the same way, as soon as a trial reaches it. Defaults to None: none.

    >>> from cerebro_spark.tune import hp
    >>> from cerebro_spark.tune.algorithms.fixed import GridAlgorithm
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
    ) -> None:
        if patience is not None:
            check_at_least("patience", patience, 1)
        if time_budget is not None and not (is_number(time_budget) and time_budget > 0):
            raise ConfigurationError(
                f"`time_budget` is {time_budget!r}, but must be above 0 seconds: a number, 3600 for an hour"
            )
        if target is not None and not (is_number(target) and math.isfinite(target)):
            raise ConfigurationError(
                f"`target` is {target!r}, but must be a finite number: the value of the metric that is good enough"
            )
        self.search = search
        self._objective = objective
        self._patience, self._budget, self._target = patience, time_budget, target
        self._sliced_work: dict[TrialId, Work] = {}
        self._scores: dict[TrialId, _TrialScore] = {}
        self._due: list[TrialId] = []
        self.reason: str | None = None

    def ask(self) -> Work | Wait | Done:
        if self.reason is not None:
            return Done()
        if self._due:
            return self._next_slice(self._sliced_work[self._due.pop(0)])
        answer = self.search.ask()
        if isinstance(answer, Work):
            return self._begin(answer)
        return Wait() if self._sliced_work else answer

    def tell(self, report: Report) -> None:
        self.search.tell(report)
        value = float("nan") if report.failed else value_of(report, self._objective)
        self.reason = self.reason or self._reason(report, value)
        if report.failed or not self._goes_on(report.trial, value):
            self._sliced_work.pop(report.trial, None)
            self._due = [trial for trial in self._due if trial != report.trial]
        elif report.trial not in self._due:
            self._due.append(report.trial)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Read pickles of earlier versions too, which have other names for two attributes."""
        former = {"_orders": "_sliced_work", "_records": "_scores"}
        self.__dict__.update({former.get(name, name): value for name, value in state.items()})

    def _begin(self, work: Work) -> Work:
        score = self._scores.setdefault(work.trial, _TrialScore())
        if work.warm_start is not None:
            # These are other weights: values of the old ones say nothing about them.
            score.best, score.stale = float("nan"), 0
        self._sliced_work[work.trial] = replace(work, warm_start=None)
        return self._next_slice(work)

    def _next_slice(self, work: Work) -> Work:
        return replace(work, until_epoch=self._scores[work.trial].epochs + 1)

    def _goes_on(self, trial: TrialId, value: float) -> bool:
        """Take note of an epoch that reached `value`; return whether there is another slice of the trial's work."""
        score = self._scores.setdefault(trial, _TrialScore())
        score.epochs += 1
        score.stale += 1
        if self._objective.better(value, than=score.best):
            score.best, score.stale = value, 0
        if self._patience is not None and score.stale >= self._patience:
            self.search.end(trial)
            return False
        return trial in self._sliced_work and score.epochs < self._sliced_work[trial].until_epoch

    def _reason(self, report: Report, value: float) -> str | None:
        if self._target is not None and (value == self._target or self._objective.better(value, than=self._target)):
            return f"trial {report.trial} reached {value}, and the target is {self._target}"
        if self._budget is not None and report.at >= self._budget:
            return f"{report.at:.0f} s have passed, and the budget is {self._budget:.0f} s"
        return None
