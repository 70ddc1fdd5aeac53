"""What people told a run, and what became of it, as people see it. PURE; a part of every RunView."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cerebro_spark.commands import Command
from cerebro_spark.events import CommandAnswered, CommandReceived, Event, WorkCommanded
from cerebro_spark.types import TrialId


class CommandView(NamedTuple):
    """A command: who gave it is `command.by`.

    `at` is when the run heard of it, in seconds of the run, and `clock` the same by the wall clock, in seconds since
    1970, where that is known. `done` is None while there is no answer; `reason` says what was done, or why not. `made`
    is the trial that was cloned by it, or that goes on by it; "" for none.
    """

    command: Command
    at: float
    clock: float | None = None
    done: bool | None = None
    reason: str = ""
    answered_at: float | None = None
    made: TrialId = ""


def with_event(
    commands: Mapping[str, CommandView], event: Event, wall_clock: float | None
) -> Mapping[str, CommandView]:
    """Return the commands of a run, by id, after one more event.

    >>> commands = with_event({}, CommandReceived(7.0, Command("pause", id="c1", by="ann")), None)
    >>> commands = with_event(commands, CommandAnswered(7.0, "c1", True), None)
    >>> commands["c1"].command.by, commands["c1"].done, is_paused(commands)
    ('ann', True, True)
    """
    match event:
        case CommandReceived(command=command):
            return {**commands, command.id: CommandView(command, event.at, wall_clock)}
        case WorkCommanded() if event.command in commands:
            return {**commands, event.command: commands[event.command]._replace(made=event.work.trial)}
        case CommandAnswered() if event.command in commands:
            answer = commands[event.command]._replace(done=event.done, reason=event.reason, answered_at=event.at)
            return {**commands, event.command: answer}
    return commands


def describe_command(command: Command) -> str:
    """A command in a few words.

    >>> describe_command(Command("stop_trial", trial="t3")), describe_command(Command("add_workers", workers=2))
    ('stop_trial t3', 'add_workers 2')
    """
    about = command.trial or command.worker or (command.workers or "")
    return f"{command.verb} {about}".rstrip()


def is_paused(commands: Mapping[str, CommandView]) -> bool:
    """Whether the last of these commands that had to do with it paused the run."""
    verbs = [one.command.verb for one in commands.values() if one.done]
    return next((verb == "pause" for verb in reversed(verbs) if verb in ("pause", "unpause", "end")), False)


def is_kill(commands: Mapping[str, CommandView], answer: CommandAnswered) -> bool:
    """Whether this answer says that the driver of the run ends at once."""
    return answer.done and answer.command in commands and commands[answer.command].command.verb == "kill"


def has_ended(commands: Mapping[str, CommandView]) -> bool:
    """Whether a person ended the run."""
    return any(one.done and one.command.verb == "end" for one in commands.values())
