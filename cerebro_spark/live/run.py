"""A run that this process drives: `search.start(df)` drives it in a thread, `search.fit(df)` in the caller's.

A program that comes to its end waits for the runs that it started. Ctrl-C in `wait` stops the run as it does in `fit`.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 (what it does at exit must come after our own part: see below)
import contextlib
import ctypes
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache

from cerebro_spark.commands import Command
from cerebro_spark.engine import Observer
from cerebro_spark.errors import CommandRefused, ConfigurationError, NoAnswerYet
from cerebro_spark.interruptible import InterruptibleEvent
from cerebro_spark.live.handle import RunHandle, Status, author
from cerebro_spark.live.live_view import Answer, describe_command
from cerebro_spark.relay import Relay
from cerebro_spark.result import Result
from cerebro_spark.store.base import Store

Work = Callable[[Relay, Observer], Result]
"""Drives a run to its end, takes its commands from the relay, and tells the observer of every turn."""
MakeThread = Callable[..., threading.Thread]


class Run(RunHandle):
    """A run of this process. `search.start` returns one.

    Args:
        store: The store of the run.
        run: The id of the run.
        work: Drives the run to its end.
    """

    def __init__(self, store: Store, run: str, work: Work) -> None:
        super().__init__(store, run)
        self._work = work
        self._relay = Relay()
        self._thread: threading.Thread | None = None
        self._ended: threading.Event = InterruptibleEvent()
        self._error: BaseException | None = None
        self._result: Result | None = None

    def drive(self) -> Result:
        """Drive the run in this thread, to its end. What ends it early is raised, and not kept.

        Returns:
            The result of the run.
        """
        self._thread = threading.current_thread()
        try:
            self._result = self._work(self._relay, self._live)
        finally:
            self._end()
        return self._result

    def start(self, make_thread: MakeThread = threading.Thread) -> Run:
        """Drive the run in a thread of its own.

        Args:
            make_thread: Makes the thread. Defaults to `threading.Thread`.

        Returns:
            This handle.
        """
        # A daemon: whoever presses Ctrl-C again and again while the program waits for it at its end gets out.
        self._thread = make_thread(target=self._drive_in_thread, name=f"run-{self._run}", daemon=True)
        _wait_at_exit_for(self)
        self._thread.start()
        return self

    # -- how it stands

    @property
    def status(self) -> Status:
        if not self._ended.is_set():
            phase = self._live.phase
            return "ending" if phase == "done" else phase  # the last unit is done, and the result is being made
        if self._result is not None:
            return "done"
        wanted = self._error is None or isinstance(self._error, KeyboardInterrupt) or self._live.killed
        return "stopped" if wanted else "failed"

    @property
    def error(self) -> BaseException | None:
        if self._error is not None:
            _waited_for.discard(self)  # somebody knows of it now
        return self._error

    @property
    def result(self) -> Result | None:
        return self._result

    def wait(self, timeout: float | None = None) -> Result:
        self._check_thread("wait")
        try:
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt as interrupt:
            self._stop_for(interrupt)
            raise
        if not ended:
            raise NoAnswerYet(f"run {self._run} is not done after {timeout:g} s: it is {self.status}, and goes on")
        return self._outcome()

    # -- its parts

    def _outcome(self) -> Result:
        error = self.error
        if error is not None:
            raise error
        if self._result is None:  # it was interrupted before it could say so
            raise KeyboardInterrupt
        return self._result

    def _drive_in_thread(self) -> None:
        """Drive the run. What it raises is kept: `wait` raises it, or the end of the program shows it."""
        with contextlib.suppress(KeyboardInterrupt):  # one may come at any moment, also in the last lines
            try:
                self._keep_outcome()
            finally:
                try:
                    self._end()
                finally:
                    self._end()

    def _keep_outcome(self) -> None:
        try:
            self._result = self._work(self._relay, self._live)
            _waited_for.discard(self)
        except BaseException as error:
            if self._result is None:
                self._error = error

    def _end(self) -> None:
        self._relay.close()
        self._ended.set()
        self._live.wake()

    def _send(self, command: Command, timeout: float) -> Answer:
        self._check_thread(command.verb)
        words = describe_command(command)
        try:
            self._relay.post(command)
        except CommandRefused:
            raise CommandRefused(self._too_late(words)) from None
        answer = self._live.wait_for_answer(command, self._ended.is_set, timeout)
        if answer is not None:
            return answer
        if self._ended.is_set():
            raise CommandRefused(self._too_late(words))
        raise NoAnswerYet(
            f"{words} was not answered after {timeout:g} s: run {self._run} is {self.status}. It is not withdrawn, and"
            " may still be carried out"
        )

    def _too_late(self, words: str) -> str:
        begun = self._error is not None and self._live.phase != "starting"
        way = f": continue it with cs.resume({self._store.url!r}, {self._run!r})" if begun else ""
        return f"{words} was not heard: run {self._run} is {self.status}{way}"

    def _check_thread(self, what: str) -> None:
        """Refuse to wait for the driver in the driver's own thread: that would never end."""
        if threading.current_thread() is self._thread and not self._ended.is_set():
            raise ConfigurationError(
                f"{what} was called in the thread that drives run {self._run}, by a tracker or a callback, and would"
                " wait for itself: call it in another thread"
            )

    def _stop_for(self, interrupt: KeyboardInterrupt) -> None:
        """Stop the run, and wait until it has stopped; another Ctrl-C leaves at once, and the run stops by itself."""
        self._interrupt()
        self._ended.wait()
        for note in getattr(self.error, "__notes__", []):
            interrupt.add_note(note)

    def _interrupt(self) -> None:
        """Have KeyboardInterrupt raised in the thread that drives the run."""
        self._live.interrupted = True
        if self._live.phase == "starting":
            _raise_in(self._thread, KeyboardInterrupt)
            return
        # It wakes the engine, and once it is logged the observer raises.
        with contextlib.suppress(CommandRefused):
            self._relay.post(Command("kill", by=f"Ctrl-C of {author()}"))


def _raise_in(thread: threading.Thread | None, error: type[BaseException]) -> None:
    """Have an exception raised in another thread, when it next runs Python code."""
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


_waited_for: set[Run] = set()
"""Runs that are under way in threads, and those with an error of which nobody knows."""


def _wait_at_exit_for(run: Run) -> None:
    """Have the program wait for a run when it comes to its end, while threads and thread pools still work.

    What `atexit` knows is called when no pool takes work any more, and a run needs pools. The function that is used
    here calls what was registered last first, so before the part of `concurrent.futures`.
    """
    _register()
    _waited_for.add(run)


@cache
def _register() -> None:
    register = getattr(threading, "_register_atexit", atexit.register)
    register(_wait_for_all)


def _wait_for_all() -> None:
    for run in list(_waited_for):
        _wait_at_exit(run)


def _wait_at_exit(run: Run) -> None:
    """Wait for a run whose program has come to its end; show an error that nobody knows of."""
    try:
        run._ended.wait()
    except KeyboardInterrupt as interrupt:
        run._stop_for(interrupt)
        _waited_for.add(run)
    if run._error is not None and run in _waited_for:
        print(f"run {run.id} ended early:", file=sys.stderr)
        traceback.print_exception(run._error)
