"""What all search algorithms have in common: which trials are being trained, their values, and when all is done.

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
    """A search over a space, with a limited number of trials at a time.

    A trial counts from the Work that asks for it until all its epochs were reported, it failed, or it was ended; one
    that waits for a promotion does not count. A subclass defines what comes next (`_next`), what follows when a trial
    has done its work (`_rested`) or will do no more (`_left`), and its own state. `default_concurrent` is its
    `max_concurrent` if none is given; None for no limit.

    Args:
        space: The space, or the dict to make one from.
        objective: What counts as better.
        trials: How many trials there will be.
        seed: The seed of all random choices.
        max_concurrent: How many trials are trained at a time; None for the default of the algorithm.
    """

    default_concurrent: int | None = None

    def __init__(self, space: SpaceLike, objective: Objective, trials: int, seed: int, max_concurrent: int | None):
        if max_concurrent is not None:
            check_at_least("max_concurrent", max_concurrent, 1)
        self.space = space if isinstance(space, Space) else Space(space)
        self.objective = objective
        self.max_concurrent = self.default_concurrent if max_concurrent is None else max_concurrent
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
            self._leave(report.trial, failed=self._is_lost(report))
            return
        self._note(report, value_of(report, self.objective))
        awaited = self._awaited.get(report.trial, [])
        if report.epoch in awaited:
            awaited.remove(report.epoch)
            if not awaited:
                del self._awaited[report.trial]
                self._rested(report.trial)

    def end(self, trial: TrialId) -> None:
        """End a trial from outside, as early stopping does: its place is free, and what it reported counts."""
        if trial in self._numbers:
            self._leave(trial, failed=False)

    # -- what a subclass defines

    @abstractmethod
    def _next(self) -> Work | None:
        """Return what to ask for now; None if that depends on later reports, or there is nothing left."""

    def _asked_all(self) -> bool:
        """Return whether nothing more will be asked for, whatever is reported."""
        return False

    def _rested(self, trial: TrialId) -> None:
        """Take note of a trial that has done all its work."""

    def _left(self, trial: TrialId, failed: bool) -> None:
        """Take note of a trial that failed or was ended: it is never asked for again. An ended one may fail later."""

    def _is_lost(self, report: Report) -> bool:
        """Whether a trial that will not go on counts as failed. What a person ended counts by what it reported."""
        return not report.ended

    # -- what a subclass may use

    def standing(self, trial: TrialId) -> Standing:
        """Return how far a trial has come; epoch 0 if it has reported nothing."""
        return self._standings.get(trial, Standing())

    def _draw(self, number: int) -> Point:
        """Return a random point for a trial; it depends on the seed and the number alone."""
        return self.space.sample(np.random.default_rng([self._seed, 0, number]))

    def _loss(self, value: float) -> float:
        """Return a value as a loss: less of it is better."""
        return -value if self.objective.mode == "max" else value

    def _ranked(self, values: Mapping[TrialId, float]) -> list[TrialId]:
        """Return the trials that have a value, best first; of equal ones, the first drawn."""
        known = [trial for trial, value in values.items() if value == value]
        return sorted(known, key=lambda trial: (self._loss(values[trial]), self._numbers[trial]))

    def _note(self, report: Report, value: float) -> None:
        """Take note of an epoch that was reported."""
        standing = self._standings.setdefault(report.trial, Standing())
        if report.epoch >= standing.epoch:
            standing.epoch, standing.value = report.epoch, value
        if self.objective.better(value, than=standing.best):
            standing.best = value

    def _leave(self, trial: TrialId, failed: bool) -> None:
        self._awaited.pop(trial, None)
        if failed or trial not in self._gone:
            self._gone.add(trial)
            self._left(trial, failed)
