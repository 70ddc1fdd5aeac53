"""Hiring, rehearsing and losing workers, with workers that are threads of this process and follow a script."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from cerebro_spark.backend.driver.launcher import Launcher, ProcessWatcher
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.messages import (
    GroupStalled,
    Heartbeat,
    Hello,
    RehearseTrial,
    StartTrouble,
    Stop,
    ToWorker,
    TrialRehearsed,
    UnitStarted,
)
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.errors import BackendError
from cerebro_spark.events import (
    AbandonUnit,
    Event,
    GroupGaveUp,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    RetireWorker,
    RunUnit,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Checkpoint, Unit

WAIT = 200.0
Script = Callable[[DriverConnection, str, ToWorker], None]


class ThreadLauncher(Launcher):
    """Starts a worker as a thread that says `hello` and does with each order what `script` says."""

    def __init__(self, script: Script, hello: Callable[[str], Any] = Hello) -> None:
        self._script = script
        self._hello = hello
        self.jobs: list[Job] = []
        self.orders: list[tuple[str, ToWorker]] = []
        self.killed: list[str] = []

    def job_for(self, name: str, job: Job) -> Job:
        return job

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        assert isinstance(spec, WorkerSpec)
        self.jobs.append(cloudpickle.loads(spec.job))
        handle.launched = DriverConnection(spec.address, spec.credentials, WAIT)
        threading.Thread(target=self._work, args=(handle, watcher), daemon=True).start()

    def kill(self, handle: WorkerHandle) -> None:
        self.killed.append(handle.name)
        if handle.launched is not None:
            handle.launched.close()

    def _work(self, handle: WorkerHandle, watcher: ProcessWatcher) -> None:
        connection: DriverConnection = handle.launched
        with contextlib.suppress(OSError, WireError, Died):
            connection.send(self._hello(handle.name))
            while True:
                for order in connection.receive():
                    self.orders.append((handle.name, order))
                    if isinstance(order, Stop | RetireWorker):
                        raise Died
                    self._script(connection, handle.name, order)
        handle.words.append(f"the last words of {handle.name}")
        connection.close()
        watcher.ended(handle)


class Died(Exception):
    """The end of a worker."""


def answering(connection: DriverConnection, name: str, order: ToWorker) -> None:
    if isinstance(order, RehearseTrial) and order.number is not None:
        connection.send(TrialRehearsed(order.number, None if order.params == {} else f"{name} says no"))


def dying(connection: DriverConnection, name: str, order: ToWorker) -> None:
    if isinstance(order, RehearseTrial) and order.number is not None:
        raise Died


class ThreadBackend(RemoteBackend):
    def __init__(self, launcher: ThreadLauncher, num_workers: int = 2, **options: Any) -> None:
        given = {"heartbeat": WAIT, "start_timeout": WAIT, "max_restarts": 9, **options}
        super().__init__(num_workers, **given)
        self._launcher = launcher


@contextlib.contextmanager
def started(launcher: ThreadLauncher, num_workers: int = 2, **changes: Any) -> Iterator[ThreadBackend]:
    backend = ThreadBackend(launcher, num_workers)
    job: Any = Job("r1", None, None, TrainerSpec(Hooks(lambda params: None)))  # type: ignore[arg-type]
    backend.bind(replace(job, **changes))
    backend.start([])
    with backend:
        yield backend


def gather(backend: RemoteBackend, kind: type[Event], count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += [event for event in backend.events() if isinstance(event, kind)]
    return found


def test_a_rehearsal_leaves_the_events_to_the_engine() -> None:
    with started(ThreadLauncher(answering)) as backend:
        assert backend.rehearse({}) is None
        assert str(backend.rehearse({"lr": 1})).endswith("says no")
        assert backend.rehearse({}) is None
        assert sorted(event.worker for event in gather(backend, WorkerJoined, 2)) == ["w0", "w1"]


def test_a_worker_that_comes_later_gets_the_modules_that_the_run_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "edited_while_running.py"
    source.write_text("def model_fn(params):\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = Hooks(importlib.import_module(source.stem).model_fn)
    launcher = ThreadLauncher(answering)
    with started(launcher, num_workers=1, trainer=TrainerSpec(hooks)) as backend:
        gather(backend, WorkerJoined, 1)
        source.write_text("def model_fn(params):\n    return 2\n")
        backend.add_workers(1)
        gather(backend, WorkerJoined, 1)
    texts = [job.trainer.hooks.modules.sources[source.stem].text for job in launcher.jobs if job.trainer.hooks.modules]
    assert texts == ["def model_fn(params):\n    return 1\n"] * 2


def test_the_others_warm_up_once_and_answer_nothing() -> None:
    launcher = ThreadLauncher(answering)
    with started(launcher) as backend:
        gather(backend, WorkerJoined, 2)
        assert backend.rehearse({}) is None
        assert backend.rehearse({}) is None
    told = [(order.number, name) for name, order in launcher.orders if isinstance(order, RehearseTrial)]
    assert sorted(number for number, _ in told if number is not None) == [0, 1]
    assert len([name for number, name in told if number is None]) == 1


def test_a_trial_that_kills_two_workers_is_told_with_their_last_words() -> None:
    with started(ThreadLauncher(dying), num_workers=1) as backend:
        said = backend.rehearse({})
        assert said == "worker w0 on  died; its last words:\nthe last words of w0"
        lost, joined = gather(backend, WorkerLost, 2), backend.workers
        assert [event.worker for event in lost] == ["w0", "w0.1"], "the engine hears of both"
        assert "w0" not in joined


def test_a_batch_that_takes_too_long_counts_as_failed_and_its_worker_as_lost() -> None:
    launcher = ThreadLauncher(lambda connection, name, order: None)
    with started(launcher, num_workers=1, unit_timeout=0.1) as backend:
        backend._run.rehearsals._timeout = 0.2
        assert backend.rehearse({}) == "one batch took longer than 0.2 s"
        (lost,) = gather(backend, WorkerLost, 1)
        assert (lost.worker, lost.reason) == ("w0", "one batch took longer than 0.2 s")


def test_batches_are_timed_by_a_worker_each_and_lost_or_missing_ones_tell_nothing() -> None:
    def timing(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, RehearseTrial) and order.number is not None:
            if order.params == {"dies": True}:
                raise Died
            connection.send(TrialRehearsed(order.number, seconds=2.5 if order.timed else None))

    with started(ThreadLauncher(timing)) as backend:
        gather(backend, WorkerJoined, 2)
        assert backend.estimate([{"lr": 1}, {"dies": True}, {"lr": 3}]) == [2.5, None, None]
        (lost,) = gather(backend, WorkerLost, 1)
        assert lost.worker == "w1", "the engine hears of it"
        backend.skip_rehearsal()
        assert backend.estimate([{"lr": 1}]) == [None]


def test_a_late_answer_to_a_rehearsal_is_no_event() -> None:
    def late(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, LoadPartition):
            connection.send(TrialRehearsed(77))
            connection.send(PartitionLoaded(0.0, name, order.partition))

    with started(ThreadLauncher(late), num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        backend.submit(LoadPartition("w0", "p0"))
        (event,) = backend.events()
        assert isinstance(event, PartitionLoaded)


def test_an_event_has_the_time_of_the_drivers_clock() -> None:
    def loading(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, LoadPartition):
            connection.send(PartitionLoaded(-1e9, name, order.partition))

    with started(ThreadLauncher(loading), num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        before = backend.now()
        backend.submit(LoadPartition("w0", "p0"))
        (event,) = gather(backend, PartitionLoaded, 1)
        assert before <= event.at <= backend.now()


def test_a_worker_that_reports_in_the_name_of_another_is_lost() -> None:
    def lying(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, LoadPartition):
            connection.send(PartitionLoaded(0.0, "w1", order.partition))

    with started(ThreadLauncher(lying)) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(LoadPartition("w0", "p0"))
        (event,) = gather(backend, WorkerLost, 1)
        assert (event.worker, event.reason) == ("w0", "worker w0 reports in the name of 'w1'")


@pytest.mark.parametrize(
    "first", [lambda name: Heartbeat(), lambda name: Hello("w9")], ids=["no hello", "another name"]
)
def test_who_does_not_say_hello_never_joins(first: Callable[[str], Any]) -> None:
    with started(ThreadLauncher(answering, first), num_workers=1) as backend:
        with pytest.raises(BackendError, match=r"worker w0\.2 died, and so did those before it"):
            backend.rehearse({})
        assert backend.workers == []


def test_a_worker_that_cannot_begin_ends_the_run_with_the_reason() -> None:
    def troubled(name: str) -> Hello:
        return Hello(name, "here", trouble=StartTrouble("functions", "No module named 'mine'"))

    with started(ThreadLauncher(answering, troubled), num_workers=1) as backend:
        with pytest.raises(BackendError, match="workers on here cannot begin: No module named 'mine'"):
            backend.events()


def test_a_place_is_filled_again_after_a_while() -> None:
    with started(ThreadLauncher(answering)) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(RetireWorker("w0", back_after=0.01))
        assert [event.worker for event in gather(backend, WorkerJoined, 1)] == ["w0.1"]


def test_a_worker_that_was_told_to_go_is_not_killed_when_it_goes() -> None:
    launcher = ThreadLauncher(answering)
    with started(launcher) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(RetireWorker("w0"))
        while "w0" in backend.workers:  # until the driver has seen that it is gone
            time.sleep(0.005)
    assert launcher.killed == []


def test_a_backend_that_is_not_running_says_so() -> None:
    backend = ThreadBackend(ThreadLauncher(answering))
    assert backend.workers == []
    backend.submit(LoadPartition("w0", "p0"))
    with pytest.raises(BackendError, match="this backend is not running: start it first"):
        backend.events()
    with pytest.raises(BackendError, match="workers can be added only while a run goes on"):
        backend.add_workers()


def test_who_is_gone_is_known_before_what_its_group_says_of_it() -> None:
    """The others notice by their links, as soon as the driver does: else the unit would be given to the dead again."""
    unit, gave_up = Unit("t0", 1, "p0", beside=("p1",)), threading.Event()

    def breaking(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, RunUnit) and name == "w0":
            connection.send(GroupGaveUp(0.0, name, order.unit, order.attempt, "another member is gone"))
            gave_up.set()
        elif isinstance(order, RunUnit):
            assert gave_up.wait(WAIT)
            raise Died

    with started(ThreadLauncher(breaking)) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(RunUnit("w0", unit, 1, {}, partners=("w1",)))
        first, second = gather(backend, WorkerLost | GroupGaveUp, 2)  # type: ignore[arg-type]
    assert (type(first), first.worker) == (WorkerLost, "w1")
    assert (type(second), second.worker) == (GroupGaveUp, "w0")


def test_members_that_all_wait_for_each_other_leave_and_nobody_is_lost() -> None:
    unit = Unit("t0", 1, "p0", beside=("p1",))
    launcher = ThreadLauncher(waiting)
    with started(launcher) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(RunUnit("w0", unit, 1, {}, partners=("w1",)))
        backend.submit(LimitOrder("w0", 1.0, 1))
        (gave_up,) = gather(backend, GroupGaveUp, 1)
        assert (gave_up.unit, gave_up.attempt, gave_up.lasting) == (unit, 1, False)
        assert "all of them wait for each other" in gave_up.reason
        other = {"w0": "w1", "w1": "w0"}[gave_up.worker]
        backend.submit(AbandonUnit(other, 1))
        backend.submit(RunUnit(other, unit._replace(beside=()), 2, {}))
        (done,) = gather(backend, UnitFinished, 1)
        assert done.attempt == 2
    told = [(name, order.attempt) for name, order in launcher.orders if isinstance(order, AbandonUnit)]
    assert sorted(told) == [("w0", 1), ("w1", 1)]
    assert launcher.killed == []


def waiting(connection: DriverConnection, name: str, order: ToWorker) -> None:
    """A member that says that it waits for others, and a worker that is done at once."""
    if isinstance(order, RunUnit):
        connection.send(UnitStarted(order.attempt))
        connection.send(
            GroupStalled(order.attempt)
            if order.partners
            else UnitFinished(0.0, name, order.unit, order.attempt, 1.0, Checkpoint("t0", 1, 1, order.attempt))
        )
