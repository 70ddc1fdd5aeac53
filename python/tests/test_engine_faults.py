"""The engine when things break: workers, hosts, partitions and trials. Nobody suffers for what others did."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    EXPECTED,
    PARTITIONS,
    SETTINGS,
    WORLD,
    BrokenDisk,
    Faulty,
    Promoting,
    Recording,
    engine,
    watch,
    workers,
)
from snapshots import snapshot

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    RunUnit,
    Settings,
    UnitFinished,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.store.local import LocalStore

SEVERAL = [{"cost": 1.0 + i / 4} for i in range(5)]


def test_a_partition_that_nobody_can_load_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"p1 could not be loaded 3 times.*disk on fire.*resume"):
        engine(LocalStore(tmp_path), Promoting(), BrokenDisk(workers(), WORLD)).run()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("queue_ahead", [0, 1])
@pytest.mark.parametrize("count", [2, 3])
def test_a_worker_that_fails_at_everything_is_set_aside_and_no_trial_suffers(
    tmp_path: Path, replicas: int, queue_ahead: int, count: int
) -> None:
    backend = Faulty(workers(count), lambda worker, order: worker == "w1")
    search = Recording(SEVERAL, 3)
    settings = Settings(PARTITIONS, workers=count, replicas=replicas, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    assert not [r for r in search.reports if r.failed]
    auditor.complete({f"t{i}": 3 for i in range(5)})
    assert backend.dismissed == ["w1"]
    again = MopScheduler(settings)
    for event in EventLog(LocalStore(tmp_path), "log").read():
        again.handle(event)
    assert snapshot(again) == snapshot(made.scheduler)


@pytest.mark.parametrize("hosts", ["abc", "aaa"])
@pytest.mark.parametrize("mended", [True, False])
def test_a_worker_that_was_let_go_is_replaced_after_a_while(tmp_path: Path, mended: bool, hosts: str) -> None:
    """It comes back to a place that works again, or to one that is as bad as before: no trial suffers for that."""
    spec = [SimulatedWorker(f"w{i}", speed=1.0 + i, host=host) for i, host in enumerate(hosts)]
    backend = Faulty(spec, lambda worker, order: worker == "w1" or (worker[:2] == "w1" and not mended))
    search = Recording(SEVERAL, 6)
    settings = Settings(PARTITIONS, workers=3, quarantine=4.0)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    auditor.complete({f"t{i}": 6 for i in range(5)})
    events = list(EventLog(LocalStore(tmp_path), "log").read())
    joined = {event.worker: event.at for event in events if isinstance(event, WorkerJoined)}
    trained = {event.worker for event in events if isinstance(event, UnitFinished)}
    returned = [joined[worker] for worker in sorted(joined.keys() - {"w0", "w1", "w2"})]
    assert len(returned) == (1 if mended else 3)
    assert all(later - sooner >= 4.0 * 2**n for n, (sooner, later) in enumerate(pairwise([0.0, *returned])))
    assert ("w1.1" in trained) == mended
    again = MopScheduler(settings)
    for event in events:
        again.handle(event)
    assert snapshot(again) == snapshot(made.scheduler)


def test_a_worker_that_breaks_down_in_the_middle_is_set_aside(tmp_path: Path) -> None:
    """It trained well, then its mount went away: whatever has a checkpoint to fetch fails there."""
    backend = Faulty(workers(3), lambda worker, order: worker == "w1" and order.parent is not None)
    search = Recording(SEVERAL, 3)
    Engine(search, Settings(PARTITIONS, workers=3), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert len(search.reports) == 15
    assert not [r for r in search.reports if r.failed]
    assert backend.dismissed == ["w1"]


def test_a_broken_host_is_set_aside_with_all_its_workers(tmp_path: Path) -> None:
    spec = [SimulatedWorker(f"w{i}", host="ab"[i // 2]) for i in range(4)]
    backend = Faulty(spec, lambda worker, order: worker in ("w0", "w1"))
    search = Recording(SEVERAL, 2)
    Engine(search, Settings(PARTITIONS, workers=4), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert len(search.reports) == 10
    assert not [r for r in search.reports if r.failed]


@pytest.mark.parametrize("queue_ahead", [0, 1])
def test_trials_that_fail_wherever_they_are_cost_no_worker(tmp_path: Path, queue_ahead: int) -> None:
    """What they raise looks like a worker's fault, as a file that is nowhere does."""
    backend = Faulty(workers(3), lambda worker, order: order.params["cost"] in (1.25, 1.75))
    search = Recording(SEVERAL, 2)
    settings = Settings(PARTITIONS, workers=3, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    failed = {r.trial: str(r.error) for r in search.reports if r.failed}
    assert set(failed) == {"t1", "t3"}
    assert all("3 times in a row" in error and "no such mount" in error for error in failed.values())
    auditor.complete({"t0": 2, "t2": 2, "t4": 2})
    assert backend.dismissed == []


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("queue_ahead", [0, 1])
def test_trials_of_which_one_part_fails_wherever_it_is_cost_no_worker(
    tmp_path: Path, queue_ahead: int, kind: str
) -> None:
    """The other part goes well meanwhile, which says nothing of the worker at which this one failed."""

    def fails(worker: str, order: RunUnit) -> bool:
        return order.params["cost"] == 1.25 and order.unit.kind == kind and order.unit.epoch == 2

    backend = Faulty(workers(3), fails)
    search = Recording(SEVERAL, 3)
    settings = Settings(PARTITIONS, workers=3, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    watch(made, settings)
    made.run()
    assert {r.trial for r in search.reports if r.failed} == {"t1"}
    assert backend.dismissed == []


def test_a_broken_worker_with_nobody_beside_it_fails_the_trials(tmp_path: Path) -> None:
    backend = Faulty(workers(1), lambda worker, order: True)
    search = Recording(SEVERAL, 1)
    Engine(search, Settings(PARTITIONS, workers=1), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert [r.failed for r in search.reports] == [True] * 5


def test_one_who_was_set_aside_comes_back_when_nobody_else_is_left(tmp_path: Path) -> None:
    """w1 fails three times, and w0 dies for good before anybody can say whose fault that was."""
    failing = iter([True] * 3)
    spec = [SimulatedWorker("w0", speed=0.01, deaths=((20.0, float("inf")),)), SimulatedWorker("w1")]
    backend = Faulty(spec, lambda worker, order: worker == "w1" and next(failing, False))
    search = Recording([{"cost": 1.0}] * 2, 2)
    settings = Settings(PARTITIONS, workers=2)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    assert len([r for r in search.reports if not r.failed]) == 4
    auditor.complete({"t0": 2, "t1": 2})
    assert backend.dismissed == []


@pytest.mark.parametrize("broken", [{"w0"}, {"w1"}, {"w0", "w1"}])
def test_a_worker_that_cannot_load_anything_is_set_aside_and_the_run_finishes(tmp_path: Path, broken: set[str]) -> None:
    spec = [SimulatedWorker(f"w{i}", host="b" if i == 2 else "a") for i in range(3)]
    backend = Faulty(spec, loads=broken)
    search = Recording(SEVERAL, 1)
    settings = Settings(PARTITIONS, workers=3)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    auditor.complete({f"t{i}": 1 for i in range(5)})
    assert set(backend.dismissed) == broken


@pytest.mark.parametrize("seed", range(8))
def test_deaths_returns_and_late_results_lose_no_unit(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(
        cost=lambda p: p["cost"], jitter=0.3, failure_rate=0.15, repair_seconds=4.0, late_results=True, load_seconds=0.5
    )
    spec = [
        SimulatedWorker(f"w{i}", speed=rng.uniform(0.5, 2), joins_at=rng.uniform(0, 6), deaths=((9.0, 20.0 + i),))
        for i in range(3)
    ]
    search = Promoting()
    backend = SimulatedBackend(spec, world, seed)
    made = Engine(search, SETTINGS, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made)
    made.run()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED
    auditor.complete({"t0": 3, "t1": 1, "t2": 3, "t3": 1, "t9": 1})
    assert made.scheduler.units_given_up > 0


def test_a_trial_that_kills_its_worker_twice_is_failed_and_the_others_go_on(tmp_path: Path) -> None:
    class Deadly(SimulatedBackend):
        def _begin(self, seat: Any) -> None:
            if seat.queue[0].params["cost"] == 666.0:
                self._at(self.now() + 0.1, lambda: self._fall(seat), seat)
            else:
                super()._begin(seat)

    store = LocalStore(tmp_path)
    search = Recording([{"cost": 1.0}, {"cost": 666.0}, {"cost": 1.0}], 2)
    settings = Settings(PARTITIONS, workers=2)
    Engine(search, settings, Deadly(workers(), WORLD), EventLog(store, "log")).run()
    failed = [r for r in search.reports if r.failed]
    assert [r.trial for r in failed] == ["t1"]
    assert "lost its worker 2 times in a row" in str(failed[0].error)
    assert {(r.trial, r.epoch) for r in search.reports if not r.failed} == {
        (t, e) for t in ("t0", "t2") for e in (1, 2)
    }
    restarts = [e for e in EventLog(store, "log").read() if isinstance(e, WorkerJoined)]
    assert len(restarts) == 4
