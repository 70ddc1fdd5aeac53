"""What workers are told to load and to drop: nothing twice, and no copy before those that are to hold it have it."""

from __future__ import annotations

from cerebro_spark.events import DropPartition, LoadPartition, PartitionLoaded, Settings, WorkerJoined
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.records import WorkerRecord
from cerebro_spark.scheduling.state import make_state
from cerebro_spark.types import Partition

ONE = (Partition("p0", rows=10),)


def test_what_is_being_loaded_is_not_ordered_again() -> None:
    scheduler = MopScheduler(Settings((*ONE, Partition("p1", rows=10)), workers=1))
    orders = scheduler.handle(WorkerJoined(0.0, "w0"))
    assert sorted(order.partition for order in orders if isinstance(order, LoadPartition)) == ["p0", "p1"]
    orders = scheduler.handle(WorkerJoined(1.0, "w1"))  # partitions are placed anew
    assert [order.worker for order in orders if isinstance(order, LoadPartition)] == ["w1"]
    assert scheduler.handle(PartitionLoaded(2.0, "w0", "p0")) == []


def test_a_copy_is_dropped_only_when_those_that_are_to_hold_the_partition_have_it() -> None:
    state = make_state(Settings(ONE, workers=3))
    there = [WorkerRecord(name, state.board.add_worker(name)) for name in ("w0", "w1", "w2")]
    state.workers.update({worker.id: worker for worker in there})
    holdings = state.holdings
    holdings.target = {"p0": ("w2",)}
    assert holdings.record_load(there[0], "p0") == []
    assert holdings.record_load(there[1], "p0") == [], "w2 does not have it yet"
    assert holdings.record_load(there[2], "p0") == [DropPartition("w0", "p0"), DropPartition("w1", "p0")]
    assert (there[0].holds, there[2].holds) == (set(), {"p0"})
    assert state.board.holders.tolist() == [1]
