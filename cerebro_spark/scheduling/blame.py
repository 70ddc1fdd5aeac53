"""Whether a worker or a trial is at fault when units or loads fail on a worker. PURE.

What fails on one worker only is that worker's fault; what fails elsewhere too is the trial's. A single failure tells
nothing, so nothing is decided before `max_failures` in a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from cerebro_spark.events import FailRun, UnitFailed
from cerebro_spark.scheduling.records import Part, TrialRecord, WorkerRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.scheduling.trials import TrialRules
from cerebro_spark.scheduling.workers import WorkerRules
from cerebro_spark.types import PartitionId, Unit, WorkerId


class BlameRules:
    """Fails trials, sets workers aside, or ends the run, as failures add up.

    A worker on which too much failed in a row is set aside, if there are others, and what failed is tried elsewhere. If
    it succeeds there, the worker is dismissed. If it fails there too, the trial fails and the worker comes back. Where
    there are several hosts, elsewhere means another host.
    """

    def __init__(self, state: State, trials: TrialRules, workers: WorkerRules) -> None:
        self._state = state
        self._trials = trials
        self._workers = workers

    # -- what failed

    def judge_unit(self, worker: WorkerRecord, trial: TrialRecord, event: UnitFailed) -> None:
        """A unit failed, and its worker says that the worker is at fault."""
        if trial.status == "failed":
            return
        most = self._state.settings.max_failures
        strikes = trial.setbacks_of(event.unit).failures
        strikes.append(worker.id)
        worker.failures = [*(part for part in worker.failures if self._goes_on(part)), _part(event.unit)]
        if len(strikes) >= most and self._also_elsewhere(worker, strikes):
            times = f"{len(strikes)} times in a row"
            self._trials.fail(trial, f"unit {event.unit} failed {times}; the last time: {event.error}")
        elif len(strikes) >= most or self._is_at_fault(worker):
            self._set_aside(worker)

    def judge_load(self, worker_id: WorkerId, partition: PartitionId, reason: str) -> None:
        """A worker could not load a partition, or lost it: try again, there or elsewhere, but not for ever."""
        state = self._state
        worker = state.workers.get(worker_id)
        if worker is None:
            return
        if partition in worker.unwanted:
            worker.unwanted.remove(partition)
        if not worker.live or worker.retiring:
            return
        state.look_at_all = True
        most = state.settings.max_failures
        strikes = state.holdings.record_failed_load(worker, partition)
        worker.failed_loads += 1
        if len(strikes) >= most and self._also_elsewhere(worker, strikes):
            times = f"{len(strikes)} times in a row"
            state.actions.append(FailRun(f"partition {partition} could not be loaded {times}; the last time: {reason}"))
            # If the run is resumed, something was mended: every worker may try again.
            strikes.clear()
        elif len(strikes) >= most or self._is_at_fault(worker):
            self._set_aside(worker)
        else:
            state.actions += state.holdings.settle()

    # -- what went well

    def clear(self, worker: WorkerRecord, unit: Unit) -> None:
        """The worker ran a unit well: workers on which the same failed before were at fault, and not the trial."""
        worker.failures, worker.failed_loads = [], 0
        for doubted in list(self._workers.in_doubt):
            if doubted is not worker and _part(unit) in doubted.doubters:
                self._workers.no_longer_in_doubt(doubted)
                self._workers.dismiss(doubted)

    def review(self) -> None:
        """Take back workers that are no longer in doubt, and those that are needed because no other is left."""
        for doubted in list(self._workers.in_doubt):
            doubted.doubters = {part for part in doubted.doubters if self._is_undecided(part)}
            if not doubted.doubters or not self._others(doubted):
                self._workers.reinstate(doubted)

    # -- which worker is at fault

    def _is_at_fault(self, worker: WorkerRecord) -> bool:
        """Whether so much failed on this worker that another one should do its work, and there is one."""
        failures = len(worker.failures) + worker.failed_loads
        return failures >= self._state.settings.max_failures and bool(self._others(worker))

    def _also_elsewhere(self, worker: WorkerRecord, strikes: Iterable[WorkerId]) -> bool:
        """Whether what failed here failed elsewhere too, on another host if there is one; True if it is alone."""
        others = self._others(worker)
        if any(other.host != worker.host for other in others):
            return any(self._state.workers[name].host != worker.host for name in strikes)
        return not others or any(name != worker.id for name in strikes)

    def _set_aside(self, worker: WorkerRecord) -> None:
        """Let others do the work of this one. What failed on it and on its host counts as one failure from now on."""
        trials = self._state.trials
        neighbours = {other.id for other in self._state.workers.values() if other.host == worker.host}
        for name in dict.fromkeys(trial for trial, _, _ in worker.failures):
            self._trials.forgive(trials[name], worker.id, neighbours)
        self._state.holdings.forgive(worker.id, neighbours)
        if not worker.retiring:
            self._workers.set_aside(worker)

    def _goes_on(self, part: Part) -> bool:
        """Whether the trial has not been found at fault itself."""
        return self._state.trials[part[0]].status not in ("failed", "stopped")

    def _is_undecided(self, part: Part) -> bool:
        """Whether it is still open whether this fails elsewhere too."""
        name, kind, epoch = part
        trial = self._state.trials[name]
        ahead = epoch in trial.evaluations if kind == "eval" else trial.status == "training"
        return ahead and self._goes_on(part)

    def _others(self, worker: WorkerRecord) -> list[WorkerRecord]:
        return [other for other in self._state.holdings.available() if other is not worker]


def _part(unit: Unit) -> Part:
    return unit.trial, unit.kind, unit.epoch
