"""Population-based training: the worst members continue from checkpoints of the best, with slightly changed params.

It starts only from a checkpoint that is sure to be kept: the one of a member's last report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cerebro_spark.checks import check_at_least
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.algorithms.base import Algorithm, SpaceLike
from cerebro_spark.tune.spaces.space import Point
from cerebro_spark.types import Checkpoint, Objective, Report, TrialId, Work


@dataclass(slots=True)
class _Member:
    """One trial; `score` and `checkpoint` are of its last report, whatever the epoch: that checkpoint is kept."""

    point: Point
    score: float = float("nan")
    checkpoint: Checkpoint | None = None


class PBTAlgorithm(Algorithm):
    """Train a population for `epochs` epochs; every `perturb_every` epochs a member is compared with the others.

    No member waits: it is compared with the last reports of the others. One in the lowest `quantile` *exploits* one of
    the highest, by continuing from its checkpoint, and *explores*, by changing its params a little.

    `perturb` names, by path, the hyperparameters that explore. By default these are the numbers that are not whole: a
    whole number, a name or a dict may shape the model, and another one would not fit the weights. Those are copied
    unchanged.

    >>> from cerebro_spark.tune import hp
    >>> space = {"lr": hp.loguniform(1e-4, 1e-1), "hidden": hp.choice([64, 128])}
    >>> search = PBTAlgorithm(space, Objective("val_loss", "min"), population=4, epochs=10, perturb_every=2)
    >>> search.perturbed
    ['lr']
    """

    def __init__(
        self,
        space: SpaceLike,
        objective: Objective,
        population: int,
        epochs: int,
        perturb_every: int = 1,
        quantile: float = 0.25,
        perturb: Sequence[str] | None = None,
        seed: int = 0,
        max_concurrent: int | None = None,
    ) -> None:
        check_at_least("population", population, 2, "one member alone has no other to learn from")
        check_at_least("epochs", epochs, 1)
        check_at_least("perturb_every", perturb_every, 1)
        if not isinstance(quantile, int | float) or not 0 < quantile <= 0.5:
            raise ConfigurationError(
                f"`quantile` is {quantile!r}, but must be above 0 and at most 0.5: none is both among best and worst"
            )
        super().__init__(space, objective, population, seed, max_concurrent)
        self.perturbed = self._perturbable(perturb)
        self._epochs, self._every, self._quantile = epochs, perturb_every, quantile
        self._members = {trial: _Member(self._draw(number)) for number, trial in enumerate(self._ids)}
        self._resting: list[TrialId] = list(self._ids)

    def _perturbable(self, perturb: Sequence[str] | None) -> list[str]:
        dimensions = self.space.dimensions
        if perturb is None:
            found = [path for path, dimension in dimensions.items() if dimension.fluid]
            if not found:
                raise ConfigurationError(
                    "all hyperparameters of the space are whole numbers, names or dicts, so nothing can explore:"
                    f" add one that is not, or name some of {list(dimensions)} as `perturb` if the model's shape does"
                    " not depend on them"
                )
            return found
        if isinstance(perturb, str):
            raise ConfigurationError(f"`perturb` is {perturb!r}, but must be a list of names: write [{perturb!r}]")
        unknown = [path for path in perturb if path not in dimensions]
        if unknown or not perturb:
            raise ConfigurationError(
                f"`perturb` is {list(perturb)}, but must name hyperparameters of the space: {list(dimensions)}"
            )
        return list(perturb)

    def _next(self) -> Work | None:
        """Return work for the member with the fewest epochs."""
        if not self._resting:
            return None
        trial = min(self._resting, key=lambda trial: (self.standing(trial).epoch, self._numbers[trial]))
        self._resting.remove(trial)
        epoch = self.standing(trial).epoch
        parent = self._parent(trial, epoch) if epoch else None
        warm_start = self._exploit(trial, epoch, parent) if parent is not None else None
        until = min(epoch + self._every, self._epochs)
        return Work(trial, self.space.params(self._members[trial].point), until, warm_start)

    def _parent(self, trial: TrialId, epoch: int) -> TrialId | None:
        """Return one of the best members for one of the worst, or else None."""
        scores = {t: member.score for t, member in self._members.items() if member.checkpoint is not None}
        ranked = self._ranked(scores)
        ranked += [other for other in scores if other not in ranked]
        many = int(len(ranked) * self._quantile)
        if not many and len(ranked) == len(self._members):
            many = 1
        if not many or len(ranked) < 2 or trial not in ranked[-many:]:
            return None
        better = [t for t in ranked[:many] if self.objective.better(scores[t], than=scores[trial])]
        return better[int(self._rng(trial, epoch, 0).integers(len(better)))] if better else None

    def _exploit(self, trial: TrialId, epoch: int, parent: TrialId) -> Checkpoint:
        """Copy the parent's weights and params, and change the params a little."""
        member, source = self._members[trial], self._members[parent]
        rng = self._rng(trial, epoch, 1)
        moved = {
            path: self.space.dimensions[path].moved(value, rng) if path in self.perturbed else value
            for path, value in source.point.items()
        }
        # A choice that was perturbed may lead to an option with hyperparameters of its own.
        anew = {path: dimension.sample(rng) for path, dimension in self.space.dimensions.items()}
        member.point = self.space.fitted({**anew, **moved})
        assert source.checkpoint is not None
        return source.checkpoint

    def _rng(self, trial: TrialId, epoch: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, 1, self._numbers[trial], epoch, purpose])

    def _note(self, report: Report, value: float) -> None:
        super()._note(report, value)
        member = self._members.get(report.trial)
        if member is not None and report.checkpoint is not None:
            member.score, member.checkpoint = value, report.checkpoint

    def _rested(self, trial: TrialId) -> None:
        if self.standing(trial).epoch < self._epochs and trial not in self._gone:
            self._resting.append(trial)

    def _is_lost(self, report: Report) -> bool:
        """Whether a member counts as failed: also if a person ended it, as its checkpoints may go with it.

        If it stayed, it would be the worst member for ever, and no other one would learn from the best.
        """
        return True

    def _left(self, trial: TrialId, failed: bool) -> None:
        """Forget a member that failed; others can still learn from one that was ended."""
        if failed:
            self._members.pop(trial, None)
        if trial in self._resting:
            self._resting.remove(trial)
