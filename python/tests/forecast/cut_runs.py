"""Runs in virtual time whose unit times are known, to be cut anywhere: what tests of forecasts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Event, Settings, UnitFinished
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import Search
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Partition

OBJECTIVE = Objective("val_loss", "min")


def cost_of(params: Mapping[str, Any]) -> float:
    return float(params["cost"])


@dataclass
class KnownRun:
    """A run that was simulated to its end: its events by turns, and the search that it had."""

    search: Callable[[], Search]
    turns: list[list[Event]] = field(default_factory=list)

    def __call__(self, turn: Turn) -> None:
        self.turns.append(list(turn.events))

    @property
    def events(self) -> list[Event]:
        return [event for turn in self.turns for event in turn]

    @property
    def end(self) -> float:
        return self.events[-1].at

    def until(self, turns: int) -> list[Event]:
        """The events of the first turns."""
        return [event for turn in self.turns[:turns] for event in turn]

    def until_units(self, share: float) -> list[Event]:
        """The events until this share of all units was done."""
        units = sum(isinstance(event, UnitFinished) for event in self.events)
        done, found = 0, 0
        for number, turn in enumerate(self.turns):
            done += sum(isinstance(event, UnitFinished) for event in turn)
            found = number + 1
            if done >= share * units:
                break
        return self.until(found)


def settings_of(train: int = 3, validation: int = 1, workers: int = 2, **more: Any) -> Settings:
    parts = (
        *(Partition(f"p{i}", rows=100) for i in range(train)),
        *(Partition(f"v{i}", "validation", rows=30) for i in range(validation)),
    )
    return with_todays_rules(Settings(parts, workers, objective=OBJECTIVE, **more))


def simulated_run(
    search: Callable[[], Search],
    settings: Settings,
    workers: Sequence[SimulatedWorker],
    backend: type[SimulatedBackend] = SimulatedBackend,
    seed: int = 0,
    **world: Any,
) -> KnownRun:
    """A run that is simulated to its end."""
    run = KnownRun(search)
    made = backend(workers, World(cost_of, **world), seed)
    Engine(search(), settings, made, DiscardingLog(), observers=[run], clock=lambda: 0.0).run()
    return run
