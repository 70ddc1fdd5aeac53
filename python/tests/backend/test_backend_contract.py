"""What every backend promises. A new backend is one more parameter."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from small_search import small_dataset, torch_model_fn
from sparks import CLUSTER, SparkHouse

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.errors import BackendError, RunStalled
from cerebro_spark.events import (
    Event,
    LoadPartition,
    PartitionLoaded,
    RetireWorker,
    RunUnit,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Partition, Unit


class Setting(NamedTuple):
    """A backend under test, two partitions that its workers can load, and the job that it is bound to."""

    backend: Backend
    partitions: tuple[Partition, ...]
    job: Job


def simulated(folder: Path) -> Setting:
    workers, world = [SimulatedWorker("w0"), SimulatedWorker("w1")], World(cost=lambda params: 1.0)
    job: Any = Job("r1", None, None, TrainerSpec(Hooks(torch_model_fn)))  # type: ignore[arg-type]
    backend = SimulatedBackend(workers, world, patience=60.0)
    return Setting(backend, (Partition("p0", rows=4), Partition("p1", rows=4)), job)


def remote(backend: RemoteBackend, folder: Path) -> Setting:
    dataset = small_dataset(folder)
    backend.num_workers = 2
    job = Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn)))
    backend.bind(job)
    return Setting(backend, dataset.partitions, job)


FOREVER = 3600.0
MASTERS = {"spark": "local[2]", "spark_cluster": CLUSTER}
JVM = [pytest.mark.slow, pytest.mark.jvm]
KINDS = [
    "simulated",
    pytest.param("local", marks=pytest.mark.slow),
    pytest.param("spark", marks=JVM),
    pytest.param("spark_cluster", marks=JVM),
]


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Of the module's scope, so that pytest runs all tests of one kind before those of the next."""
    return str(request.param)


@pytest.fixture(scope="module")
def kept(kind: str, spark_house: SparkHouse) -> Iterator[RemoteBackend | None]:
    """The backend of all tests of a kind: their workers come from the same processes, which take long to start."""
    with ExitStack() as block:
        if kind == "simulated":
            yield None
        elif kind == "local":
            yield block.enter_context(LocalBackend(num_workers=2, idle_timeout=FOREVER))
        else:
            session = spark_house.session(MASTERS[kind])
            yield block.enter_context(SparkBackend(session, num_workers=2, idle_timeout=FOREVER))


@pytest.fixture
def setting(kept: RemoteBackend | None, tmp_path: Path) -> Iterator[Setting]:
    made = simulated(tmp_path) if kept is None else remote(kept, tmp_path)
    with made.backend:
        yield made


def gather(backend: Backend, kind: type[Event], count: int) -> list[Event]:
    """Wait for that many events of a kind."""
    found: list[Event] = []
    while len(found) < count:
        found += [event for event in backend.events() if isinstance(event, kind)]
    return found


def started(setting: Setting, at: float = 0.0) -> list[str]:
    setting.backend.start(setting.partitions, at)
    return sorted(event.worker for event in gather(setting.backend, WorkerJoined, 2))  # type: ignore[attr-defined]


def test_workers_are_announced(setting: Setting) -> None:
    assert len(set(started(setting))) == 2


def test_the_clock_begins_where_it_is_told_and_never_goes_back(setting: Setting) -> None:
    backend = setting.backend
    workers = started(setting, at=100.0)
    readings = [backend.now()]
    for partition in setting.partitions[:2]:
        backend.submit(LoadPartition(workers[0], partition.id))
    readings += [event.at for event in gather(backend, PartitionLoaded, 2)]
    readings.append(backend.now())
    assert readings == sorted(readings)
    assert readings[0] >= 100.0


def test_a_unit_comes_back_under_its_attempt_with_a_checkpoint(setting: Setting) -> None:
    backend, partition = setting.backend, setting.partitions[0].id
    worker = started(setting)[0]
    backend.submit(LoadPartition(worker, partition))
    gather(backend, PartitionLoaded, 1)
    backend.submit(RunUnit(worker, Unit("t0", 1, partition), attempt=7, params={}, step=1))
    (event,) = gather(backend, UnitFinished, 1)
    assert isinstance(event, UnitFinished)
    assert (event.worker, event.unit, event.attempt) == (worker, Unit("t0", 1, partition), 7)
    assert event.checkpoint is not None
    assert (event.checkpoint.trial, event.checkpoint.epoch, event.checkpoint.step) == ("t0", 1, 1)
    assert event.checkpoint.attempt == 7
    assert event.seconds > 0


