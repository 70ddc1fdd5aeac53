"""What every backend promises. A new backend is one more parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.errors import RunStalled
from cerebro_spark.events import Event, LoadPartition, PartitionLoaded, RunUnit, UnitFinished, WorkerJoined
from cerebro_spark.types import Partition, Unit

PARTITIONS = [Partition("p0", rows=4), Partition("p1", rows=4)]


def simulated() -> Backend:
    return SimulatedBackend([SimulatedWorker("w0"), SimulatedWorker("w1")], World(cost=lambda params: 1.0))


@pytest.fixture(params=[simulated], ids=lambda make: make.__name__)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    make: Callable[[], Backend] = request.param
    with make() as made:
        yield made


def gather(backend: Backend, kind: type[Event], count: int) -> list[Event]:
    """Wait for that many events of a kind."""
    found: list[Event] = []
    while len(found) < count:
        found += [event for event in backend.events() if isinstance(event, kind)]
    return found


def started(backend: Backend, at: float = 0.0) -> list[str]:
    backend.start(PARTITIONS, at)
    return sorted(event.worker for event in gather(backend, WorkerJoined, 2))  # type: ignore[attr-defined]


def test_workers_are_announced(backend: Backend) -> None:
    assert len(set(started(backend))) == 2


def test_the_clock_begins_where_it_is_told_and_never_goes_back(backend: Backend) -> None:
    workers = started(backend, at=100.0)
    readings = [backend.now()]
    for partition in PARTITIONS:
        backend.submit(LoadPartition(workers[0], partition.id))
    for event in gather(backend, PartitionLoaded, 2):
        readings += [event.at, backend.now()]
    assert readings == sorted(readings)
    assert readings[0] >= 100.0


def test_a_unit_comes_back_under_its_attempt_with_a_checkpoint(backend: Backend) -> None:
    worker = started(backend)[0]
    backend.submit(LoadPartition(worker, "p0"))
    gather(backend, PartitionLoaded, 1)
    backend.submit(RunUnit(worker, Unit("t0", 1, "p0"), attempt=7, params={}, step=1))
    (event,) = gather(backend, UnitFinished, 1)
    assert isinstance(event, UnitFinished)
    assert (event.worker, event.unit, event.attempt) == (worker, Unit("t0", 1, "p0"), 7)
    assert event.checkpoint is not None
    assert (event.checkpoint.trial, event.checkpoint.epoch, event.checkpoint.step) == ("t0", 1, 1)
    assert event.checkpoint.attempt == 7
    assert event.seconds > 0


def test_orders_to_one_worker_are_done_in_order(backend: Backend) -> None:
    worker = started(backend)[0]
    backend.submit(LoadPartition(worker, "p0"))
    gather(backend, PartitionLoaded, 1)
    for attempt in (1, 2, 3):
        backend.submit(RunUnit(worker, Unit(f"t{attempt}", 1, "p0"), attempt, params={}, step=1))
    assert [e.attempt for e in gather(backend, UnitFinished, 3)] == [1, 2, 3]  # type: ignore[attr-defined]


def test_closing_twice_and_before_the_start_is_fine(backend: Backend) -> None:
    backend.close()
    backend.close()


def test_orders_to_a_worker_that_is_gone_are_dropped() -> None:
    gone = SimulatedBackend([SimulatedWorker("w0", deaths=((1.0, float("inf")),))], World(cost=lambda params: 5.0))
    gone.start(PARTITIONS)
    while gone.now() < 1.0:
        gone.events()
    gone.submit(RunUnit("w0", Unit("t0", 1, "p0"), 1, params={}, step=1))
    with pytest.raises(RunStalled):
        gone.events()
