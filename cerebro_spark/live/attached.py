"""A run that another process drives, or nobody: seen through its log, commanded through the mailbox in its store.

It reads the log and the beats of the driver, and writes nothing but commands. It opens no pickle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cerebro_spark import mailbox
from cerebro_spark.commands import Command
from cerebro_spark.driver import drives_here
from cerebro_spark.errors import CerebroError, CommandRefused, ConfigurationError, NoAnswerYet, NotFoundInStore
from cerebro_spark.eventlog import EventLog
from cerebro_spark.following import LogFollower
from cerebro_spark.hold import Pulse
from cerebro_spark.live.handle import RunHandle, Status
from cerebro_spark.live.live_view import Answer, describe_command
from cerebro_spark.outcomes import view_of
from cerebro_spark.result import Result
from cerebro_spark.run_view import RunView
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn

EVERY = 1.0
"""Seconds from one look at the store to the next, while something is waited for."""


class AttachedRun(RunHandle):
    """A run in a store. `cs.attach` returns one.

    While nobody drives the run, commands are refused by name; or, with `leave`, they are left in the mailbox, where the
    next driver finds them. Each look at the run reads what is new in its log.

    Args:
        store: The store of the run.
        run: The id of the run.
        open_result: Makes the result of a run that is done.
        leave: Whether commands are left in the mailbox while nobody drives the run. Defaults to False.
        pulse: Says whether somebody drives the run. Defaults to None: one is made.
        clock: Returns seconds. Defaults to `time.monotonic`.
        sleep: Waits for some seconds. Defaults to `time.sleep`.

    Raises:
        NotFoundInStore: The store has no such run; the error names those that it has.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        open_result: Callable[[Store, str], Result] = Result,
        *,
        leave: bool = False,
        pulse: Pulse | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store, paths.check_id(run))
        self._open_result = open_result
        self._leave = leave
        self._clock, self._sleep = clock, sleep
        self._follower = LogFollower(store, run)
        self._pulse = pulse or Pulse(store, run)
        self._reading = threading.Lock()
        self._result: Result | None = None
        self._driven = False
        self._read = 0
        """How many events the follower has returned."""
        self.refresh()
        if self._live.phase == "starting" and not self._driven:
            known = paths.run_ids(store.list(paths.RUNS))
            raise NotFoundInStore(f"{store.url} has no run {run!r}: it has {known or 'none at all'}")

    def refresh(self) -> None:
        """Read what is new. Every look at the run does so by itself.

        Raises:
            StoreError: The store cannot be read.
            EventLogError: The log is damaged.
        """
        with self._reading:
            # First the beats: a driver that ends now has logged all that it will, and that is read then.
            self._driven = self._pulse.beats()
            while turns := self._follower.read():  # a long log comes in parts
                self._take(turns)

    # -- how it stands

    @property
    def status(self) -> Status:
        self.refresh()
        return self._status()

    def _status(self) -> Status:
        phase = self._live.phase
        return phase if phase == "done" or self._driven else "stopped"

    @property
    def driver(self) -> str:
        """The process that drives the run now, in words; "" if none does, or none is known to."""
        self.refresh()
        return self._pulse.driver() if self._driven else ""

    @property
    def error(self) -> BaseException | None:
        """None: what ended a run is known to the process that drove it."""
        return None

    @property
    def result(self) -> Result | None:
        if self._result is None and self.status == "done":
            self._result = self._open_result(self._store, self._run)
        return self._result

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run is done. Ctrl-C ends the waiting, and not the run.

        Args:
            timeout: The seconds to wait at most. Defaults to None: as long as it takes.

        Returns:
            The result of the run.

        Raises:
            NoAnswerYet: The run was not done in time. It goes on.
            CerebroError: Nobody drives the run any more, and it is not done.
        """
        self._check_thread("wait")
        began = self._clock()
        while (result := self.result) is None:
            if self._status() == "stopped":
                raise CerebroError(f"run {self._run} is not done, and {self._nobody()}")
            if timeout is not None and self._clock() - began >= timeout:
                raise NoAnswerYet(f"run {self._run} is not done after {timeout:g} s: it is {self._status()}")
            self._sleep(EVERY)
        return result

    # -- its parts

    def _take(self, turns: list[Turn]) -> None:
        for turn in turns:
            self._read += len(turn.events)
            if self._read <= self._live.events:
                continue  # the view was made of the whole log, as it is below, and has this turn
            if turn.recorded:
                self._live(turn)
            else:
                # A log of before there were outcomes: a scheduler must hear all of it again.
                self._live.replace(view_of(EventLog(self._store, self._run).turns()))

    def snapshot(self) -> RunView:
        self.refresh()
        return super().snapshot()

    def _nobody(self) -> str:
        return f"nobody drives it now: continue it with cs.resume({self._store.url!r}, {self._run!r}, backend=...)"

    def _check_thread(self, what: str) -> None:
        """Refuse to wait for the driver in the driver's own thread: it could not go on."""
        if drives_here(self._store, self._run):
            raise ConfigurationError(
                f"{what} was called in the thread that drives run {self._run}, by a tracker or a callback, and would"
                " wait for itself: call it in another thread"
            )

    def _send(self, command: Command, timeout: float) -> Answer:
        self._check_thread(command.verb)
        words, status = describe_command(command), self.status
        if status == "done":
            raise CommandRefused(f"{words} was not sent: run {self._run} is done")
        if status == "stopped" and not self._leave:
            raise CommandRefused(
                f"{words} was not sent: {self._nobody()}; or attach with leave=True, and the next driver finds it"
            )
        letter = mailbox.send(self._store, self._run, command)
        return self._left(command) if status == "stopped" else self._answer(command, words, letter, timeout)

    def _left(self, command: Command) -> Answer:
        return Answer(command, done=False, said="for the next driver of the run")

    def _answer(self, command: Command, words: str, letter: str, timeout: float) -> Answer:
        began = self._clock()
        while (answer := self._live.answer(command)) is None:
            status = self._status()
            if status == "done":
                raise CommandRefused(f"{words} was not heard: run {self._run} is done")
            if status == "stopped" and self._leave:  # its driver was killed, and seemed alive for a while
                return self._left(command)
            if status == "stopped":
                self._store.delete(letter)  # who is told that it was not heard does not expect it to be obeyed later
                raise CommandRefused(f"{words} was not answered, and is withdrawn: {self._nobody()}")
            if self._clock() - began >= timeout:
                raise NoAnswerYet(
                    f"{words} was not answered after {timeout:g} s by {self._pulse.driver() or 'the driver'}. It is not"
                    " withdrawn, and may still be carried out"
                )
            self._sleep(EVERY / 2)
            self.refresh()
        return answer
