"""A driver in another process, as its store shows it: what tests of attached runs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_driver import answered

from cerebro_spark.commands import Command
from cerebro_spark.eventlog import EventLog
from cerebro_spark.hold import Pulse
from cerebro_spark.live.attached import AttachedRun
from cerebro_spark.mailbox import MailboxPoller
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn


def result_of(store: Any, run: str) -> Any:
    return f"the result of {run}"


class Elsewhere:
    """A driver in another process, as its store shows it; time passes when somebody sleeps, and then it may act."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.log = EventLog(self.store, "r1")
        self.now = 0.0
        self.beats = 0
        self.acts: list[Callable[[], None]] = []

    def beat(self) -> None:
        self.store.delete(paths.beats("r1"))
        self.store.write(paths.beat("r1", "5e8c", self.beats), b'{"by": "process 7 on mars", "since": "noon"}')
        self.beats += 1

    def sign_off(self) -> None:
        self.store.delete(paths.beats("r1"))

    def says(self, *turns: Turn) -> None:
        self.log.append(*turns)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.acts:
            self.acts.pop(0)()

    def answer(self, done: bool = True, reason: str = "") -> None:
        """Take all commands from the mailbox, and answer them in the log."""
        heard: list[Command] = []
        MailboxPoller(self.store, "r1", heard.append).look()
        self.says(*(answered(command, done, reason) for command in heard))

    def attach(self, **options: Any) -> AttachedRun:
        pulse = Pulse(self.store, "r1", clock=lambda: self.now)
        timing: Any = {"pulse": pulse, "clock": lambda: self.now, "sleep": self.sleep}
        return AttachedRun(self.store, "r1", result_of, **timing, **options)
