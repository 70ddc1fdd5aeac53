"""Watches what becomes of commands, by events and actions alone, and objects when one is not done as it was said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cerebro_spark.commands import Command
from cerebro_spark.events import (
    Action,
    AnswerCommand,
    CarryOut,
    CommandReceived,
    Event,
    FinishRun,
    RunUnit,
    Settings,
    TellSearch,
    TrialStopped,
    WithdrawUnit,
    WorkAdded,
    WorkCommanded,
)
from cerebro_spark.types import Checkpoint, Unit, Work

FOR_OTHERS = ("add_workers", "remove_worker")
OF_TRIALS = ("stop_trial", "resume_trial", "clone")


class Books(Protocol):
    """What is known of units and trials."""

    settings: Settings
    outstanding: dict[int, RunUnit]
    leading: dict[int, int]
    finished: dict[Unit, int]
    until: dict[str, int]
    failed: set[str]
    told: set[tuple[str, int]]
    halted: set[str]
    taken_over: set[str]
    idle: bool
    over: bool


@dataclass
class CommandAuditor:
    """What people said, and what a run must do about it, with books of its own.

    Args:
        books: What another auditor knows of units and trials, before the event that is judged.
    """

    books: Books
    event: Event | None = None
    params: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reported: dict[str, Checkpoint] = field(default_factory=dict)
    clones: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    promised: dict[str, Work] = field(default_factory=dict)
    """By command, the work that it was answered with and that has not begun yet."""
    to_tell: str | None = None
    """The trial that is taken from its search by this event."""
    ended: set[str] = field(default_factory=set)
    """The trials that a search was told of as ended by a person."""
    finished: bool = False
    now: float = 0.0
    active: float = 0.0
    """The seconds of the run that it was not paused."""

    def before(self, event: Event) -> None:
        """Note a fact just before the scheduler sees it."""
        self.event, self.to_tell = event, None
        if event.at > self.now:
            self.active += 0.0 if self.books.idle else event.at - self.now
            self.now = event.at
        if isinstance(event, WorkCommanded):
            self._commanded(event)
        elif isinstance(event, TrialStopped):
            self.stopped.add(event.trial)
        elif isinstance(event, CommandReceived):
            assert event.command.id not in self.heard, f"{event.command} is heard twice"
            self.heard.add(event.command.id)
        if isinstance(event, WorkAdded) and self.takes(event):
            self.params[event.work.trial] = event.work.params

    def takes(self, event: WorkAdded) -> bool:
        """Whether this work is to be begun: not if a search asks for what was stopped, or is a person's."""
        gone = self.books.taken_over | self.stopped
        return isinstance(event, WorkCommanded) or event.work.trial not in gone

    def _commanded(self, event: WorkCommanded) -> None:
        trial = event.work.trial
        # Runs that are repeated take works from the log, without the commands.
        if not self.books.settings.script:
            assert self.promised.pop(event.command) == event.work, f"{event} is not what was promised"
        if trial not in self.params:
            self.clones.add(trial)
        elif trial not in self.books.taken_over:
            self.to_tell = trial
        self.stopped.discard(trial)

    def after(self, actions: Sequence[Action]) -> None:
        """Judge what the scheduler made of it."""
        answers = [action for action in actions if isinstance(action, AnswerCommand)]
        withdrawn = {action.attempt for action in actions if isinstance(action, WithdrawUnit)}
        if isinstance(self.event, CommandReceived):
            self._judge(self.event.command, answers, withdrawn, [a for a in actions if isinstance(a, CarryOut)])
        else:
            assert not answers, f"{answers} is the answer to nothing"
            assert not withdrawn, f"nobody wants {withdrawn} back"
        ended = [action.report.trial for action in actions if isinstance(action, TellSearch) and action.report.ended]
        if self.to_tell is not None:
            assert ended == [self.to_tell], f"the search does not hear that {self.to_tell} is a person's"
        self.ended |= set(ended)
        for action in actions:
            if isinstance(action, TellSearch) and action.report.checkpoint is not None:
                self.reported[action.report.trial] = action.report.checkpoint
            self.finished = self.finished or isinstance(action, FinishRun)

    # -- one command

    def _judge(
        self, command: Command, answers: Sequence[AnswerCommand], withdrawn: set[int], passed_on: Sequence[CarryOut]
    ) -> None:
        done = answers[0].done if answers else bool(passed_on)
        assert len(answers) == (0 if done and command.verb in FOR_OTHERS else 1), f"{command} has answers {answers}"
        assert all(answer.command == command.id and answer.reason for answer in answers)
        assert passed_on == ([CarryOut(command)] if done and command.verb in (*FOR_OTHERS, "kill") else [])
        must = self._must_be_done(command)
        assert must is None or must == done, f"{command} is answered with {answers}"
        assert withdrawn == (self._waiting(command) if done else set()), f"{command} withdraws {withdrawn}"
        work = answers[0].work if answers else None
        assert work == (self._work(command) if done else None), f"{command} is answered with {answers}"
        if work is not None:
            self.promised[command.id] = work
        if done and command.verb == "stop_trial" and command.trial not in self.books.taken_over:
            self.to_tell = command.trial
        if done and command.verb == "resume_trial" and work is None:
            self.stopped.discard(command.trial)

    def _must_be_done(self, command: Command) -> bool | None:
        """Whether a command must be done, or must be refused; None if that depends on more than is known here."""
        books, trial, verb = self.books, command.trial, command.verb
        if self.finished or (books.over and verb != "kill"):
            return False
        if books.settings.script and verb in (*OF_TRIALS, "end"):
            return False
        if verb in ("pause", "unpause"):
            return books.idle == (verb == "unpause")
        if verb == "remove_worker" and any(script.groups for script in books.settings.script):
            return None  # a replay may need as many as there are
        if verb not in OF_TRIALS:
            return True
        if trial not in self.params:
            return False
        if verb == "clone":
            return None if command.warm_start or command.params else True
        if trial in books.failed or (verb == "stop_trial" and trial in books.halted | self.stopped):
            return False
        if verb == "stop_trial":
            return True if self._trains(trial) else None
        if self._is_to_be_evaluated(command):
            return True
        return True if command.epochs is not None and books.settings.keep_last else None

    def _waiting(self, command: Command) -> set[int]:
        """The units that are to be withdrawn: those that wait behind another order of their worker."""
        if command.verb not in ("stop_trial", "pause", "end"):
            return set()
        books, first = self.books, dict[str, int]()
        for attempt, order in sorted(books.outstanding.items()):
            for worker in order.workers:
                first.setdefault(worker, books.leading[attempt])
        behind = {
            attempt: order
            for attempt, order in books.outstanding.items()
            if any(first[worker] != books.leading[attempt] for worker in order.workers)
        }
        return {a for a, o in behind.items() if command.verb != "stop_trial" or o.unit.trial == command.trial}

    def _work(self, command: Command) -> Work | None:
        """The work that a command makes if it is done."""
        trial, until = command.trial, self.books.until.get(command.trial, 0)
        if self._is_to_be_evaluated(command):
            return None
        if command.verb == "resume_trial":
            reached = until if self._trains(trial) else self._epochs(trial)
            return Work(trial, self.params[trial], until if command.epochs is None else reached + command.epochs)
        if command.verb == "clone":
            source = self.reported[trial] if command.warm_start else None
            left = until - (source.epoch if source else 0)
            own = self.params[trial]
            changed = {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in command.params.items()}
            params = {**own, **changed}
            return Work(self._free_name(trial), params, command.epochs or left, source)
        return None

    def _is_to_be_evaluated(self, command: Command) -> bool:
        """Whether a person lets a trial go on that has nothing left to train, and was stopped before it was told."""
        trial, books = command.trial, self.books
        if command.verb != "resume_trial" or command.epochs is not None or trial not in books.halted:
            return False
        epochs = self._epochs(trial)
        return epochs >= books.until[trial] and any((trial, epoch) not in books.told for epoch in range(1, epochs + 1))

    def _free_name(self, trial: str) -> str:
        root = re.sub(r"-c\d+$", "", trial)
        return next(name for name in (f"{root}-c{n}" for n in range(1, 999)) if name not in self.params)

    def _trains(self, trial: str) -> bool:
        """Whether units are left of what was asked for."""
        gone = self.books.failed | self.books.halted | self.stopped
        return trial not in gone and self._epochs(trial) < self.books.until[trial]

    def _epochs(self, trial: str) -> int:
        """How many epochs of a trial have been trained on all partitions."""
        train = [p.id for p in self.books.settings.partitions if p.split == "train"]
        epochs = 0
        while all(Unit(trial, epochs + 1, partition) in self.books.finished for partition in train):
            epochs += 1
        return epochs
