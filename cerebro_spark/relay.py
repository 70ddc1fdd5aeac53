"""Where commands to a run wait until its engine can take them. It decides nothing, and never blocks who posts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from cerebro_spark.commands import Command
from cerebro_spark.errors import CommandRefused

Post = Callable[[Command], None]
"""Hands a command to an engine. Any thread may call it; it never blocks, and wakes an engine that waits."""


class Relay:
    """The one way of commands to a run in this process, whoever sends them: a handle, or the mailbox in the store.

    Any thread may post. Commands that come before the engine is there wait for it; all are handed over in the order in
    which they were posted. One that was heard before is not posted again.

    >>> relay, heard = Relay(), []
    >>> relay.post(Command("pause", id="c1"))
    >>> with relay.connected(heard.append, known=["c0"]):
    ...     relay.post(Command("unpause", id="c2"))
    ...     relay.post(Command("pause", id="c1"))
    ...     relay.post(Command("end", id="c0"))
    >>> [command.id for command in heard]
    ['c1', 'c2']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: set[str] = set()
        self._waiting: list[Command] = []
        self._post: Post | None = None
        self._closed = False

    def post(self, command: Command) -> None:
        """Hand over a command, now or as soon as there is an engine.

        Args:
            command: The command.

        Raises:
            CommandRefused: The run is over.
        """
        with self._lock:  # also around the engine's part, which never blocks: so there is one order
            if self._closed:
                raise CommandRefused(f"{command.verb} was not heard: the run is over")
            if command.id in self._heard:
                return
            self._heard.add(command.id)
            if self._post is None:
                self._waiting.append(command)
            else:
                self._post(command)

    @contextmanager
    def connected(self, post: Post, known: Iterable[str] = ()) -> Iterator[None]:
        """Hand commands to an engine for the length of a block; after it the run is over.

        Args:
            post: Hands a command to the engine.
            known: The ids of commands that the log of the run has already: they are never posted.

        Yields:
            Nothing.
        """
        with self._lock:
            self._post = post
            waiting, self._waiting = self._waiting, []
            known = set(known)
            for command in waiting:
                if command.id not in known:
                    post(command)
            self._heard |= known
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Take no further commands."""
        with self._lock:
            self._closed, self._post = True, None
