"""What future epochs measure, drawn at random so that trials keep their ranks as well as they did so far. PURE.

A search compares trials and waits for improvements. So when a run ends depends on how often ranks change, and on how
curves flatten, and hardly on the values. A value is taken for a sum: of how good its trial is, of how good trials are
after so many epochs, and of chance. All three are measured in this run. A trial of which little is known is nearer to
the average than it seems: who leads after one epoch was lucky, too. Beyond the epochs that any trial has reached steps
become smaller, as those of 1 / epoch do. No model of learning curves is used that would have to fit every metric.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import fmean, median, pvariance, quantiles

from cerebro_spark.types import Objective, TrialId

_Values = dict[TrialId, dict[int, float]]
# The share of chance in the differences between trials, where no trial has two epochs yet.
_CHANCE = 0.3
# Values farther from the middle, in widths of the middle half, belong to trials that diverged: how far does not matter.
_FAR = 6.0


class Curves:
    """The curves of one metric so far.

    Args:
        reported: By trial and epoch, all values that were reported.
        objective: Whose metric it is; None if the run has none, so that nothing can depend on it.
    """

    def __init__(
        self, reported: Mapping[TrialId, Mapping[int, Mapping[str, float]]], objective: Objective | None
    ) -> None:
        name = objective.metric if objective else ""
        self.known: _Values = {
            trial: {epoch: found[name] for epoch, found in epochs.items() if math.isfinite(found.get(name, math.nan))}
            for trial, epochs in reported.items()
        }
        near = _without_far_ones({trial: curve for trial, curve in self.known.items() if curve})
        self._steps = _mean_steps(near)
        self._step_of_none = -1.0 if objective and objective.mode == "min" else 1.0
        self._means: list[float] = [0.0, 0.0]
        """By epoch, how much is gained since the first."""
        self._fit(near)

    def _fit(self, near: _Values) -> None:
        """Part the values into how good trials are and chance."""
        apart = {trial: [value - self.mean(epoch) for epoch, value in curve.items()] for trial, curve in near.items()}
        levels = {trial: fmean(values) for trial, values in apart.items()}
        count = sum(map(len, apart.values()))
        squares = sum((value - levels[trial]) ** 2 for trial, values in apart.items() for value in values)
        spread = pvariance(levels.values()) if len(levels) > 1 else (_any(levels) or 1.0) ** 2
        self._chance = squares / (count - len(apart)) if count > len(apart) else _CHANCE * spread
        shares = [self._chance / len(values) for values in apart.values()]
        self._spread = max(spread - fmean(shares), 0.1 * spread) if shares else spread
        self._middle = fmean(levels.values()) if levels else 0.0
        self._levels = {trial: (levels[trial], len(values)) for trial, values in apart.items()}

    def mean(self, epoch: int) -> float:
        """Return how much trials have gained after an epoch, since the first one."""
        while len(self._means) <= epoch:
            self._means.append(self._means[-1] + self._step(len(self._means)))
        return self._means[epoch]

    def _step(self, epoch: int) -> float:
        if epoch in self._steps:
            return self._steps[epoch]
        if not self._steps:
            return self._step_of_none / epoch**2
        nearest = min(self._steps, key=lambda known: abs(known - epoch))
        return self._steps[nearest] * (nearest / epoch) ** 2

    def level(self, trial: TrialId, luck: random.Random) -> float:
        """Draw how good a trial is, from what it has reported and from how good others are."""
        found, epochs = self._levels.get(trial, (0.0, 0))
        certain = self._spread + self._chance / epochs if epochs else math.inf
        trust = self._spread / certain if certain else 1.0
        middle = trust * found + (1.0 - trust) * self._middle
        return luck.gauss(middle, math.sqrt(max(0.0, (1.0 - trust) * self._spread)))

    def chance(self, luck: random.Random) -> float:
        """Draw what the value of one epoch owes to chance."""
        return luck.gauss(0.0, math.sqrt(self._chance))


class DrawnCurves:
    """The same curves with a future, which depends on the seed alone and not on the order of questions.

    >>> drawn = DrawnCurves(Curves({"t0": {1: {"loss": 3.0}, 2: {"loss": 2.0}}}, Objective("loss", "min")), seed=1)
    >>> drawn.value("t0", 2), drawn.value("t0", 3) == drawn.value("t0", 3)
    (2.0, True)
    """

    def __init__(self, curves: Curves, seed: int) -> None:
        self._curves = curves
        self._seed = seed
        self._levels: dict[TrialId, float] = {}

    def value(self, trial: TrialId, epoch: int) -> float:
        """Return the value of a trial after an epoch: that which was reported, or a drawn one."""
        known = self._curves.known.get(trial, {})
        if epoch in known:
            return known[epoch]
        if trial not in self._levels:
            self._levels[trial] = self._curves.level(trial, random.Random(f"{self._seed}/{trial}"))
        chance = self._curves.chance(random.Random(f"{self._seed}/{trial}/{epoch}"))
        return self._levels[trial] + self._curves.mean(epoch) + chance


def _mean_steps(curves: _Values) -> dict[int, float]:
    """Return by epoch the mean change since the epoch before."""
    steps: dict[int, list[float]] = {}
    for curve in curves.values():
        for epoch, value in curve.items():
            if epoch - 1 in curve:
                steps.setdefault(epoch, []).append(value - curve[epoch - 1])
    return {epoch: fmean(found) for epoch, found in steps.items()}


def _without_far_ones(curves: _Values) -> _Values:
    """Return the curves with values that are far off moved nearer."""
    values = [value for curve in curves.values() for value in curve.values()]
    if len(values) < 4:
        return curves
    low, _, high = quantiles(values)
    reach = _FAR * ((high - low) or abs(median(values)) or 1.0)
    least, most = low - reach, high + reach
    return {t: {epoch: min(max(value, least), most) for epoch, value in curve.items()} for t, curve in curves.items()}


def _any(levels: Mapping[TrialId, float]) -> float:
    return next(iter(levels.values()), 0.0)
