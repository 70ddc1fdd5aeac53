"""A run as it goes on, and the answers to commands: one thread tells of turns, others look. It changes no run."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cerebro_spark.command_views import describe_command, has_ended
from cerebro_spark.commands import Command
from cerebro_spark.errors import CommandRefused
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import Timeline
from cerebro_spark.turns import Turn
from cerebro_spark.types import TrialId

__all__ = ["Answer", "LiveView", "Phase", "describe_command"]

Phase = Literal["starting", "running", "paused", "ending", "done"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run answered to a command that it did not refuse.

    Args:
        command: The command.
        done: Whether it was carried out; False if it waits in the mailbox for the next driver.
        said: What the run said, in words. Defaults to "".
        trial: The trial that was cloned by the command, or that goes on by it. Defaults to "": none.

    Examples:
        >>> print(Answer(Command("clone", trial="t3"), done=True, trial="t8"))
        clone t3: done, as t8
    """

    command: Command
    done: bool
    said: str = ""
    trial: TrialId = ""

    def __str__(self) -> str:
        new = f", as {self.trial}" if self.command.verb == "clone" and self.trial else ""
        said = f" ({self.said})" if self.said else ""
        return f"{describe_command(self.command)}: {'done' if self.done else 'waits'}{new}{said}"


class LiveView:
    """An observer of a run, of which any thread can ask how the run stands.

    Whoever asks holds up the run no longer than it takes to copy a few dicts.

    Attributes:
        interrupted: Whether the run is to end with the next turn, as by Ctrl-C. Any thread may set it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._view = RunView(timeline=Timeline(keep_units=False))
        self.interrupted = False

    def __call__(self, turn: Turn) -> None:
        """Take in a turn.

        Raises:
            KeyboardInterrupt: In the driver's thread, if it was interrupted; the turn is in the log by then.
        """
        with self._changed:
            self._view.apply(turn)
            self._changed.notify_all()
        if self.interrupted:
            raise KeyboardInterrupt

    @property
    def events(self) -> int:
        """How many events of the run it has taken in."""
        with self._changed:
            return self._view.events

    def replace(self, view: RunView) -> None:
        """Show another view from now on, of the same run."""
        with self._changed:
            self._view = view

    def wake(self) -> None:
        """Let all who wait look again."""
        with self._changed:
            self._changed.notify_all()

    # -- what can be asked, from any thread

    def snapshot(self) -> RunView:
        """The run as it is now; what happens later does not change it. Its units are only counted."""
        with self._changed:
            shown = copy.copy(self._view)
            shown.trials, shown.epochs = dict(shown.trials), dict(shown.epochs)
            shown.workers, shown.errors = dict(shown.workers), dict(shown.errors)
        return shown

    @property
    def phase(self) -> Phase:
        """How far the run is, as its turns tell."""
        with self._changed:
            if self._view.finished:
                return "done"
            if self._view.settings is None:
                return "starting"
            if self._view.killed or has_ended(self._view.commands):
                return "ending"
            return "paused" if self._view.paused else "running"

    @property
    def killed(self) -> bool:
        """Whether somebody told the run to end at once, or interrupted it."""
        with self._changed:
            return self.interrupted or self._view.killed

    def answer(self, command: Command) -> Answer | None:
        """Return the answer to a command; None if there is none yet.

        Raises:
            CommandRefused: The answer is no.
        """
        with self._changed:
            found = self._view.commands.get(command.id)
        if found is None or found.done is None:
            return None
        if not found.done:
            raise CommandRefused(f"{describe_command(command)} was refused: {found.reason}")
        return Answer(command, done=True, said=found.reason, trial=found.made)

    def wait_for_answer(self, command: Command, over: Callable[[], bool], seconds: float | None) -> Answer | None:
        """Wait for the answer to a command.

        Args:
            command: The command.
            over: Says whether no answer can come any more; `wake` has it asked again.
            seconds: How long to wait at most; None for as long as it takes.

        Returns:
            The answer, or None if there is none.

        Raises:
            CommandRefused: The answer is no.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_answered(command) or over(), seconds)
        return self.answer(command)

    def _is_answered(self, command: Command) -> bool:
        found = self._view.commands.get(command.id)
        return found is not None and found.done is not None
