"""Commands to a run that travel through its store: whoever may write the store may command the run.

A sender writes a command under a name of its own, once. The driver of the run lists the folder before it begins, then
about every second, in a thread of its own, and deletes a command when the log has it. Nothing in the folder, and no
failure of the store, ever stops the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from cerebro_spark.codec import CodecError
from cerebro_spark.commands import Command
from cerebro_spark.errors import ConfigurationError, NotFoundInStore
from cerebro_spark.events import CommandReceived
from cerebro_spark.inbox import read_command, write_command
from cerebro_spark.relay import Post
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import Letter
from cerebro_spark.turns import Turn

_log = logging.getLogger("cerebro_spark")

EVERY = 1.0
"""Seconds from one look into the mailbox to the next."""
MOST_BYTES = 1 << 20
"""A larger file is no command: it is not read."""
_MOST_SECONDS = 5.0
"""How long anybody waits for the thread that looks: a store may hang."""


def send(store: Store, run: str, command: Command, clock: Callable[[], int] = time.time_ns) -> str:
    """Put a command into the mailbox of a run.

    Args:
        store: The store of the run.
        run: The id of the run.
        command: The command.
        clock: Returns nanoseconds since 1970, which decide the order of commands that wait at the same time.

    Returns:
        The name of its file.

    Raises:
        ConfigurationError: The params of the command hold what JSON cannot. Nothing was sent.
        StoreError: The store cannot be written.

    >>> import tempfile
    >>> from cerebro_spark.store.local import LocalStore
    >>> send(LocalStore(tempfile.mkdtemp()), "r1", Command("pause", id="c1"), clock=lambda: 18 * 10**17)
    'runs/r1/mailbox/01800000000000000000-c1.json'
    """
    return _write(store, paths.letter(run, clock(), command.id), command)


def ask(store: Store, run: str, command: Command, clock: Callable[[], int] = time.time_ns) -> str:
    """Ask what a command would change, which is not given: whoever makes forecasts of the run answers in the next one.

    Args:
        store: The store of the run.
        run: The id of the run.
        command: The command.
        clock: Returns nanoseconds since 1970.

    Returns:
        The name of the question in the store. Delete it to ask no longer.
    """
    return _write(store, paths.question(run, clock(), command.id), command)


def _write(store: Store, name: str, command: Command) -> str:
    store.write(name, write_command(command).encode())
    return name


class MailboxPoller:
    """Looks into the mailbox of a run for the length of a block, and posts what is new in the order of the names.

    What is there before the block is posted when it begins, unless the store takes too long to say so.

    Args:
        store: The store of the run. It is not retried: the next look is the next try.
        run: The id of the run.
        post: Takes a command. It may be given one twice, and then does nothing.
        every: Seconds between two looks; EVERY by default.
    """

    def __init__(self, store: Store, run: str, post: Post, every: float | None = None) -> None:
        self._store = store
        self._run = run
        self._post = post
        self._every = EVERY if every is None else every
        self._done: set[str] = set()
        """The names that need no second look: they were posted, or refused."""
        self._logged: set[str] = set()
        self._failing = False
        self._looked = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="mailbox", daemon=True)

    def __enter__(self) -> MailboxPoller:
        self._thread.start()
        self._looked.wait(_MOST_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_MOST_SECONDS)  # do not wait for a store that hangs: the thread finishes by itself

    def note(self, turn: Turn) -> None:
        """Take note of commands that are in the log now: their files are not needed any more."""
        for event in turn.events:
            if isinstance(event, CommandReceived):
                self._logged.add(event.command.id)

    def look(self) -> None:
        """Look once. Whatever goes wrong is logged, and only when it begins and when it ends."""
        try:
            names = self._store.list(paths.mailbox(self._run))
            for name in sorted(names):
                self._take(name)
        except Exception as error:  # nobody looks at what this thread ends with, and it must never end early
            if not self._failing:
                _log.warning("the mailbox of run %s cannot be read for now: %s", self._run, error)
            self._failing = True
            return
        if self._failing:
            _log.warning("the mailbox of run %s can be read again", self._run)
        self._failing = False

    def _keep(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._looked.set()
            self._stop.wait(self._every)
        if self._logged:
            self.look()  # from now on it only deletes what the log has

    def _take(self, name: str) -> None:
        letter = paths.read_letter(name)
        if letter is not None and letter.command in self._logged:
            self._store.delete(name)
            self._done.discard(name)
        elif name not in self._done and not self._stop.is_set():
            try:
                self._post(self._read(name, letter))
            except NotFoundInStore:  # another driver took it since it was listed
                return
            except (CodecError, ConfigurationError) as error:
                _log.warning("%s in %s is no command to run %s: %s", name, self._store.url, self._run, error)
            self._done.add(name)

    def _read(self, name: str, letter: Letter | None) -> Command:
        if letter is None:
            raise CodecError("its name is not <20 digits>-<command id>.json")
        size = self._store.size(name)
        if size > MOST_BYTES:
            raise CodecError(f"it has {size} bytes, and a command at most {MOST_BYTES}")
        command = read_command(self._store.read(name))
        if command.id != letter.command:
            raise CodecError(f"its name says {letter.command}, but it holds command {command.id!r:.80}")
        return command
