"""Something like an engine that answers commands, and scripts of turns: what tests of handles share."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from cerebro_spark.commands import Command
from cerebro_spark.engine import Observer
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    RunStarted,
    SearchEnded,
    Settings,
    UnitFinished,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
)
from cerebro_spark.relay import Relay
from cerebro_spark.turns import Outcome, TrialState, Turn, UnitOrder
from cerebro_spark.types import Metrics, Objective, Partition, Report, Unit, Work

SETTINGS = Settings((Partition("p0"),), workers=1, objective=Objective("loss", "min"))
CLOCK = 1_800_000_000.0


def turn(*events: Event, clock: float | None = CLOCK, **outcome: Any) -> Turn:
    """A turn of which the last event has this outcome."""
    outcomes = [Outcome()] * (len(events) - 1) + [Outcome(**outcome)]
    return Turn(events, outcomes, clock)


def beginning(trials: int = 2, epochs: int = 2) -> Turn:
    works = [WorkAdded(0.0, Work(f"t{i}", {"lr": 0.1 * (i + 1)}, epochs)) for i in range(trials)]
    joined = WorkerJoined(1.0, "w0", host="mars")
    orders = (UnitOrder(1, "w0", Unit("t0", 1, "p0")),)
    return turn(RunStarted(0.0, "r1", SETTINGS), *works, joined, orders=orders)


def epoch_of_t0(loss: float = 0.5) -> Turn:
    """The first epoch of t0 ends; nothing follows it."""
    ended = UnitFinished(2.0, "w0", Unit("t0", 1, "p0"), 1, 1.0, metrics=Metrics({"loss": loss}, {"loss": 1.0}))
    report = Report("t0", 1, {"loss": loss}, 2.0)
    return turn(ended, clock=CLOCK + 65, reports=(report,), trials=(TrialState("t0", "training", 2, 1, 1),))


def ending() -> Turn:
    return turn(SearchEnded(3.0), clock=CLOCK + 70, finished=True)


def answered(command: Command, done: bool = True, reason: str = "", *between: Event) -> Turn:
    return turn(CommandReceived(2.0, command), *between, CommandAnswered(2.0, command.id, done, reason))


def refusing(command: Command) -> tuple[bool, str]:
    return False, "it is finished: clone it instead"


class FakeDriver:
    """Drives nothing: it answers commands, one after another, until it is told to end.

    Args:
        judge: Says of a command whether it is done, and why.
        finish: What it returns, or raises, at the end.
    """

    def __init__(
        self,
        judge: Callable[[Command], tuple[bool, str]] = lambda command: (True, "as you say"),
        finish: Any = "the result",
    ) -> None:
        self._judge, self._finish = judge, finish
        self.inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.heard: list[Command] = []

    def stop(self) -> None:
        """Let it come to its end."""
        self.inbox.put(None)

    def __call__(self, relay: Relay, observer: Observer) -> Any:
        with relay.connected(self.inbox.put):
            observer(beginning())
            observer(epoch_of_t0())
            while (command := self.inbox.get(timeout=60)) is not None:
                self.heard.append(command)
                observer(self._answer(command))
        if isinstance(self._finish, BaseException):
            raise self._finish
        observer(ending())
        return self._finish

    def _answer(self, command: Command) -> Turn:
        work = Work("t9", {"lr": 1.0}, 2)
        clone = [WorkCommanded(2.0, work, command=command.id)] if command.verb == "clone" else []
        return answered(command, *self._judge(command), *clone)
