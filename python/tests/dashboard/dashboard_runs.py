"""Logs of small runs in virtual time, with all that a dashboard has to show; hostile texts included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from run_views import PARTITIONS
from wild_runs import ListedLog, Trouble, WildBackend, WildSearch

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.engine import Engine
from cerebro_spark.errors import RunStalled
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    RunUnit,
    Settings,
    UnitFailed,
    UnitFinished,
)
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Metrics, Objective, Partition

HOSTILE = "</script><script>alert(1)</script>\u2028\"'\\\udcff{{7*7}}"
CLOCK = 1.8e9


class Spoilt(SimulatedBackend):
    """The last trial fails with a hostile text, and the first one's loss is not a number once."""

    def _finish(self, order: RunUnit, state: Any) -> list[Event]:
        if order.params.get("fails"):
            error = f"Traceback (most recent call last):\n  File x\nValueError: {HOSTILE}"
            return [UnitFailed(self._now, state.spec.id, order.unit, order.attempt, error)]
        loss = math.nan if order.params["lr"] == 1 and order.unit.epoch == 2 else 1.0 / (order.unit.epoch + 1)
        metrics = Metrics({"loss": loss * order.params["lr"]}, {"loss": 1.0})
        facts = super()._finish(order, state)
        return [replace(fact, metrics=metrics) if isinstance(fact, UnitFinished) else fact for fact in facts]


def small_turns(trials: int = 3, epochs: int = 3, run: str = "r1") -> list[Turn]:
    """A run of some trials, of which the last fails; a worker dies and returns."""
    workers = [SimulatedWorker("w0", host="node0"), SimulatedWorker("w1", host="node1", deaths=((4.5, 6.0),))]
    space: list[dict[str, Any]] = [{"lr": n + 1, "name": HOSTILE, "size": (n, math.inf)} for n in range(trials)]
    space[-1]["fails"] = True
    parts = tuple(Partition(f"p{n}", rows=10) for n in range(2))
    settings = Settings(parts, 2, objective=Objective("loss", "min"), max_kills=99)
    log = ListedLog()
    clock = iter(range(10**6))
    Engine(
        *(FixedSearch(space, epochs), settings, Spoilt(workers, World(cost=lambda params: 1.0)), log, run),
        clock=lambda: CLOCK + next(clock),
    ).run()
    return log.written


def commanded(turn: Turn, *commands: Command, refused: str = "") -> list[Turn]:
    """Turns after this one, in which commands are heard and answered."""
    at, clock = turn.events[-1].at, turn.wall_clock
    pairs: list[Event] = []
    for command in commands:
        pairs += [CommandReceived(at, command), CommandAnswered(at, command.id, not refused, refused)]
    return [Turn([event], [Outcome()], clock) for event in pairs]


def commanded_turns(*commands: tuple[float, Command]) -> list[Turn]:
    """A run of three trials to which these commands come at these times."""
    workers = [SimulatedWorker("w0"), SimulatedWorker("w1")]
    backend = SimulatedBackend(workers, World(cost=lambda params: 1.0), 0, commands)
    parts = (Partition("p0"), Partition("p1"), Partition("v0", "validation"))
    settings = Settings(parts, 2, objective=Objective("val_loss", "min"), queue_ahead=1, keep_last=True)
    log = ListedLog()
    Engine(FixedSearch([{"lr": 0.1 * number} for number in range(3)], 2), settings, backend, log, "r1").run()
    return log.written


def wild_turns(seed: int, trouble: Trouble, fuse: int = 1, group: int = 1) -> list[Turn]:
    """A run in which all happens that can happen."""
    loss = Objective("val_loss", "min")
    settings = Settings(PARTITIONS, 2, seed=seed, objective=loss, max_kills=99, fuse=fuse, fuse_evaluations=True)
    settings = replace(settings, group=group)
    stopped: set[str] = set()
    log = ListedLog()
    backend = WildBackend(2, replace(trouble, gain=float(fuse)), seed, stopped)
    try:
        Engine(WildSearch(seed, 3 * fuse, 8, stopped), settings, backend, log, "r1").run()
    except RunStalled:
        assert stopped
    return log.written


def write(store: Store, turns: Sequence[Turn], run: str = "r1", each: bool = False) -> EventLog:
    """The log of a run in one segment, or in one for each turn."""
    log = EventLog(store, run)
    for part in [[turn] for turn in turns] if each else [turns]:
        log.append(*part)
    return log


def indexed(turns: Sequence[Turn], run: str = "r1") -> RunIndex:
    index = RunIndex(run)
    for turn in turns:
        index.apply(turn)
    return index