def test_orders_to_one_worker_are_done_in_order(setting: Setting) -> None:
    backend, partition = setting.backend, setting.partitions[0].id
    worker = started(setting)[0]
    backend.submit(LoadPartition(worker, partition))
    gather(backend, PartitionLoaded, 1)
    for attempt in (1, 2, 3):
        backend.submit(RunUnit(worker, Unit(f"t{attempt}", 1, partition), attempt, params={}, step=1))
    assert [e.attempt for e in gather(backend, UnitFinished, 3)] == [1, 2, 3]  # type: ignore[attr-defined]


def test_orders_to_a_worker_that_never_was_are_dropped(setting: Setting) -> None:
    backend, partition = setting.backend, setting.partitions[0].id
    worker = started(setting)[0]
    if isinstance(backend, RemoteBackend):
        backend.submit(RunUnit("nobody", Unit("t0", 1, partition), attempt=1, params={}, step=1))
    backend.submit(LoadPartition(worker, partition))
    assert len(gather(backend, PartitionLoaded, 1)) == 1


def test_one_batch_can_be_tried_beforehand(setting: Setting) -> None:
    setting.backend.start(setting.partitions)
    assert setting.backend.rehearse({"lr": 0.01, "batch_size": 16}) is None
    if isinstance(setting.backend, RemoteBackend):
        assert "batch_size" in str(setting.backend.rehearse({"batch_size": -5}))
    assert len(gather(setting.backend, WorkerJoined, 2)) == 2


def test_batches_can_be_timed_beforehand(setting: Setting) -> None:
    setting.backend.start(setting.partitions)
    assert setting.backend.rehearse({"lr": 0.01, "batch_size": 16}) is None
    known, broken = setting.backend.estimate([{"lr": 0.01, "batch_size": 16}, {"batch_size": -5}])
    if isinstance(setting.backend, RemoteBackend):
        assert known is not None
        assert 0 < known < 60
    assert broken is None
    assert len(gather(setting.backend, WorkerJoined, 2)) == 2


def test_a_backend_can_be_used_again(setting: Setting) -> None:
    if isinstance(setting.backend, SimulatedBackend):
        pytest.skip("virtual time runs once")
    assert started(setting) == ["w0", "w1"]
    setting.backend.close()
    assert started(setting) == ["w0", "w1"]


def test_inside_a_block_the_workers_of_the_next_run_come_from_processes_that_are_there(setting: Setting) -> None:
    backend, partition = setting.backend, setting.partitions[0].id
    if not isinstance(backend, RemoteBackend):
        pytest.skip("it has no processes")
    seen: list[tuple[set[int | None], set[int | None]]] = []
    for _ in range(2):
        worker = started(setting)[0]
        backend.submit(LoadPartition(worker, partition))
        # The same attempt in each run: nothing of the first may be taken for an answer in the second.
        backend.submit(RunUnit(worker, Unit("t0", 1, partition), attempt=1, params={}, step=1))
        (event,) = gather(backend, UnitFinished, 1)
        assert event.worker == worker  # type: ignore[attr-defined]
        assert backend._parents is not None
        parents = {parent.handle.pid for parent in backend._parents._parents}
        seen.append((parents, {handle.pid for handle in backend._run.pool.handles.values()}))
        backend.close()
        assert backend._parents.idle == 2
    (parents, workers), (parents_later, workers_later) = seen
    assert parents == parents_later
    assert not workers & workers_later


def test_a_process_that_dies_between_two_runs_is_replaced_and_nobody_is_lost(setting: Setting) -> None:
    backend = setting.backend
    if not isinstance(backend, RemoteBackend):
        pytest.skip("it has no processes")
    started(setting)
    backend.close()
    assert backend._parents is not None
    parent = backend._parents._parents[0].handle
    assert parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.ended.wait(300)
    backend.start(setting.partitions)
    joined: list[str] = []
    while len(joined) < 2:
        events = backend.events()
        assert not any(isinstance(event, WorkerLost) for event in events)
        joined += [event.worker for event in events if isinstance(event, WorkerJoined)]
    assert sorted(joined) == ["w0", "w1"]


