"""The state machine that turns events into actions. PURE: no I/O, no clock, no thread, no global randomness.

`handle` is the only mutator. Time comes in on the events, randomness from the seed in the settings: the same events
always give the same actions, so that a run can be repeated from its log. A policy chooses the units (see `dispatch/`),
`placement` the holders of partitions. What each event changes is in `scheduling/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from cerebro_spark.dispatch import GREEDY, Changes, PolicyView, UnitChoice, get_policy
from cerebro_spark.dispatch.grouped import choose_groups
from cerebro_spark.errors import ConfigurationError, EventLogError, SchedulingError
from cerebro_spark.events import (
    Action,
    CommandAnswered,
    CommandReceived,
    CostEstimated,
    DeleteCheckpoint,
    Event,
    FailRun,
    FinishRun,
    GatheringBegan,
    GatheringEnded,
    GroupGaveUp,
    LossExplained,
    PartitionLoaded,
    PartitionLost,
    RunStarted,
    RunUnit,
    SearchEnded,
    Settings,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.scheduling.blame import BlameRules
from cerebro_spark.scheduling.board import Bools
from cerebro_spark.scheduling.bundles import BundleRules
from cerebro_spark.scheduling.evaluation_orders import EvaluationOrders
from cerebro_spark.scheduling.forming import BundleFormation
from cerebro_spark.scheduling.groups import GroupRules
from cerebro_spark.scheduling.inspection import audit
from cerebro_spark.scheduling.records import OrderRecord, TrialRecord, WorkerRecord
from cerebro_spark.scheduling.script import largest_group
from cerebro_spark.scheduling.script_bundles import ScriptBundles
from cerebro_spark.scheduling.settings import check_settings
from cerebro_spark.scheduling.state import make_state
from cerebro_spark.scheduling.steering import Steering
from cerebro_spark.scheduling.time_limits import TimeLimits
from cerebro_spark.scheduling.trials import TrialRules
from cerebro_spark.scheduling.workers import WorkerRules
from cerebro_spark.types import Metrics, TrialId, Unit

UnitReport = UnitFinished | UnitFailed | UnitWithdrawn | GroupGaveUp


class MopScheduler:
    """Assigns units to workers so that every trial trains on every partition exactly once an epoch.

    >>> from cerebro_spark.types import Partition, Work
    >>> scheduler = MopScheduler(Settings((Partition("p0", rows=10),), workers=1))
    >>> scheduler.handle(WorkAdded(0.0, Work("t0", {}, until_epoch=1)))
    []
    >>> scheduler.handle(WorkerJoined(0.0, "w0"))
    [LoadPartition(worker='w0', partition='p0', limit=None)]
    >>> [str(action.unit) for action in scheduler.handle(PartitionLoaded(1.0, "w0", "p0"))]
    ['t0/1/p0']
    """

    def __init__(self, settings: Settings) -> None:
        check_settings(settings)
        self._policy = get_policy(settings.policy)
        if settings.script and settings.policy not in GREEDY:
            raise ConfigurationError(
                f"`policy` is {settings.policy!r}, whose plans a script would break: use one of {', '.join(GREEDY)}"
            )
        self.settings = settings
        self.state = make_state(settings)
        self.finished = False
        self._bundles = BundleRules(self.state)
        self._formation = BundleFormation(self.state, self._bundles)
        self._script_bundles = ScriptBundles(self.state)
        self._groups = GroupRules(self.state)
        self._was_grouped = False
        self._team_memo: dict[str, Any] = {}
        self._trials = TrialRules(self.state, self._bundles)
        self._workers = WorkerRules(self.state, self._trials, self._bundles)
        self._blame = BlameRules(self.state, self._trials, self._workers)
        self._limits = TimeLimits(self.state)
        self._steering = Steering(self.state, self._trials)
        self._evaluation_orders = EvaluationOrders(self.state, self._workers)
        self._train = [p.id for p in settings.partitions if p.split == "train"]
        self.view = PolicyView(self.state.board, np.random.default_rng(settings.seed))
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            WorkAdded: self._trials.add_work,
            WorkCommanded: self._trials.add_work,
            CostEstimated: lambda event: self._trials.estimate_cost(event.trial, event.seconds),
            TrialStopped: lambda event: self._trials.stop(event.trial),
            SearchEnded: lambda event: self._trials.end_search(),
            WorkerJoined: self._workers.join,
            WorkerLost: self._workers.lose,
            LossExplained: lambda event: self._trials.explain(lambda kill: kill.worker == event.worker),
            WorkerRetiring: lambda event: self._workers.retire(event.worker),
            GatheringBegan: lambda event: self.state.holdings.await_workers(event.workers),
            GatheringEnded: self._gathering_ended,
            PartitionLoaded: lambda event: self._workers.record_load(event.worker, event.partition),
            PartitionLost: lambda event: self._blame.judge_load(event.worker, event.partition, event.reason),
            UnitFinished: self._unit_finished,
            UnitFailed: self._unit_failed,
            UnitWithdrawn: self._unit_withdrawn,
            GroupGaveUp: self._group_gave_up,
            CommandReceived: lambda event: self._steering.take(event.command, self.finished),
            CommandAnswered: lambda event: None,
        }

    def handle(self, event: Event) -> list[Action]:
        """Take in one event and return what to do about it."""
        state = self.state
        state.now = max(state.now, event.at)
        state.actions = []
        self._limits.observe(event)
        self._handlers[type(event)](event)
        self._blame.review()
        self._dispatch()
        if not self.finished and self._is_over():
            self.finished = True
            self._trials.close()
            state.actions.append(FinishRun())
        state.actions = self._limits.apply(state.actions)
        return state.actions

    def expects(self, event: UnitReport) -> bool:
        """Whether this is the result of an assignment that still stands; any other comes too late, or twice."""
        return self._assignee(event) is not None

    def check_logged(self, event: Event) -> None:
        """Raise EventLogError if a log says of a unit what this scheduler, fed with all before it, did not order.

        A scheduler that decides otherwise than the one that wrote the log would take its results for late ones.
        """
        if not isinstance(event, UnitReport):
            return
        given = self.state.assignments.get(event.attempt)
        other = given is not None and (event.worker not in given.workers or given.unit != event.unit)
        if other or event.attempt > self.state.attempts:
            ordered = "never gave out" if given is None else f"gave to {given.worker} as {given.unit}"
            raise EventLogError(
                f"the log has {event.unit} by {event.worker} as attempt {event.attempt}, which this scheduler"
                f" {ordered}: use the version of cerebro_spark, with the settings, that wrote it"
            )

    def efficiency_of(self, trial: TrialId, workers: int) -> float:
        """Return how efficient a group of so many workers is expected to be with a trial, by what was measured."""
        return self._groups.efficiency(self.state.trials[trial].row, workers)

    @property
    def units_given_up(self) -> int:
        """The number of assignments that were cancelled, through lost workers and failures."""
        return len(self.state.given_up)

    def check_invariants(self) -> None:
        """Raise SchedulingError if parts of the state contradict each other; for tests, after every event."""
        audit(self.state)

    # -- facts that are not about trials or workers alone

    def _run_started(self, event: RunStarted) -> None:
        if event.settings != self.settings:
            raise SchedulingError(f"run {event.run} was started with other settings than this scheduler's")

    def _gathering_ended(self, event: GatheringEnded) -> None:
        """Begin with the workers that are there; a replay must have as many as ever trained a unit together."""
        self.state.actions += self.state.holdings.gather()
        least, there = largest_group(self.settings.script), len(self.state.holdings.available())
        if there < least:
            reason = f"it repeats one in which {least} workers trained a unit together, and only {there} have come"
            self.state.actions.append(FailRun(reason))

    def _unit_finished(self, event: UnitFinished) -> None:
        worker = self._assignee(event)
        if worker is None:
            # What a cancelled attempt wrote is deleted. What a finished attempt wrote, and reports twice, is needed.
            if event.attempt in self.state.given_up and event.checkpoint is not None:
                self.state.actions.append(DeleteCheckpoint(event.checkpoint))
            return
        order = self.state.orders[event.attempt]
        assignment = self._workers.end_assignment(event.attempt)
        trial = self.state.trials[event.unit.trial]
        order.results.append((trial.row, event.seconds, event.width))
        if event.unit.kind == "eval":
            self._evaluation_orders.learn(order, worker, event.unit.partition)
            self._trials.finish_evaluation(trial, event)
        else:
            if assignment.partners:
                self._groups.learn(assignment, event.seconds)
                self._groups.note_success(trial)
            else:
                self._learn(order, worker, event)
            self._trials.finish_training(trial, event)
        for member in map(self.state.workers.__getitem__, assignment.workers):
            self._blame.clear(member, event.unit)
            self._workers.dismiss(member)

    def _unit_failed(self, event: UnitFailed) -> None:
        worker = self._assignee(event)
        if worker is not None:
            trial = self.state.trials[event.unit.trial]
            order = self.state.orders[event.attempt]
            assignment = self._workers.cancel_assignment(event.attempt, worker)
            if event.unit.kind == "train" and not assignment.partners:
                self._learn(order, worker, event)
            if event.blame != "worker":
                self._trials.fail_unit(trial, event)
            elif order.width > 1:
                trial.isolate(event.unit)  # whose fault it is shows when the unit runs by itself
            else:
                self._blame.judge_unit(worker, trial, event)
            self._dismiss_all(assignment)

    def _group_gave_up(self, event: GroupGaveUp) -> None:
        worker = self._assignee(event)
        if worker is not None:
            trial = self.state.trials[event.unit.trial]
            assignment = self._workers.cancel_assignment(event.attempt, worker)
            if event.lasting:
                self._groups.forbid(trial, event.reason)
            else:
                self._groups.note_loss()
            self._trials.lose_group(trial, event.unit, event.reason, lasting=event.lasting)
            self._dismiss_all(assignment)

    def _dismiss_all(self, assignment: RunUnit) -> None:
        """Let the workers of an assignment that is over go, if they are to leave."""
        for member in map(self.state.workers.__getitem__, assignment.workers):
            self._workers.dismiss(member)

    def _learn(self, order: OrderRecord, worker: WorkerRecord, event: UnitFinished | UnitFailed) -> None:
        """Learn from the times of training units: those that were computed together count as one measurement."""
        costs, column = self.state.board.costs, self.state.columns[event.unit.partition]
        if isinstance(event, UnitFinished) and event.width == 1:
            self._groups.learn_alone(self.state.trials[event.unit.trial], worker.row, column, event.seconds)
        together = [result for result in order.results if result[2] > 1]
        if together and not order.open:
            rows, seconds, widths = zip(*together, strict=True)
            costs.observe(rows, worker.row, column, sum(seconds), max(widths))
        if not order.open:
            self._bundles.learn_width(order)

    def _unit_withdrawn(self, event: UnitWithdrawn) -> None:
        worker = self._assignee(event)
        if worker is not None:
            self.state.orders[event.attempt].width -= 1
            self._dismiss_all(self._workers.cancel_assignment(event.attempt, worker))

    def _assignee(self, event: UnitReport) -> WorkerRecord | None:
        """The worker that reports, if it reports what it was last told to do; None if that is too late, or twice.

        Of a group its first worker says that the unit finished, and any of them that it did not.
        """
        assignment = self.state.assignments.get(event.attempt)
        if assignment is None or assignment.unit != event.unit:
            return None
        may_say = assignment.workers[:1] if isinstance(event, UnitFinished) else assignment.workers
        return self.state.workers[event.worker] if event.worker in may_say else None

    @property
    def at_rest(self) -> bool:
        """Whether nothing is under way, and nothing waits for a worker: the search would hear of nothing more."""
        state = self.state
        return (
            not state.assignments
            and not np.count_nonzero(state.board.active)
            and not any(trial.evaluations and name not in state.halted for name, trial in state.trials.items())
        )

    def takes(self, work: WorkAdded) -> bool:
        """Whether this work is begun: a search may ask for a trial that is not its own any more."""
        return self._trials.takes(work)

    def _is_over(self) -> bool:
        """Whether all is done, or as much as people want. A paused run waits for them, even if nothing is left."""
        state = self.state
        if state.ending:
            return not state.assignments
        return state.search_ended and state.paused_at is None and self.at_rest

    # -- what to run next

    def _dispatch(self) -> None:
        state = self.state
        if state.ending or state.paused_at is not None:
            return
        # Evaluations are short, and the search waits for them: they go before training.
        if state.evaluations.waiting:
            self._evaluation_orders.give_out(self._with_room() if self.settings.queue_ahead else None)
        if self._script_bundles.must_wait():
            return
        changed = state.look_at_all or state.fresh_workers or state.fresh_trials
        if changed and np.count_nonzero(state.board.idle) and np.count_nonzero(state.board.holders):
            self._formation.form()
            self._start_chosen(Changes(state.fresh_workers, state.fresh_trials, state.look_at_all), state.board.idle)
        state.fresh_workers, state.fresh_trials, state.look_at_all = [], [], False
        # Busy workers are told their next unit, so that they fetch its checkpoint while they train. Where there are
        # groups some worker is idle, or waits for others.
        if (
            self.settings.queue_ahead
            and not self._was_grouped
            and np.count_nonzero(state.board.free)
            and not self._is_incomplete()
        ):
            room = self._with_room()
            if np.count_nonzero(room):
                self._formation.form()
                self._start_chosen(Changes(everything=True), room)

    def _start_chosen(self, changes: Changes, eligible: Bools) -> None:
        """Start the units that the policy chooses for these workers, or groups of them."""
        self.view.now = self.state.now
        if self._groups.must_wait:
            return
        sizes = None
        if self._groups.may_form:
            self._groups.spread_out()
            sizes = self._groups.sizes()
        if sizes is None:
            if self._was_grouped:  # what the policy planned before is not what was done since
                self.view.memo.clear()
                self._team_memo.clear()
                changes = Changes(everything=True)
            choices = self._policy(self.view, changes, eligible)
        else:
            choices = choose_groups(self.view, self._groups, sizes, eligible, self._policy, self._team_memo)
        self._was_grouped = sizes is not None
        chosen = {choice.trial for choice in choices}
        for choice in choices:
            if choice.beside:
                self._start_group(choice)
            else:
                self._start_training(choice.worker, choice.trial, choice.column, chosen)

    def _is_incomplete(self) -> bool:
        """Whether a bundle has reported some of its units: the others, and what the search makes of them, come soon."""
        return self.settings.fuse > 1 and any(order.partly_reported for order in self.state.orders.values())

    def _with_room(self) -> Bools:
        """By row of the board: the busy workers that may be told of one more unit."""
        room = np.zeros_like(self.state.board.idle)
        for worker in self.state.holdings.available():
            orders = {self.state.orders[attempt].number for attempt in worker.queue}
            room[worker.row] = 1 <= len(orders) <= self.settings.queue_ahead
        return room

    def _start_training(self, worker_row: int, trial_row: int, column: int, chosen: Collection[int]) -> None:
        trial = self.state.trials[self.state.board.trial_ids[trial_row]]
        worker = self.state.workers[self.state.board.worker_ids[worker_row]]
        companions = self._script_bundles.companions(trial, column, chosen)
        for head in (trial, *companions):
            self.state.board.start(worker_row, head.row, column, self.state.now)
        members = [*self._bundles.members(trial), *companions]
        self._workers.assign(worker, [self._training_unit(member, worker, column) for member in members], trial.kin)

    def _start_group(self, choice: UnitChoice) -> None:
        """Give a unit to several workers. Where a script says so, their ranks are those of the first time."""
        state, board = self.state, self.state.board
        trial = state.trials[board.trial_ids[choice.trial]]
        members = self._groups.ranked(trial, choice.members)
        board.start_group(members, choice.trial, state.now, self._groups.expected_seconds(choice.trial, members))
        first, *others = [state.workers[board.worker_ids[row]] for row, _ in members]
        order = self._training_unit(trial, first, *[column for _, column in members])
        self._workers.assign(first, [replace(order, partners=tuple(worker.id for worker in others))], trial.kin)

    def _training_unit(self, trial: TrialRecord, worker: WorkerRecord, column: int, *beside: int) -> RunUnit:
        unit = Unit(trial.id, trial.epoch, self._train[column], beside=tuple(self._train[other] for other in beside))
        step = trial.step + len(unit.partitions)
        last = step == len(self._train)
        needed = trial.merging == "carried" or (trial.merging == "states" and last)
        carry = Metrics.merge(trial.trained.values()) if needed and trial.trained else None
        final = last and (carry is not None or step == len(unit.partitions))
        trial.running_params = trial.params
        return RunUnit(worker.id, unit, 0, trial.params, trial.latest, step, carry, final, trial.rebased)
