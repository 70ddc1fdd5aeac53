"""What people tell a live run, and what becomes of it. PURE.

A command is carried out at once, or refused with a reason that says what would work. What only a backend can do is
passed on. A trial that a person stops or lets go on is a person's from then on: the search is told that it ended, and
hears nothing more of it. So no search waits for what a person may never let happen, and none asks for a trial that has
gone further than it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cerebro_spark.commands import Command, Verb
from cerebro_spark.events import AnswerCommand, CarryOut, WithdrawUnit
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.scheduling.script import largest_group
from cerebro_spark.scheduling.state import State
from cerebro_spark.scheduling.trials import TrialRules
from cerebro_spark.types import Checkpoint, TrialId, Work

Carried = str | tuple[str, Work]
"""What was done, in words, and the work that is to be begun for it."""

# The name of a clone: no search of this package makes such a name.
_CLONE = re.compile(r"-c\d+$")
# What a trainer knows by itself, whether or not a trial has it.
_RESERVED = ("batch_size",)
_AT_MOST = 12


class Refused(Exception):
    """A command that cannot be carried out; its text is the answer."""


class Steering:
    """Carries out commands."""

    def __init__(self, state: State, trials: TrialRules) -> None:
        self._state = state
        self._trials = trials
        self._verbs: dict[Verb, Callable[[Command], Carried]] = {
            "stop_trial": self._stop,
            "resume_trial": self._resume,
            "clone": self._clone,
            "pause": self._pause,
            "unpause": self._unpause,
            "end": self._end,
            "kill": self._kill,
        }

    def take(self, command: Command, over: bool) -> None:
        """Carry out a command, or refuse it.

        Args:
            command: The command.
            over: Whether the run is over already.
        """
        actions = self._state.actions
        try:
            self._check(command, over)
            if command.verb in self._verbs:
                done = self._verbs[command.verb](command)
                words, work = (done, None) if isinstance(done, str) else done
                actions.append(AnswerCommand(command.id, True, words, work))
            if command.verb == "remove_worker":
                self._check_enough(command)
            if command.verb in ("add_workers", "remove_worker", "kill"):
                actions.append(CarryOut(command))
        except Refused as why:
            actions.append(AnswerCommand(command.id, False, str(why)))

    def _check(self, command: Command, over: bool) -> None:
        if over:
            raise Refused("the run is over: start another one")
        if self._state.ending and command.verb != "kill":
            raise Refused("the run is about to end, once its running units have: start another one")
        if self._state.settings.script and command.verb in ("stop_trial", "resume_trial", "clone", "end"):
            raise Refused(
                f"this run repeats another one, as it was, so {command.verb} is not for it: pause it, or kill it"
            )

    def _check_enough(self, command: Command) -> None:
        """Refuse to let a worker go that a group of a replay needs: its unit would wait for ever."""
        least = largest_group(self._state.settings.script)
        left = [worker for worker in self._state.holdings.available() if worker.id != command.worker]
        if least > 1 and len(left) < least:
            raise Refused(
                f"this run repeats one in which {least} workers trained a unit together, and without"
                f" {command.worker} there are {len(left)}: add a worker before"
            )

    # -- one trial

    def _stop(self, command: Command) -> Carried:
        trial = self._trial(command)
        if trial.status == "failed":
            raise Refused(f"trial {trial.id} has failed, so there is nothing to stop: clone it, with other params")
        if trial.status == "stopped":
            raise Refused(f"trial {trial.id} is stopped already: resume_trial lets it go on")
        if not self._may_go_on(trial):
            raise Refused(f"trial {trial.id} has finished, so there is nothing to stop: resume_trial lets it go on")
        self._trials.halt(trial)
        self._withdraw(trial.id)
        return f"trial {trial.id} {'ends with its running unit' if self._is_out(trial) else 'is stopped'}"

    def _resume(self, command: Command) -> Carried:
        trial = self._trial(command)
        done = trial.epoch - 1
        if trial.status == "failed":
            raise Refused(f"trial {trial.id} has failed, so it cannot go on: clone it, with other params")
        if trial.status == "training" and command.epochs is None:
            raise Refused(f"trial {trial.id} goes on until epoch {trial.until}: say how many `epochs` it shall do more")
        if command.epochs is None and self._lacks_evaluation_alone(trial):
            self._state.halted.discard(trial.id)
            trial.status = "paused"  # as any trial that has trained all its epochs
            return f"trial {trial.id} has trained all its {done} epochs, and is evaluated now"
        if trial.given_up and trial.latest is None:
            raise Refused(
                f"the last checkpoint of trial {trial.id} is gone, because this run was begun by an earlier version:"
                " clone it with warm_start=False"
            )
        until = self._until(trial, command)
        return f"trial {trial.id} goes on until epoch {until}", Work(trial.id, trial.params, until)

    def _lacks_evaluation_alone(self, trial: TrialRecord) -> bool:
        """Whether the trial was stopped when all its epochs were trained, and not all of them evaluated."""
        return trial.id in self._state.halted and trial.until < trial.epoch and bool(trial.evaluations)

    def _until(self, trial: TrialRecord, command: Command) -> int:
        """Return the last epoch of a trial that goes on: of one that trains, counted from where it was to end."""
        done = trial.epoch - 1
        if command.epochs is not None:
            return command.epochs + (trial.until if trial.status == "training" else done)
        if trial.until <= done:
            raise Refused(f"trial {trial.id} has done all {done} epochs that it was to do: say how many `epochs` more")
        return trial.until

    def _clone(self, command: Command) -> Carried:
        trial = self._trial(command)
        params = self._merged(trial, command.params)
        source = self._source(trial) if command.warm_start else None
        begun = source.epoch if source else 0
        epochs = trial.until - begun if command.epochs is None else command.epochs
        if epochs < 1:
            raise Refused(
                f"trial {trial.id} has done all {begun} epochs that it was to do, and its clone would begin there: say"
                " how many `epochs`, or warm_start=False"
            )
        name = self._new_name(trial.id)
        origin = f"from epoch {begun} of {trial.id}" if source else "from the beginning"
        return f"trial {name} trains {epochs} epochs, {origin}", Work(name, params, epochs, source)

    def _merged(self, trial: TrialRecord, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of a clone. A name that no trial has is a mistake rather than a new param."""
        known = {*_RESERVED, *(name for other in self._state.trials.values() for name in other.params)}
        unknown = sorted(set(params) - known)
        if unknown:
            raise Refused(
                f"`params` has {', '.join(map(repr, unknown))}, but trials have {', '.join(sorted(trial.params))}: a"
                " clone can change these"
            )
        return {**trial.params, **{name: _alike(trial.params.get(name), value) for name, value in params.items()}}

    def _source(self, trial: TrialRecord) -> Checkpoint:
        """Return the checkpoint from which a clone begins: of the last epoch that was reported."""
        if trial.reported is not None:
            return trial.reported
        if trial.status == "failed":
            why = "has failed"
        elif trial.best is not None:
            why = "has no last checkpoint any more, because this run was begun by an earlier version"
        else:
            why = "has not been evaluated after a whole epoch yet"
        raise Refused(f"trial {trial.id} {why}: use warm_start=False")

    def _new_name(self, trial: TrialId) -> TrialId:
        root = _CLONE.sub("", trial)
        number = 1
        while f"{root}-c{number}" in self._state.trials:
            number += 1
        return f"{root}-c{number}"

    def _trial(self, command: Command) -> TrialRecord:
        trials = self._state.trials
        if command.trial not in trials:
            last = list(trials)[-_AT_MOST:]
            there = f"the last of {len(trials)} are" if len(trials) > len(last) else "there are"
            raise Refused(f"there is no trial {command.trial!r}: {there} {', '.join(last) or 'none yet'}")
        return trials[command.trial]

    def _may_go_on(self, trial: TrialRecord) -> bool:
        """Whether units of the trial are left, or its search may still ask for some."""
        open_ended = not (self._state.search_ended or trial.personal)
        return trial.status == "training" or bool(trial.evaluations) or (trial.status == "paused" and open_ended)

    # -- the whole run

    def _pause(self, command: Command) -> Carried:
        if self._state.paused_at is not None:
            raise Refused("the run is paused already: unpause it, or end it")
        self._state.paused_at = self._state.now
        self._withdraw()
        return "running units end, and nothing new begins"

    def _unpause(self, command: Command) -> Carried:
        state = self._state
        if state.paused_at is None:
            raise Refused("the run is not paused: it goes on by itself")
        state.paused_for, state.paused_at = state.seconds_paused, None
        state.look_at_all = True
        return "the run goes on"

    def _end(self, command: Command) -> Carried:
        state = self._state
        state.ending = True
        for trial in state.trials.values():
            if trial.status == "training":
                self._trials.set_halted(trial)
        self._withdraw()
        return "running units end, then the run is over"

    def _kill(self, command: Command) -> Carried:
        return "the driver stops at once: the run can be resumed"

    # -- units that were given out

    def _is_out(self, trial: TrialRecord) -> bool:
        return any(assignment.unit.trial == trial.id for assignment in self._state.assignments.values())

    def _withdraw(self, trial: TrialId | None = None) -> None:
        """Ask for units back that wait behind another order at their worker: all, or those of one trial."""
        state = self._state
        for worker in state.workers.values():
            orders = [state.orders[attempt] for attempt in worker.queue]
            for attempt, order in zip(worker.queue, orders, strict=True):
                wanted = trial is None or state.assignments[attempt].unit.trial == trial
                if wanted and order is not orders[0]:
                    state.actions.append(WithdrawUnit(worker.id, attempt))


def _alike(known: Any, given: Any) -> Any:
    """Return a value that a person gave as the type that the trial has: JSON has no tuples, and 2 may mean 2.0.

    >>> _alike((1, 2), [3, 4]), _alike(0.5, 2), _alike("a", "b")
    ((3, 4), 2.0, 'b')
    """
    if isinstance(known, tuple) and isinstance(given, list):
        return tuple(given)
    if isinstance(known, float) and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    return given
