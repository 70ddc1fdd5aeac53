"""The rules for trials: what they are asked for, how their epochs go by, when they end. PURE."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import Any

from cerebro_spark.codec import to_plain
from cerebro_spark.errors import SchedulingError
from cerebro_spark.events import FailRun, RunUnit, TellSearch, UnitFailed, UnitFinished, WorkAdded, WorkCommanded
from cerebro_spark.scheduling.bundles import BundleRules
from cerebro_spark.scheduling.evaluations import infer_merging
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.scheduling.records import Evaluation, Kill, TrialRecord, WorkerRecord, merge_failures
from cerebro_spark.scheduling.script import ScriptRules
from cerebro_spark.scheduling.state import State
from cerebro_spark.types import ENDED_BY_A_PERSON, Checkpoint, Metrics, Report, TrialId, Unit, Work, WorkerId

# In a replay a unit is trained by as many workers as it was: after so many lost groups in a row its trial fails.
_MOST_LOST_OF_SCRIPT = 10


class TrialRules:
    """Changes the state of trials as facts come in."""

    def __init__(self, state: State, bundles: BundleRules) -> None:
        self._state = state
        self._bundles = bundles
        self._script = ScriptRules(state, self.rest, self.fail, self._set_params)

    # -- what the search wants

    def add_work(self, event: WorkAdded) -> None:
        """Train a trial, new or known, up to an epoch."""
        state, work = self._state, event.work
        trial = state.trials.get(work.trial)
        if trial is not None and not self.takes(event):
            self._refuse(trial)
            return
        if trial is None:
            trial = self._new(work, event.cost)
            if isinstance(event, WorkCommanded):
                trial.personal = True
                state.clones.add(trial.id)
        self._check(work, trial)
        if isinstance(event, WorkCommanded):
            self._take_over(trial)
            state.halted.discard(trial.id)
        if state.settings.script:
            self._script.add_work(trial, work)
            return
        self._check_turn(work, trial)
        if work.warm_start is not None:
            state.delete(state.retention.exchange(trial.latest, work.warm_start))
            trial.latest = work.warm_start
        trial.rebased = trial.rebased or work.warm_start is not None or not _same(trial.params, work.params)
        trial.works += 1
        self._set_params(trial, work.params)
        trial.until = work.until_epoch
        trial.status = "training"
        self._bundles.extend(trial)
        state.look_at_all = True

    def takes(self, event: WorkAdded) -> bool:
        """Whether this work is begun: not if a search asks for a trial that was stopped, or that is a person's."""
        trial = self._state.trials.get(event.work.trial)
        return trial is None or isinstance(event, WorkCommanded) or not (trial.personal or trial.status == "stopped")

    def _refuse(self, trial: TrialRecord) -> None:
        if trial.id in self._state.clones:
            raise SchedulingError(f"the search asked for trial {trial.id}, which is the name of a clone: use another")
        error = ENDED_BY_A_PERSON if trial.personal else "the trial was stopped"
        self._tell(Report(trial.id, trial.epoch - 1, at=self._state.now, error=error))

    # -- what people want (see `steering.py`)

    def halt(self, trial: TrialRecord) -> None:
        """Give out nothing of this trial from now on. What it has done is kept, so that it can go on later."""
        self._take_over(trial)
        self.set_halted(trial)

    def set_halted(self, trial: TrialRecord) -> None:
        """Stop a trial without a word to the search."""
        self._state.halted.add(trial.id)
        trial.status = "stopped"
        if trial.attempt is None:
            self.rest(trial)

    def _take_over(self, trial: TrialRecord) -> None:
        """From now on a person decides about this trial: that is the last which the search hears of it."""
        if not trial.personal:
            trial.personal = True
            self._tell(Report(trial.id, trial.epoch - 1, at=self._state.now, error=ENDED_BY_A_PERSON))

    def stop(self, trial_id: TrialId) -> None:
        """Let the running unit end, then train no further."""
        trial = self._state.trials.get(trial_id)
        if trial is None or trial.status in ("failed", "stopped"):
            return
        trial.status = "stopped"
        if trial.attempt is None:
            self.rest(trial)

    def estimate_cost(self, trial_id: TrialId, seconds: float) -> None:
        """Expect units of this trial and its kin to take about as many seconds, until one is measured."""
        state = self._state
        if not state.tells_kin:
            state.tells_kin = True
            for trial in state.trials.values():
                self._set_params(trial, trial.params)
        state.board.costs.estimate(state.trials[trial_id].kin, seconds)

    def end_search(self) -> None:
        """The search asks for nothing more: paused trials are over."""
        self._state.search_ended = True
        for trial in self._state.trials.values():
            self._let_go(trial)

    def _new(self, work: Work, cost: float | None) -> TrialRecord:
        board = self._state.board
        trial = TrialRecord(work.trial, board.add_trial(work.trial), work.params, work.until_epoch, status="paused")
        self._state.trials[work.trial] = trial
        board.costs.add_trial(trial.row, cost, self._kin_of(work.params))
        return trial

    def _set_params(self, trial: TrialRecord, params: Mapping[str, Any]) -> None:
        trial.params, trial.kin = params, self._kin_of(params)
        self._state.board.costs.set_kin(trial.row, trial.kin)

    def _kin_of(self, params: Mapping[str, Any]) -> str:
        """Return whom a trial may go together with, and costs as much as; "" where nobody asks."""
        return kin_of(params) if self._state.tells_kin else ""

    def _check(self, work: Work, trial: TrialRecord) -> None:
        if trial.status == "failed":
            raise SchedulingError(f"work was asked for trial {trial.id}, which has failed: {trial.error}")
        if work.warm_start is not None and work.warm_start not in self._state.retention:
            raise SchedulingError(f"trial {trial.id} was to start from {work.warm_start.name}, which is not kept")

    def _check_turn(self, work: Work, trial: TrialRecord) -> None:
        if work.until_epoch < trial.epoch:
            raise SchedulingError(
                f"trial {trial.id} was asked for until epoch {work.until_epoch}, but has trained {trial.epoch - 1}:"
                " ask for a later one"
            )
        if work.warm_start is not None and trial.status == "training":
            raise SchedulingError(f"trial {trial.id} cannot be warm-started while it trains: wait for its report")

    # -- units that succeeded

    def finish_training(self, trial: TrialRecord, event: UnitFinished) -> None:
        """A training unit left a checkpoint: the trial is free again, or its epoch is over."""
        state = self._state
        if event.checkpoint is None:
            raise SchedulingError(f"training unit {event.unit} finished without a checkpoint")
        mates = self._bundles.mates(trial)
        if not mates:
            state.board.finish(trial.row)
        self._went_well(trial, event.unit)
        trial.rebased = trial.params != trial.running_params
        # What a group measured is measured once, for all of its partitions.
        trial.trained |= {event.unit.partition: event.metrics, **dict.fromkeys(event.unit.beside, Metrics())}
        trial.merging = infer_merging(event.metrics)
        state.delete(state.retention.exchange(trial.latest, event.checkpoint))
        trial.latest = event.checkpoint
        if trial.status == "failed":
            self.rest(trial)
        elif trial.step == state.board.columns:
            self._end_epoch(trial, event.checkpoint, event.values)
        elif trial.status == "stopped":
            self.rest(trial)
        elif not mates:
            state.fresh_trials.append(trial.row)
        if mates:
            self._bundles.settle(mates[0])
        if state.settings.script:
            self._script.follow(trial)

    def finish_evaluation(self, trial: TrialRecord, event: UnitFinished) -> None:
        """An evaluation unit measured something; after the last one the search is told."""
        evaluation = trial.evaluations.get(event.unit.epoch)
        if evaluation is None:
            return
        self._went_well(trial, event.unit)
        if self._state.evaluations.record(trial.id, evaluation, event):
            self._report(trial, evaluation)
            if self._state.settings.script:
                self._script.follow(trial)

    def _end_epoch(self, trial: TrialRecord, checkpoint: Checkpoint, values: Mapping[str, float] | None) -> None:
        state = self._state
        evaluation = self._begin_evaluation(trial, checkpoint, values)
        trial.trained = {}
        trial.epoch += 1
        trial.alone, trial.lost_groups = False, 0
        state.actions += state.holdings.follow_speeds()
        if trial.status == "training" and trial.epoch <= trial.until:
            if not self._bundles.mates(trial):  # a bundle begins it when its last member has ended this one
                state.board.begin_epoch(trial.row, later=trial.until - trial.epoch)
                state.fresh_trials.append(trial.row)
        else:
            trial.status = "paused" if trial.status == "training" else trial.status
            self.rest(trial)
        if evaluation is not None and not evaluation.todo:
            self._report(trial, evaluation)

    def _begin_evaluation(
        self, trial: TrialRecord, checkpoint: Checkpoint, values: Mapping[str, float] | None
    ) -> Evaluation | None:
        state = self._state
        order = self._script.end_epoch(trial, checkpoint) if state.settings.script else ()
        if order is None:
            return None
        state.retention.hold(checkpoint)
        begun = state.evaluations.begin(trial, checkpoint, values, order, self._kin_of(trial.running_params))
        trial.evaluations[trial.epoch] = begun
        return begun

    def _report(self, trial: TrialRecord, evaluation: Evaluation) -> None:
        """An epoch is trained and evaluated: keep it if it is the best, and tell the search."""
        state = self._state
        del trial.evaluations[evaluation.epoch]
        values = state.evaluations.compute_values(evaluation)
        objective = state.settings.objective
        value = values.get(objective.metric, float("nan")) if objective else float("nan")
        if trial.best is None or objective is None or objective.better(value, than=trial.best_value):
            state.delete(state.retention.exchange(trial.best, evaluation.checkpoint))
            trial.best, trial.best_value = evaluation.checkpoint, value
        state.delete(state.retention.exchange(trial.reported, evaluation.checkpoint))
        trial.reported = evaluation.checkpoint
        state.delete(state.retention.release(evaluation.checkpoint))
        self._tell(Report(trial.id, evaluation.epoch, values, state.now, evaluation.checkpoint))
        self._let_go(trial)

    # -- units that failed

    def fail_unit(self, trial: TrialRecord, event: UnitFailed) -> None:
        """A unit raised through the fault of the trial, which fails, or of the store.

        The store's fault ends the run, to be resumed: other units would fail too, and no trial is to fail for that. For
        the worker's fault see `blame.py`.
        """
        if trial.status == "failed":
            return
        if event.blame == "store":
            self._state.actions.append(
                FailRun(f"the store failed worker {event.worker} with {event.unit}: {event.error}")
            )
        else:
            self.fail(trial, event.error)

    def lose_group(self, trial: TrialRecord, unit: Unit, reason: str, lasting: bool = False) -> None:
        """A group gave up a unit of the trial, or lost a member. In a replay the trial fails if that does not end.

        Args:
            trial: The trial.
            unit: The unit.
            reason: Why.
            lasting: Whether no group can train the trial. Defaults to False.
        """
        trial.lost_groups += 1
        if not self._state.settings.script or trial.status == "failed":
            return
        if lasting or trial.lost_groups >= _MOST_LOST_OF_SCRIPT:
            times = "" if lasting else f", after {trial.lost_groups} groups that trained nothing"
            self.fail(
                trial,
                f"{len(unit.partitions)} workers trained unit {unit} together in the run that is repeated, and now"
                f" cannot{times}: {reason}",
            )

    def record_kill(self, assignment: RunUnit, worker: WorkerRecord, reason: str) -> None:
        """A worker died while it ran this unit: the trial fails if that happened more often than chance explains."""
        trial = self._state.trials[assignment.unit.trial]
        if trial.status == "failed":
            return
        state = self._state
        kills = trial.setbacks_of(assignment.unit).kills
        kills.append(Kill(worker.id, worker.host or worker.id, state.now))
        there = {other.host or other.id for other in state.holdings.available()}
        if state.deaths.is_cause(state.settings, kills, there, self._open_cases(trial)):
            where = f"the last on {worker.host or worker.id}"
            self.fail(trial, f"unit {assignment.unit} lost its worker {len(kills)} times in a row, {where}: {reason}")

    def explain(self, deaths: Callable[[Kill], bool]) -> None:
        """Mark the deaths of which this is true as caused by something else than the unit."""
        for trial in self._state.trials.values():
            for kill in chain.from_iterable(setbacks.kills for setbacks in trial.all_setbacks()):
                kill.explained = kill.explained or deaths(kill)

    def forgive(self, trial: TrialRecord, worker: WorkerId, neighbours: Collection[WorkerId]) -> None:
        """Let the trial's failures on these neighbours count as one, of this worker."""
        for setbacks in trial.all_setbacks():
            setbacks.failures = merge_failures(setbacks.failures, worker, neighbours)

    def absolve(self, worker: WorkerId) -> None:
        """Forget what failed on this worker, which was at fault: it must not count against trials later."""
        for setbacks in chain.from_iterable(trial.all_setbacks() for trial in self._state.trials.values()):
            setbacks.failures = [name for name in setbacks.failures if name != worker]

    def _open_cases(self, trial: TrialRecord) -> int:
        """Count the other trials that lost one worker, and of which is not known yet whether they were the cause."""
        others = (other for other in self._state.trials.values() if other is not trial and other.status != "failed")
        return sum([kill.explained for kill in other.setbacks.kills] == [False] for other in others)

    def _went_well(self, trial: TrialRecord, unit: Unit) -> None:
        trial.finished += len(unit.partitions)
        setbacks = trial.setbacks_of(unit)
        self._state.deaths.record_success(setbacks.kills)
        setbacks.kills, setbacks.failures = [], []

    def fail(self, trial: TrialRecord, error: str) -> None:
        """Let the trial fail, and tell the search."""
        state = self._state
        trial.status, trial.error = "failed", error
        state.halted.discard(trial.id)
        self._drop_evaluations(trial)
        if trial.attempt is None:
            self.rest(trial)
        self._tell(Report(trial.id, trial.epoch, at=state.now, error=error))
        self._let_go(trial)

    # -- the end

    def rest(self, trial: TrialRecord) -> None:
        """Take the trial off the board, and out of its bundle: it has nothing to train for now."""
        self._bundles.part(trial)
        self._state.board.deactivate(trial.row)
        self._state.look_at_all = True
        self._let_go(trial)

    def _let_go(self, trial: TrialRecord) -> None:
        """Release the checkpoints that no unit, evaluation, search or person can need any more; the best one stays."""
        state = self._state
        over = trial.status == "stopped" or (state.search_ended and trial.status == "paused")
        kept = state.settings.keep_last or trial.id in state.halted
        if (trial.status == "failed" or (over and not kept)) and trial.attempt is None and not trial.evaluations:
            self._release(trial)

    def _release(self, trial: TrialRecord) -> None:
        state = self._state
        trial.given_up = trial.given_up or trial.latest is not None
        state.delete(state.retention.exchange(trial.latest, None))
        state.delete(state.retention.exchange(trial.reported, None))
        trial.latest = trial.reported = None

    def close(self) -> None:
        """The run is over: nothing is evaluated any more, and only the best checkpoint of each trial stays."""
        for trial in self._state.trials.values():
            self._drop_evaluations(trial)
            self._release(trial)

    def _drop_evaluations(self, trial: TrialRecord) -> None:
        state = self._state
        for evaluation in trial.evaluations.values():
            state.evaluations.cancel(trial.id, evaluation)
            state.delete(state.retention.release(evaluation.checkpoint))
        trial.evaluations = {}

    def _tell(self, report: Report) -> None:
        heard = report.ended or not self._state.trials[report.trial].personal
        self._state.actions.append(TellSearch(report, heard))


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether params are those of the log: a NaN in them equals itself.

    >>> _same({"x": float("nan")}, {"x": float("nan")}), _same({"x": 1}, {"x": 2})
    (True, False)
    """
    return one == other or to_plain(one, "params") == to_plain(other, "params")
