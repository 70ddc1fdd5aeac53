"""The trainer with which the engine is measured keeps the contract of all trainers."""

from __future__ import annotations

import io

import numpy as np

from benchmarks.engine import CopyingTrainer, Orders
from cerebro_spark.events import UnitFinished, WorkAdded
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.feed import Columns, ColumnSpec, Feed
from cerebro_spark.turns import Outcome, Turn, UnitOrder
from cerebro_spark.types import Unit, Work


def test_it_builds_trains_saves_and_loads() -> None:
    made = CopyingTrainer(Hooks(lambda params: None), Columns({"x": ColumnSpec("float32")}, {}))
    made.build("t0", {})
    made.train(Unit("t0", 1, "p0"), Feed({"x": np.zeros(4, "float32")}))
    file = io.BytesIO()
    saved = made.save(file)
    assert saved.bytes > 10_000
    made.load("t1", {}, file.getvalue(), digest=saved.digest)
    assert made.holds("t1", saved.digest)


def test_only_an_order_that_came_after_the_turn_of_the_last_result_is_late() -> None:
    def done(attempt: int, worker: str, *ordered: UnitOrder) -> tuple[UnitFinished, Outcome]:
        return UnitFinished(1.0, worker, unit, attempt, seconds=0.1), Outcome(orders=ordered)

    def follow(*steps: tuple[UnitFinished, Outcome]) -> None:
        orders.follow(Turn([event for event, _ in steps], [outcome for _, outcome in steps]))

    unit, orders = Unit("t0", 1, "p0"), Orders()
    begun = Outcome(orders=(UnitOrder(0, "w0", unit), UnitOrder(1, "w1", unit), UnitOrder(2, "w0", unit)))
    orders.follow(Turn([WorkAdded(0.0, Work("t0", {}, 1))], [begun]))
    follow(done(0, "w0"))  # it has another one
    follow(done(2, "w0"), done(1, "w1", UnitOrder(3, "w0", unit)))  # the same turn
    follow(done(3, "w0", UnitOrder(4, "w1", unit), UnitOrder(5, "w0", unit)))

    assert orders.late == {4}
