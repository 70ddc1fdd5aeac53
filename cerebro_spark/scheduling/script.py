"""The rules for trials that follow a script: they visit partitions, take up Works and end as in an earlier run. PURE.

A Work takes effect at its turn, however early it comes, and a unit waits for the Work under which it ran. So the order
of events in a replay does not matter. A trial never does what its script does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from cerebro_spark.errors import SchedulingError
from cerebro_spark.events import TrialScript
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.types import Checkpoint, PartitionId, TrialId, Work


class ScriptRules:
    """Points each trial to the partition that is next for it.

    `rest` and `fail` end a trial as any other one ends, `set_params` gives it the params of its next Work.
    """

    def __init__(
        self,
        state: State,
        rest: Callable[[TrialRecord], None],
        fail: Callable[[TrialRecord, str], None],
        set_params: Callable[[TrialRecord, Mapping[str, Any]], None],
    ) -> None:
        self._state = state
        self._rest = rest
        self._fail = fail
        self._set_params = set_params
        self._scripts = {script.trial: script for script in state.settings.script}
        self._rebased = {script.trial: frozenset(script.rebased) for script in state.settings.script}
        self._sizes = {script.trial: _sizes_by_start(script) for script in state.settings.script}
        """By trial and by the visits done before it, how many workers a unit had, where it had several."""
        self._evaluation_orders = {(c.trial, m.epoch): m.order for c in state.settings.script for m in c.reports}

    def add_work(self, trial: TrialRecord, work: Work) -> None:
        """Let a Work wait for its turn."""
        script = self._script_of(trial.id)
        if trial.works + len(trial.waiting) == len(script.turns):
            raise SchedulingError(
                f"trial {trial.id} was asked for until epoch {work.until_epoch}, but its script has {trial.works} Works"
            )
        trial.waiting.append(work)
        self.follow(trial)

    def follow(self, trial: TrialRecord) -> None:
        """Say where the trial may train now, after something has changed for it."""
        if trial.status in ("failed", "stopped"):
            return
        script, board = self._script_of(trial.id), self._state.board
        done = (trial.epoch - 1) * board.columns + trial.step
        if trial.attempt is None:
            self._take_up(trial, script, done)
        limit = self._limit(trial, script)
        trial.until = -(-limit // board.columns)
        later = trial.until - trial.epoch
        if later >= 0:
            trial.status = "training"
            if not board.active[trial.row] or board.later[trial.row] != later:
                board.activate(trial.row, later)
        size = self._sizes[trial.id].get(done, 1)
        board.point(trial.row, [self._state.columns[part] for part in script.visits[done : min(done + size, limit)]])
        self._state.look_at_all = True
        if done == len(script.visits) and trial.works == len(script.turns):
            self._end(trial, script)

    def end_epoch(self, trial: TrialRecord, checkpoint: Checkpoint) -> tuple[PartitionId, ...] | None:
        """Keep the checkpoint for trials that will start from it; return the order of its evaluation, None for none."""
        for _ in range(self._script_of(trial.id).sources.count(trial.epoch)):
            self._state.retention.hold(checkpoint)
        return self._evaluation_orders.get((trial.id, trial.epoch))

    def _script_of(self, trial: TrialId) -> TrialScript:
        if trial not in self._scripts:
            raise SchedulingError(f"trial {trial} is not in the script of this run, which has {len(self._scripts)}")
        return self._scripts[trial]

    def _take_up(self, trial: TrialRecord, script: TrialScript, done: int) -> None:
        """Let the Works whose turn has come take effect."""
        state = self._state
        while trial.waiting and script.turns[trial.works] <= done:
            work = trial.waiting.pop(0)
            if work.warm_start is not None:
                state.delete(state.retention.exchange(trial.latest, work.warm_start))
                trial.latest = work.warm_start
                state.delete(state.retention.release(work.warm_start))  # it was kept for this
            self._set_params(trial, work.params)
            trial.works += 1
        trial.rebased = done in self._rebased[trial.id]

    def _limit(self, trial: TrialRecord, script: TrialScript) -> int:
        """Return how many units can be done with the known Works: the first unit of a Work needs that Work."""
        known = trial.works + len(trial.waiting)
        return script.turns[known] if known < len(script.turns) else len(script.visits)

    def _end(self, trial: TrialRecord, script: TrialScript) -> None:
        """Let a trial with no visits left end as it did, after the epochs that were reported before it failed."""
        if script.error is not None and not trial.evaluations:
            self._fail(trial, script.error)
        elif script.stopped:
            trial.status = "stopped"
            self._rest(trial)


def _sizes_by_start(script: TrialScript) -> dict[int, int]:
    """Return the sizes of the groups of a script, by the number of visits before them.

    >>> _sizes_by_start(TrialScript("t0", ("p0", "p2", "p1"), groups=(1, 2)))
    {1: 2}
    """
    ends = accumulate(script.groups)
    return {end - size: size for size, end in zip(script.groups, ends, strict=True) if size > 1}


def largest_group(scripts: Iterable[TrialScript]) -> int:
    """Return how many workers the largest unit of some scripts had: with fewer they cannot be followed.

    >>> largest_group([TrialScript("t0", groups=(2, 3, 1)), TrialScript("t1")]), largest_group([])
    (3, 1)
    """
    return max((size for script in scripts for size in script.groups), default=1)
