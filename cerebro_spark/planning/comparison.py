"""A plan held against the run that followed it: what was planned, what it took, and why they differ. PURE."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from cerebro_spark.errors import EventLogError
from cerebro_spark.planning.expectation import Expectation
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.sizes import duration
from cerebro_spark.planning.values import Estimate
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import Timeline

NOTEWORTHY = 0.25
"""A run that took this much longer or shorter, as a share, says why."""
# By how much one part may differ, as a share, before it is a cause.
_CAUSE = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was planned for a run, and what it took, in seconds.

    Args:
        planned: What was planned.
        low: It was to take less in one of twenty cases.
        high: It was to take more in one of twenty cases.
        took: What it took.
        causes: Why it took much longer or shorter, in words.

    >>> print(Comparison(100.0, 90.0, 110.0, 150.0, ("units took 1.4 times as long",)))
    planned 1 min 40 s (1 min 30 s to 1 min 50 s), took 2 min 30 s, 50% longer: units took 1.4 times as long
    """

    planned: float
    low: float
    high: float
    took: float
    causes: tuple[str, ...] = ()

    @property
    def deviation(self) -> float:
        """By which share it took longer than planned; below 0 if it was shorter."""
        return self.took / self.planned - 1

    @property
    def is_noteworthy(self) -> bool:
        """Whether it took so much longer or shorter that people want to know why."""
        return abs(self.deviation) > NOTEWORTHY

    def __str__(self) -> str:
        span = f"planned {duration(self.planned)} ({duration(self.low)} to {duration(self.high)})"
        word = "longer" if self.deviation > 0 else "shorter"
        why = f": {', '.join(self.causes)}" if self.causes else ""
        return f"{span}, took {duration(self.took)}, {abs(self.deviation):.0%} {word}{why}"

    def to_json(self) -> bytes:
        """Return it as a file has it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> Comparison:
        """Return what `to_json` was made from. Raises EventLogError for anything else."""
        try:
            found = json.loads(data)
            return Comparison(**{**found, "causes": tuple(found["causes"])})
        except (ValueError, TypeError, KeyError) as error:
            raise EventLogError(f"the plan beside the log cannot be read: {error}") from error


def compare(planned: Planned, view: RunView) -> Comparison:
    """Hold a plan against a run that is over.

    Args:
        planned: The plan.
        view: The run.
    """
    best, took = planned.estimates[0], view.timeline.end
    found = Comparison(best.seconds, best.low, best.high, took)
    if not found.is_noteworthy:
        return found
    units = Expectation(planned)
    for unit in view.timeline.units:
        params = view.trials[unit.trial].params
        units.add(unit.worker, unit.kind, unit.trial, params, unit.width, unit.seconds, unit.group)
    causes = causes_of(best, units.slowness, view.timeline)
    asked, trained = sum(planned.demand.epochs), len(view.epochs)
    if abs(trained / max(asked, 1) - 1) > _CAUSE:
        causes.append(f"{trained} epochs were trained, where {asked} were likely")
    return replace(found, causes=tuple(causes))


def causes_of(best: Estimate, slowness: float, timeline: Timeline) -> list[str]:
    """Return why a run takes longer or shorter than planned, in words.

    Args:
        best: What was planned.
        slowness: How many times as long as expected units took.
        timeline: The run so far: which workers were lost, and how busy the others were.
    """
    causes, busy = [], timeline.utilisation()
    removed = sum(absence.retired for absence in timeline.absences)
    lost = len(timeline.absences) - removed
    if abs(slowness - 1) > _CAUSE:
        causes.append(f"units took {slowness:.2g} times as long as was measured")
    for count, what in ((lost, "lost"), (removed, "removed")):
        if count:
            causes.append(f"{count} worker{'s were' if count > 1 else ' was'} {what}")
    if busy < best.utilisation - _CAUSE:
        causes.append(
            f"workers waited {1 - busy:.0%} of the time, for hops and for each other, instead of"
            f" {1 - best.utilisation:.0%}"
        )
    return causes
