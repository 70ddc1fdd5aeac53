"""What the units of a run were to take by its plan, and what they took. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_spark.planning.builds import Meetings
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.profile import ScaledSeconds
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.types import TrialId, UnitKind, WorkerId


class Expectation:
    """Adds up the units of a run that follows a plan.

    Args:
        planned: The plan.

    Attributes:
        expected: The seconds that the units so far were to take.
        spent: The seconds that they took.
        whole: The seconds that all units of the search were to take.
    """

    def __init__(self, planned: Planned) -> None:
        self._factor = planned.factor
        self._seconds = ScaledSeconds(planned.profile, planned.estimates[0].option, planned.workload)
        self._meetings = Meetings(planned.profile.builds)
        self._groups = planned.profile.group_times(planned.estimates[0].option, planned.workload)
        self.expected = self.spent = 0.0
        self.whole = sum(
            epochs * self._epoch(planned, f"planned {number}", params)
            for number, (params, epochs) in enumerate(zip(planned.demand.params, planned.demand.epochs, strict=True))
        ) + self._all_meetings(planned)

    def add(
        self,
        worker: WorkerId,
        kind: UnitKind,
        trial: TrialId,
        params: Mapping[str, Any],
        width: int,
        seconds: float,
        group: int = 1,
    ) -> None:
        """Take in a unit that is done, or what one worker of a group did of it.

        Args:
            worker: Who did it.
            kind: Whether it trained or evaluated.
            trial: Its trial.
            params: The params of the trial.
            width: How many units were computed at once.
            seconds: What it took, or its share of what they took together.
            group: How many workers ran it together. What they lose by that was to be expected. Defaults to 1.
        """
        kin = kin_of(params)
        self.expected += self._factor * self._seconds.seconds(kind, trial, params, width).seconds
        self.expected += self._meetings.begin(worker, kind, trial, kin)
        self.spent += seconds * self._groups.efficiency(kin, group)

    @property
    def slowness(self) -> float:
        """How many times as long as expected units took."""
        return self.spent / self.expected if self.expected else 1.0

    @property
    def share(self) -> float:
        """Which share of the work of the whole search is done, from 0 to 1."""
        return min(1.0, self.expected / self.whole) if self.whole else 0.0

    def _epoch(self, planned: Planned, trial: TrialId, params: Mapping[str, Any]) -> float:
        """Return what an epoch of a trial takes, on all partitions one after another."""
        option, workload = planned.estimates[0].option, planned.workload
        checks = workload.validation_partitions or min(option.partitions, workload.validation)
        width = min(option.width, planned.demand.trials)
        train, check = (self._seconds.seconds(kind, trial, params, width).seconds for kind in ("train", "eval"))
        return self._factor * (option.partitions * train + (checks * check if workload.validation else 0.0))

    def _all_meetings(self, planned: Planned) -> float:
        """Return what it takes all workers to meet all trials."""
        builds = planned.profile.builds
        kinds: tuple[UnitKind, ...] = ("train", "eval") if planned.workload.validation else ("train",)
        trials = [(kind, kin_of(params)) for params in planned.demand.params for kind in kinds]
        anew = sum(builds.of(key, is_first=True) - builds.of(key, is_first=False) for key in set(trials))
        return planned.estimates[0].option.workers * (anew + sum(builds.of(key, is_first=False) for key in trials))
