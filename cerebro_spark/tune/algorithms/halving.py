"""Successive halving: many trials for a few epochs, the best of them for more. Hyperband, and ASHA without barriers.

Trials are compared at rungs, by their value at that epoch; epochs between rungs decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from cerebro_spark.checks import check_at_least
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike
from cerebro_spark.types import Objective, TrialId, Work


def rungs(max_epochs: int, eta: int, min_epochs: int = 1) -> list[int]:
    """Return the epochs at which trials are compared: `max_epochs`, and that divided by `eta` again and again.

    >>> rungs(81, 3), rungs(100, 3, min_epochs=5)
    ([1, 3, 9, 27, 81], [11, 33, 100])
    """
    check_at_least("min_epochs", min_epochs, 1)
    why = "a trial is trained for `min_epochs` at least" if min_epochs > 1 else ""
    check_at_least("max_epochs", max_epochs, min_epochs, why)
    check_at_least("eta", eta, 2, "with 1 no trial is ever dropped")
    found = [max_epochs]
    while found[0] // eta >= min_epochs:
        found.insert(0, found[0] // eta)
    return found


def brackets(max_epochs: int, eta: int) -> list[list[tuple[int, int]]]:
    """Return Hyperband's brackets, the one with most trials first: for each rung, how many trials until which epoch.

    >>> brackets(9, 3)
    [[(9, 1), (3, 3), (1, 9)], [(3, 3), (1, 9)], [(3, 9)]]
    """
    epochs = rungs(max_epochs, eta)
    boldest = len(epochs) - 1
    # As in the paper's table. Its formula rounds up instead, and would start more trials than the table has.
    starts = [(s, (boldest + 1) // (s + 1) * eta**s) for s in range(boldest, -1, -1)]
    return [[(trials // eta**i, epochs[boldest - s + i]) for i in range(s + 1)] for s, trials in starts]


@dataclass(slots=True)
class _Bracket:
    """A bracket: the trials of its present rung, those that are not asked for yet, and the values of the others.

    `reserve` are the trials that missed the rung, best first.
    """

    plan: list[tuple[int, int]]
    trials: list[TrialId]
    rung: int = 0
    waiting: list[TrialId] = field(default_factory=list)
    values: dict[TrialId, float] = field(default_factory=dict)
    lost: set[TrialId] = field(default_factory=set)
    reserve: list[TrialId] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every trial of the rung has reported, or never will."""
        return all(trial in self.values or trial in self.lost for trial in self.trials)


class HyperbandAlgorithm(Algorithm):
    """All brackets run together: while one waits for the last trial of a rung, the others keep the workers busy.

    >>> from cerebro_spark.tune import hp
    >>> search = HyperbandAlgorithm({"lr": hp.uniform(0, 1)}, Objective("loss", "min"), max_epochs=9)
    >>> search.table
    [[(9, 1), (3, 3), (1, 9)], [(3, 3), (1, 9)], [(3, 9)]]
    """

    def __init__(
        self,
        space: SpaceLike,
        objective: Objective,
        max_epochs: int,
        eta: int = 3,
        seed: int = 0,
        max_concurrent: int | None = None,
    ) -> None:
        self.table = brackets(max_epochs, eta)
        super().__init__(space, objective, sum(plan[0][0] for plan in self.table), seed, max_concurrent)
        ids = iter(self._ids)
        starts = [(plan, list(islice(ids, plan[0][0]))) for plan in self.table]
        self._brackets = [_Bracket(plan, trials, waiting=list(trials)) for plan, trials in starts]
        self._home = {trial: bracket for bracket in self._brackets for trial in bracket.trials}

    def _next(self) -> Work | None:
        """Return a promoted trial before a new one, from the highest rung first: other trials depend on it."""
        for bracket in sorted(self._brackets, key=lambda bracket: -bracket.rung):
            if bracket.waiting:
                trial = bracket.waiting.pop(0)
                params = self.space.params(self._draw(self._numbers[trial]))
                return Work(trial, params, bracket.plan[bracket.rung][1])
        return None

    def _rested(self, trial: TrialId) -> None:
        bracket = self._home[trial]
        bracket.values[trial] = self.standing(trial).value
        self._climb(bracket)

    def _left(self, trial: TrialId, failed: bool) -> None:
        bracket = self._home[trial]
        bracket.lost.add(trial)
        if trial in bracket.waiting:
            # Its place in the rung was not used yet, so the next best trial takes it.
            heirs = [other for other in bracket.reserve if other not in bracket.lost]
            bracket.waiting = _replaced(bracket.waiting, trial, heirs[:1])
            bracket.trials = _replaced(bracket.trials, trial, heirs[:1])
            bracket.reserve = heirs[1:]
        self._climb(bracket)

    def _climb(self, bracket: _Bracket) -> None:
        """Promote the best trials of a complete rung: as many as planned, or all that can."""
        while bracket.complete and bracket.trials and bracket.rung + 1 < len(bracket.plan):
            able = {trial: value for trial, value in bracket.values.items() if trial not in bracket.lost}
            bracket.rung += 1
            ranked, places = self._ranked(able), bracket.plan[bracket.rung][0]
            bracket.trials, bracket.reserve = ranked[:places], ranked[places:]
            bracket.waiting = list(bracket.trials)
            bracket.values = {}


