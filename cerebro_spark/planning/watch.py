"""Holds a plan against its run while that goes on. It only watches, and knows no clock but the times of events."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cerebro_spark.events import UnitFinished
from cerebro_spark.planning.comparison import NOTEWORTHY, causes_of
from cerebro_spark.planning.expectation import Expectation
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.sizes import duration
from cerebro_spark.planning.values import Estimate
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import Timeline
from cerebro_spark.turns import Turn

_log = logging.getLogger("cerebro_spark")
# The share of the work that must be done before it says anything of the rest.
_ENOUGH = 0.1
# What is said at these shares of the work, whether or not the run goes as planned.
_MILESTONES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands by its plan, in seconds of the run.

    Args:
        planned: What was planned for all of it.
        share: Which share of the work is done.
        passed: How long it has been going on.
        likely: How long all of it will take, if the rest goes like this.
        causes: Why that is much longer or shorter than planned, in words. Defaults to `()`: it is not.

    >>> print(Standing(100.0, 0.5, 80.0, 160.0, ("1 worker was lost",)))
    50% of the work done after 1 min 20 s: planned 1 min 40 s, now likely 2 min 40 s, 60% longer: 1 worker was lost
    """

    planned: float
    share: float
    passed: float
    likely: float
    causes: tuple[str, ...] = ()

    @property
    def deviation(self) -> float:
        """By which share it will take longer than planned; below 0 if it will be shorter."""
        return self.likely / self.planned - 1

    def __str__(self) -> str:
        word = "longer" if self.deviation > 0 else "shorter"
        why = f": {', '.join(self.causes)}" if self.causes else ""
        return (
            f"{self.share:.0%} of the work done after {duration(self.passed)}: planned {duration(self.planned)},"
            f" now likely {duration(self.likely)}, {abs(self.deviation):.0%} {word}{why}"
        )


class PlanWatch:
    """An observer of a run that follows a plan.

    In the log it says a few times how the run goes by its plan, and at once, with the causes, when it turns out to take
    over 25 % longer or shorter. Beside the bar it says how long it will take.

    Args:
        planned: The plan.
    """

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._units = Expectation(planned)
        self._view = RunView(timeline=Timeline(keep_units=False))
        self._at = 0.0
        self._milestones = list(_MILESTONES)
        self._said = 1.0

    def __call__(self, turn: Turn) -> None:
        self._view.apply(turn)
        for event, outcome in turn:
            self._at = event.at
            if isinstance(event, UnitFinished) and outcome.counted:
                unit = event.unit
                params = self._view.trials[unit.trial].params
                for worker in event.workers:
                    done = (event.width, event.seconds, len(event.workers))
                    self._units.add(worker, unit.kind, unit.trial, params, *done)
        self._tell()

    @property
    def standing(self) -> Standing | None:
        """Where the run stands; None while too little is done to say."""
        best, share = self._planned.estimates[0], self._share()
        if share < _ENOUGH:
            return None
        rest = self._rest(best)
        standing = Standing(best.seconds, share, self._at, self._at + rest)
        if abs(standing.deviation) <= NOTEWORTHY:
            return standing
        causes = causes_of(best, self._units.slowness, self._view.timeline)
        return Standing(best.seconds, share, self._at, self._at + rest, tuple(causes))

    def _share(self) -> float:
        """Return which share of the run is over: of its work, or of its time budget."""
        budget = self._planned.time_budget
        return max(self._units.share, 0.0 if budget is None else min(1.0, self._at / budget))

    def _rest(self, best: Estimate) -> float:
        """Return how long the rest takes, if it goes on like this."""
        budget, there = self._planned.time_budget, max(1, self._view.counts().workers)
        left = (1 - self._units.share) * self._units.slowness
        if budget is None:
            return left * best.seconds * best.option.workers / there
        return min(left * self._units.whole / (there * max(best.utilisation, 0.01)), max(0.0, budget - self._at))

    def in_brief(self) -> str:
        """Return what stands beside the bar; empty while too little is done to say.

        Called after each turn of a run.
        """
        standing = self.standing
        return f"planned {duration(standing.planned)}, likely {duration(standing.likely)}" if standing else ""

    def _tell(self) -> None:
        standing = self.standing
        if standing is None:
            return
        reached = [share for share in self._milestones if standing.share >= share]
        self._milestones = self._milestones[len(reached) :]
        ratio = standing.likely / standing.planned
        news = abs(ratio / self._said - 1) > NOTEWORTHY
        if not reached and not news:
            return
        self._said = ratio if news else self._said
        level = logging.WARNING if news and abs(standing.deviation) > NOTEWORTHY else logging.INFO
        _log.log(level, "run %s: %s", self._view.run, standing)
