"""Where commands wait until the engine takes them, and their JSON form. It decides nothing, and never blocks."""

from __future__ import annotations

import queue
from collections.abc import Callable

from cerebro_spark.codec import from_json, to_json
from cerebro_spark.commands import Command

Wake = Callable[[], None]
_TAG, _KINDS = "command", {"Command": Command}


def write_command(command: Command) -> str:
    """Return a command as JSON.

    Raises:
        ConfigurationError: If its params hold what JSON cannot, and so no log can keep.
    """
    return to_json(command, _TAG)


def read_command(text: str | bytes) -> Command:
    """Return the command that `write_command` made this text from.

    Raises:
        CodecError: If the text is anything else.
        ConfigurationError: If it is a command that makes no sense.

    >>> read_command(write_command(Command("pause", id="c1"))) == Command("pause", id="c1")
    True
    """
    command: Command = from_json(text, _TAG, _KINDS)
    return command


class Inbox:
    """Commands in the order in which they came. Any thread posts; the engine's thread does the rest.

    It may be made, and posted to, before there is an engine. What comes after the run's end is never taken.

    >>> inbox = Inbox()
    >>> inbox.post(Command("pause", id="c1"))
    >>> [command.verb for command in inbox.take()], inbox.take()
    (['pause'], [])
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._wake: Wake | None = None

    def post(self, command: Command) -> None:
        """Leave a command for the engine, and wake it.

        Args:
            command: The command.

        Raises:
            ConfigurationError: If the command holds something that no log can keep.
            CodecError: If a field of it has a value of another type than it should.
        """
        # As it will be read from the log: what cannot be read again must not get there.
        self._waiting.put(read_command(write_command(command)))
        wake = self._wake
        if wake is not None:
            wake()

    def take(self) -> list[Command]:
        """Return all that has come since the last call."""
        taken: list[Command] = []
        while not self._waiting.empty():
            taken.append(self._waiting.get())
        return taken

    def connect(self, wake: Wake | None) -> None:
        """Have `wake` called after every post from now on; None for nothing.

        What was posted before must be taken after this call: no call tells of it.
        """
        self._wake = wake
