"""The rules for trials that follow a script: they visit partitions, take up Works and end as a run before did. PURE.

A Work counts from its turn on, however early it comes; a unit waits for the Work under which it ran. So it does not
matter in which order a replay hears of things. It never lets a trial do what its course does not say.
"""

from __future__ import annotations

from collections.abc import Callable

from cerebro_spark.errors import SchedulingError
from cerebro_spark.events import Course
from cerebro_spark.scheduling.roster import TrialRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.types import Checkpoint, PartitionId, TrialId, Work


class ScriptRules:
    """Points each trial to the partition that is next for it. `rest` and `fail` end it as any other trial ends."""

    def __init__(
        self, state: State, rest: Callable[[TrialRecord], None], fail: Callable[[TrialRecord, str], None]
    ) -> None:
        self._state = state
        self._rest = rest
        self._fail = fail
        self._courses = {course.trial: course for course in state.settings.script}
        self._rebased = {course.trial: frozenset(course.rebased) for course in state.settings.script}
        self._orders = {(c.trial, m.epoch): m.order for c in state.settings.script for m in c.reports}

    def ask(self, trial: TrialRecord, work: Work) -> None:
        """A Work was asked for: it waits for its turn."""
        course = self._course(trial.id)
        if trial.works + len(trial.waiting) == len(course.turns):
            raise SchedulingError(
                f"trial {trial.id} was asked for until epoch {work.until_epoch}, but its script has {trial.works} Works"
            )
        trial.waiting.append(work)
        self.follow(trial)

    def follow(self, trial: TrialRecord) -> None:
        """Something has changed for this trial: say where it may go now."""
        if trial.status in ("failed", "stopped"):
            return
        course, board = self._course(trial.id), self._state.board
        done = (trial.epoch - 1) * board.columns + trial.step
        if not board.is_training(trial.row):
            self._take_up(trial, course, done)
        limit = self._limit(trial, course)
        trial.until = -(-limit // board.columns)
        later = trial.until - trial.epoch
        if later >= 0:
            trial.status = "training"
            if not board.active[trial.row] or board.later[trial.row] != later:
                board.activate(trial.row, later)
        board.point(trial.row, self._state.columns[course.visits[done]] if done < limit else None)
        self._state.look_at_all = True
        if done == len(course.visits) and trial.works == len(course.turns):
            self._end(trial, course)

    def epoch_ended(self, trial: TrialRecord, checkpoint: Checkpoint) -> tuple[PartitionId, ...] | None:
        """Keep the checkpoint for those who will start from it; returns how to evaluate it, None for not at all."""
        for _ in range(self._course(trial.id).sources.count(trial.epoch)):
            self._state.retention.hold(checkpoint)
        return self._orders.get((trial.id, trial.epoch))

    def _course(self, trial: TrialId) -> Course:
        if trial not in self._courses:
            raise SchedulingError(f"trial {trial} is not in the script of this run, which has {len(self._courses)}")
        return self._courses[trial]

    def _take_up(self, trial: TrialRecord, course: Course, done: int) -> None:
        """Let the Works whose turn has come take effect."""
        state = self._state
        while trial.waiting and course.turns[trial.works] <= done:
            work = trial.waiting.pop(0)
            if work.warm_start is not None:
                state.delete(state.retention.exchange(trial.latest, work.warm_start))
                trial.latest = work.warm_start
                state.delete(state.retention.release(work.warm_start))  # it was kept for this
            trial.params = work.params
            trial.works += 1
        trial.rebased = done in self._rebased[trial.id]

    def _limit(self, trial: TrialRecord, course: Course) -> int:
        """How many units can be done with the Works that are known: the next one must be there for its first unit."""
        known = trial.works + len(trial.waiting)
        return course.turns[known] if known < len(course.turns) else len(course.visits)

    def _end(self, trial: TrialRecord, course: Course) -> None:
        """There is no visit left: let it end as it did, after the epochs that were reported before it failed."""
        if course.error is not None and not trial.evaluations:
            self._fail(trial, course.error)
        elif course.stopped:
            trial.status = "stopped"
            self._rest(trial)
