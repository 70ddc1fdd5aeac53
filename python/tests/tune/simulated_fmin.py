"""Workers in virtual time whose losses depend on params, for tests of searches that others lead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Event, RunUnit, UnitFailed, UnitFinished
from cerebro_spark.types import Metrics

LossOf = Callable[[Mapping[str, Any], int], float]


class LossyBackend(SimulatedBackend):
    """`loss_of(params, epoch)` is what a unit measures; if it raises, the unit fails. It counts trials under way.

    After `lives` units it does what a backend does whose workers are all gone; `at_unit` is called with the number of
    each unit that ends. `commands` are what a person tells the run, and after how many seconds.
    """

    def __init__(
        self,
        loss_of: LossOf,
        workers: int = 2,
        lives: int | None = None,
        commands: Sequence[tuple[float, Command]] = (),
    ) -> None:
        world = World(cost=lambda params: 1.0, gain={8: 4.3})
        super().__init__([SimulatedWorker(f"w{number}") for number in range(workers)], world, commands=commands)
        self.loss_of, self.lives = loss_of, lives
        self.at_unit: Callable[[int], None] = lambda number: None
        self.ended = 0

    def events(self) -> list[Event]:
        if self.lives is not None and self.ended >= self.lives:
            raise BackendError("all workers are gone")
        return super().events()

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        self.ended += 1
        self.at_unit(self.ended)
        (event,) = super()._finish(order, seat)
        assert isinstance(event, UnitFinished)
        try:
            loss = self.loss_of(order.params, order.unit.epoch)
        except ArithmeticError as error:
            return [UnitFailed(event.at, event.worker, event.unit, event.attempt, f"it broke: {error}")]
        return [
            dataclasses.replace(event, metrics=Metrics({"loss": loss, "score": -loss}, {"loss": 1.0, "score": 1.0}))
        ]


def torch_fn(params: Mapping[str, Any]) -> Any:
    """Names its framework; nobody calls it in virtual time."""
    import torch

    raise AssertionError(torch.__name__)