def _replaced(trials: list[TrialId], one: TrialId, by: list[TrialId]) -> list[TrialId]:
    """Return the trials with one of them replaced, or removed if there is no replacement.

    >>> _replaced(["t0", "t1"], "t0", ["t7"]), _replaced(["t0", "t1"], "t0", [])
    (['t7', 't1'], ['t1'])
    """
    return [each for trial in trials for each in (by if trial == one else [trial])]


class ASHAAlgorithm(Algorithm):
    """Asynchronous successive halving: a trial is promoted as soon as it is among the best 1/eta of its rung so far.

    There is no barrier: if no trial can be promoted, a new one begins. `max_epochs` is the total of a trial that passes
    every rung. A rung promotes no trial before `eta` trials have reached it.

    >>> from cerebro_spark.tune import hp
    >>> search = ASHAAlgorithm({"lr": hp.uniform(0, 1)}, Objective("loss", "min"), num_trials=9, max_epochs=9)
    >>> search.rungs
    [1, 3, 9]
    """

    # Trials are promoted by what has been reported: if all began at once, no report would be there to decide by.
    default_concurrent = 16

    def __init__(
        self,
        space: SpaceLike,
        objective: Objective,
        num_trials: int,
        max_epochs: int,
        eta: int = 3,
        min_epochs: int = 1,
        seed: int = 0,
        max_concurrent: int | None = None,
    ) -> None:
        check_at_least("num_trials", num_trials, 1)
        self.rungs = rungs(max_epochs, eta, min_epochs)
        super().__init__(space, objective, num_trials, seed, max_concurrent)
        self._eta = eta
        self._values: list[dict[TrialId, float]] = [{} for _ in self.rungs]
        self._rung: dict[TrialId, int] = {}

    def _next(self) -> Work | None:
        trial = self._promoted() or self._new()
        if trial is None:
            return None
        self._rung[trial] = self._rung.get(trial, -1) + 1
        params = self.space.params(self._draw(self._numbers[trial]))
        return Work(trial, params, self.rungs[self._rung[trial]])

    def _new(self) -> TrialId | None:
        begun = len(self._rung)
        return self._ids[begun] if begun < len(self._ids) else None

    def _promoted(self) -> TrialId | None:
        """Return the best trial of the highest rung that has one to promote; `_rung` tells which have left it."""
        for rung in range(len(self.rungs) - 2, -1, -1):
            values = self._values[rung]
            for trial in self._ranked(values)[: len(values) // self._eta]:
                if self._rung[trial] == rung and trial not in self._gone:
                    return trial
        return None

    def _rested(self, trial: TrialId) -> None:
        self._values[self._rung[trial]][trial] = self.standing(trial).value