def test_a_worker_that_is_killed_is_lost_and_replaced(setting: Setting) -> None:
    backend = setting.backend
    if not isinstance(backend, RemoteBackend):
        pytest.skip("its workers die by a script of their own")
    started(setting)
    pid = backend._run.pool.handles["w0"].pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    came: list[Event] = []
    while not any(isinstance(event, WorkerJoined) for event in came):
        came += backend.events()
    told = [(type(event), event.worker) for event in came if isinstance(event, WorkerLost | WorkerJoined)]
    assert told == [(WorkerLost, "w0"), (WorkerJoined, "w0.1")]


def test_a_worker_that_dies_while_it_leaves_is_not_replaced(setting: Setting) -> None:
    backend = setting.backend
    if not isinstance(backend, RemoteBackend):
        pytest.skip("its workers die by a script of their own")
    started(setting)
    pids = {name: backend._run.pool.handles[name].pid or 0 for name in ("w0", "w1")}
    backend.remove_worker("w0")
    os.kill(pids["w0"], signal.SIGKILL)
    gather(backend, WorkerLost, 1)
    os.kill(pids["w1"], signal.SIGKILL)
    (joined,) = gather(backend, WorkerJoined, 1)
    assert joined.worker == "w1.1"  # type: ignore[attr-defined]
    assert list(backend._run.pool.handles) == ["w1.1"]


def test_workers_are_added_and_removed_while_a_run_goes_on(setting: Setting) -> None:
    backend = setting.backend
    if not isinstance(backend, RemoteBackend):
        pytest.skip("its workers come and go by a script of their own")
    backend.num_workers = 1
    backend.start(setting.partitions)
    gather(backend, WorkerJoined, 1)
    assert backend.add_workers() == ["w1"]
    gather(backend, WorkerJoined, 1)
    backend.remove_worker("w0")
    (retiring,) = gather(backend, WorkerRetiring, 1)
    backend.submit(RetireWorker(retiring.worker))  # type: ignore[attr-defined]
    while backend.workers != ["w1"]:  # until the driver has seen that it is gone
        time.sleep(0.005)
    with pytest.raises(BackendError, match="no worker 'w9': there are w1"):
        backend.remove_worker("w9")
    with pytest.raises(BackendError, match="worker 'w1' is the last one: launch another before"):
        backend.remove_worker("w1")


def test_another_thread_ends_the_wait_for_events(setting: Setting) -> None:
    backend = setting.backend
    backend.wake()  # nobody waits, and nothing goes on
    started(setting)
    backend.wake()
    backend.wake()  # before the wait, and twice
    backend.submit(LoadPartition("w0", setting.partitions[0].id))
    gather(backend, PartitionLoaded, 1)
    waker = threading.Timer(0.05 if isinstance(backend, RemoteBackend) else 0.0, backend.wake)
    waker.start()
    if isinstance(backend, SimulatedBackend):
        waker.join()  # virtual time waits for nobody
    assert backend.events() == []
    waker.join()
    backend.close()
    backend.wake()


def test_a_unit_that_is_withdrawn_is_given_back_or_ends_and_never_both(setting: Setting) -> None:
    """A real worker may have begun it by then; in virtual time it has not."""
    backend, partition = setting.backend, setting.partitions[0].id
    worker = started(setting)[0]
    backend.submit(LoadPartition(worker, partition))
    orders = [RunUnit(worker, Unit(f"t{n}", 1, partition), n, params={}, step=1) for n in (1, 2, 3, 4)]
    backend.submit(orders[0])
    backend.submit(replace(orders[1], others=(orders[2],)))
    backend.submit(orders[3])
    for attempt in (2, 4, 4, 99):
        backend.submit(WithdrawUnit(worker, attempt))
    backend.submit(replace(orders[0], attempt=5))
    ends: list[UnitFinished | UnitWithdrawn] = []
    while not ends or ends[-1].attempt != 5:
        ends += [event for event in backend.events() if isinstance(event, (UnitFinished, UnitWithdrawn))]
    given_back = {end.attempt for end in ends if isinstance(end, UnitWithdrawn)}
    assert sorted(end.attempt for end in ends) == [1, 2, 3, 4, 5]
    assert given_back == {2, 4} if isinstance(backend, SimulatedBackend) else given_back <= {2, 4}


