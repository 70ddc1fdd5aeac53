"""What all search algorithms have in common: which trials are under way, how they stand, when all is done.

PURE: no clock, no I/O, no global randomness. The same seed and the same order of reports give the same answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_spark.checks import check_at_least
from cerebro_spark.search import Done, Search, Wait, make_trial_ids
from cerebro_spark.tune.objective import value_of
from cerebro_spark.tune.spaces.space import Point, Space
from cerebro_spark.types import Objective, Report, TrialId, Work

SpaceLike = Space | Mapping[str, Any]
_NAN = float("nan")


@dataclass(slots=True)
class Standing:
    """How far a trial has come: its last epoch and the value there, and the best value of all its epochs."""

    epoch: int = 0
    value: float = _NAN
    best: float = _NAN


class Algorithm(Search):
    """A search over a space, with at most `max_concurrent` trials under way.

    A trial is under way from the Work that asks for it until all its epochs were reported, it failed, or it was
    ended; one that waits for a promotion is not. What a subclass has to say: what comes next (`_next`), what it makes
    of a trial that did what it was asked (`_rested`) or that will do no more (`_left`), and its own state.
    """

    def __init__(self, space: SpaceLike, objective: Objective, trials: int, seed: int, max_concurrent: int | None):
        check_at_least("seed", seed, 0)
        if max_concurrent is not None:
            check_at_least("max_concurrent", max_concurrent, 1)
        self.space = space if isinstance(space, Space) else Space(space)
        self.objective = objective
        self.max_concurrent = max_concurrent
        self._seed = seed
        self._ids = make_trial_ids(trials)
        self._numbers = {trial: number for number, trial in enumerate(self._ids)}
        self._awaited: dict[TrialId, list[int]] = {}
        self._standings: dict[TrialId, Standing] = {}
        self._gone: set[TrialId] = set()

    # -- the protocol

    def ask(self) -> Work | Wait | Done:
        if self._asked_all():
            return Done()
        if self.max_concurrent is None or len(self._awaited) < self.max_concurrent:
            work = self._next()
            if work is not None:
                self._awaited[work.trial] = list(range(self.standing(work.trial).epoch + 1, work.until_epoch + 1))
                return work
        return Wait() if self._awaited else Done()

    def tell(self, report: Report) -> None:
        if report.trial not in self._numbers:
            return
        if report.failed:
            self._leave(report.trial, failed=True)
            return
        value = value_of(report, self.objective)
        self._note(report, value)
        awaited = self._awaited.get(report.trial, [])
        if report.epoch in awaited:
            awaited.remove(report.epoch)
            if not awaited:
                del self._awaited[report.trial]
                self._rested(report.trial)

    def end(self, trial: TrialId) -> None:
        """Somebody else has decided that this trial trains no further: it frees its place; what it reported counts."""
        if trial in self._numbers:
            self._leave(trial, failed=False)

    # -- what a subclass says

    @abstractmethod
    def _next(self) -> Work | None:
        """What to ask for now; None if that depends on reports to come, or there is no more."""

    def _asked_all(self) -> bool:
        """Whether nothing will be asked for any more, whatever is reported."""
        return False

    def _noted(self, report: Report, value: float) -> None:
        """An epoch of a trial was reported."""

    def _rested(self, trial: TrialId) -> None:
        """A trial has done what it was asked for, and nothing of it is under way."""

    def _left(self, trial: TrialId, failed: bool) -> None:
        """A trial failed or was ended: it must not be asked for again. One that was ended may fail after that."""

    # -- what a subclass may use

    def standing(self, trial: TrialId) -> Standing:
        """How far a trial has come; nowhere, if it never reported."""
        return self._standings.get(trial, Standing())

    def _draw(self, number: int) -> Point:
        """The point of a trial drawn at random: it depends on the seed and the number alone."""
        return self.space.sample(np.random.default_rng([self._seed, 0, number]))

    def _ranked(self, values: Mapping[TrialId, float]) -> list[TrialId]:
        """The trials that have a value, best first; of equal ones the first drawn."""
        sign = -1.0 if self.objective.mode == "max" else 1.0
        known = [trial for trial, value in values.items() if value == value]
        return sorted(known, key=lambda trial: (sign * values[trial], self._numbers[trial]))

    def _note(self, report: Report, value: float) -> None:
        standing = self._standings.setdefault(report.trial, Standing())
        if report.epoch >= standing.epoch:
            standing.epoch, standing.value = report.epoch, value
        if self.objective.better(value, than=standing.best):
            standing.best = value
        self._noted(report, value)

    def _leave(self, trial: TrialId, failed: bool) -> None:
        self._awaited.pop(trial, None)
        if failed or trial not in self._gone:
            self._gone.add(trial)
            self._left(trial, failed)


def packed(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return value if value == value else None