class DrivenElsewhere:
    """A run that another thread drives: it starts the backend, takes events until it is told to end, and closes.

    Attributes:
        joined: Set when all workers are there.
        go_on: Lets it order something and wait for it.
        error: What ended it early.
        loaded: What came of its order.
    """

    def __init__(self, setting: Setting) -> None:
        self.joined, self.go_on = threading.Event(), threading.Event()
        self.error: BackendError | None = None
        self.loaded: list[Event] = []
        self._setting = setting
        self.thread = threading.Thread(target=self._drive, name="elsewhere", daemon=True)
        self.thread.start()
        assert self.joined.wait(300)

    def _drive(self) -> None:
        backend = self._setting.backend
        backend.bind(self._setting.job)
        workers = started(self._setting)
        try:
            self.joined.set()
            while not self.go_on.is_set():
                backend.events()
            backend.submit(LoadPartition(workers[0], self._setting.partitions[0].id))
            self.loaded = gather(backend, PartitionLoaded, 1)
        except BackendError as error:
            self.error = error
        finally:
            backend.close()

    def end(self) -> None:
        self.go_on.set()
        self._setting.backend.wake()
        self.thread.join(300)
        assert not self.thread.is_alive()


def test_a_backend_has_one_run_at_a_time_and_it_is_left_alone(setting: Setting) -> None:
    run = DrivenElsewhere(setting)
    taken = "running already: thread elsewhere drives a run on it"
    with pytest.raises(BackendError, match=taken):
        setting.backend.bind(setting.job)
    with pytest.raises(BackendError, match=taken):
        setting.backend.start(setting.partitions)
    run.end()
    assert run.error is None
    assert len(run.loaded) == 1


def test_a_backend_that_is_kept_for_a_run_is_refused_to_other_threads(setting: Setting) -> None:
    backend, refused = setting.backend, list[BackendError]()

    def bind() -> None:
        try:
            backend.bind(setting.job)
        except BackendError as error:
            refused.append(error)

    for kept in (True, False):
        with backend.turn(wait=kept):
            backend.bind(setting.job)
            other = threading.Thread(target=bind, daemon=True)
            other.start()
            other.join(300)
    assert [str(error).partition(":")[0] for error in refused] == ["this backend is running already"] * 2
    backend.bind(setting.job)


def test_whoever_leaves_a_block_in_good_order_waits_for_the_run_of_another_thread(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, run = setting.backend, DrivenElsewhere(setting)
    wait_until_free = backend.wait_until_free

    def wait() -> None:
        run.go_on.set()  # not before it is waited for
        backend.wake()
        wait_until_free()

    monkeypatch.setattr(backend, "wait_until_free", wait)
    with backend:
        pass
    run.end()
    assert run.error is None
    assert len(run.loaded) == 1


class Mistake(Exception):
    """What goes wrong in a block."""


def test_whoever_leaves_a_block_by_an_exception_ends_the_run_of_another_thread(setting: Setting) -> None:
    run = DrivenElsewhere(setting)
    with pytest.raises(Mistake), setting.backend:
        raise Mistake
    run.thread.join(300)
    assert "the backend was closed while a run went on" in str(run.error)


def test_a_backend_that_was_closed_under_a_run_has_room_for_the_next(setting: Setting) -> None:
    run = DrivenElsewhere(setting)
    setting.backend.close()
    run.thread.join(300)
    assert "the backend was closed while a run went on" in str(run.error)
    setting.backend.bind(setting.job)
    setting.backend.start(setting.partitions)
    assert setting.backend.events()


def test_closing_twice_and_before_the_start_is_fine(setting: Setting) -> None:
    setting.backend.close()
    setting.backend.close()


def test_orders_to_a_worker_that_is_gone_are_dropped() -> None:
    gone = SimulatedBackend([SimulatedWorker("w0", deaths=((1.0, float("inf")),))], World(cost=lambda params: 5.0))
    gone.start([])
    while gone.now() < 1.0:
        gone.events()
    gone.submit(RunUnit("w0", Unit("t0", 1, "p0"), 1, params={}, step=1))
    with pytest.raises(RunStalled):
        gone.events()
