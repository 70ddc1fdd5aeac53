"""Workers that are added to a run: it does without those that cannot be had, and refuses more than it has room for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from test_remote_run import Died, ThreadBackend, ThreadLauncher, gather, started

from cerebro_spark.backend.driver import spark_cluster
from cerebro_spark.backend.driver.launcher import HubAddress, ProcessWatcher
from cerebro_spark.backend.driver.spark_cluster import Cluster
from cerebro_spark.backend.driver.spark_launcher import SparkLauncher
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.local import LocalLauncher
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.messages import Hello, StartTrouble, ToWorker
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.errors import BackendError
from cerebro_spark.events import LoadPartition, PartitionLoaded, RetireWorker, WorkerJoined, WorkerLost

pytestmark = pytest.mark.timeout(300)


def loading(connection: DriverConnection, name: str, order: ToWorker) -> None:
    if isinstance(order, LoadPartition):
        connection.send(PartitionLoaded(0.0, name, order.partition))


class Full(ThreadLauncher):
    """Has no room for workers in these places: it says `error`, once it may."""

    def __init__(self, error: Exception, *places: str) -> None:
        super().__init__(loading)
        self._error, self._places = error, places
        self.go_on = threading.Event()

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        if handle.name.partition(".")[0] in self._places:
            assert self.go_on.wait(60)
            raise self._error
        super().launch(handle, spec, watcher)


def until_said(words: str, caplog: pytest.LogCaptureFixture) -> str:
    """Wait until the log has these words, and return the line."""
    while not (found := [line for line in caplog.messages if words in line]):
        time.sleep(0.005)
    return found[0]


def still_works(backend: ThreadBackend, worker: str = "w0") -> bool:
    backend.submit(LoadPartition(worker, "p0"))
    return [event.worker for event in gather(backend, PartitionLoaded, 1)] == [worker]


@pytest.mark.parametrize("error", [BackendError("no process"), BlockingIOError(11, "try again"), MemoryError()])
def test_a_run_goes_on_without_an_added_worker_that_cannot_be_launched(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = Full(error, "w1")
    with started(launcher, num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        assert backend.add_workers(2) == ["w1", "w2"]
        launcher.go_on.set()
        until_said("the run goes on, but the place of worker w1 stays empty", caplog)
        assert [event.worker for event in gather(backend, WorkerJoined, 1)] == ["w2"]
        assert still_works(backend)
        assert still_works(backend, "w2")


def test_a_run_goes_on_without_an_added_worker_that_does_nothing_but_die(caplog: pytest.LogCaptureFixture) -> None:
    def dying(name: str) -> Hello:
        if name.startswith("w1"):
            raise Died
        return Hello(name)

    with started(ThreadLauncher(loading, dying), num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        assert backend.add_workers() == ["w1"]
        said = until_said("the place of worker w1.2 stays empty", caplog)
        assert said.endswith("having done nothing; its last words:\nthe last words of w1.2")
        assert still_works(backend)


def test_a_run_ends_if_an_added_worker_was_its_last_hope() -> None:
    launcher = Full(BackendError("no process"), "w1")
    with started(launcher, num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        backend.add_workers()
        backend.remove_worker("w0")
        launcher.go_on.set()
        with pytest.raises(BackendError, match="no process"):
            gather(backend, WorkerJoined, 1)


def test_the_workers_with_which_a_run_begins_must_be_had() -> None:
    launcher = Full(BackendError("no process"), "w1")
    launcher.go_on.set()
    with started(launcher) as backend, pytest.raises(BackendError, match="no process"):
        gather(backend, WorkerJoined, 2)


class Troubled(ThreadLauncher):
    """Whoever is in the second place cannot begin, says so, and ends when the driver has heard it."""

    def _work(self, handle: WorkerHandle, watcher: ProcessWatcher) -> None:
        if not handle.name.startswith("w1"):
            super()._work(handle, watcher)
            return
        handle.launched.send(Hello(handle.name, "there", trouble=StartTrouble("store", "no such mount")))
        while not handle.words:
            time.sleep(0.005)
        handle.launched.close()
        watcher.ended(handle)


def test_what_one_added_worker_lacks_does_not_end_a_run_in_which_nothing_was_done_yet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with started(Troubled(loading), num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        backend.add_workers()
        assert "workers on there cannot begin: no such mount" in until_said("stays empty", caplog)
        assert still_works(backend)


def test_an_added_worker_whose_store_is_another_one_leaves(caplog: pytest.LogCaptureFixture) -> None:
    class Apart(ThreadLauncher):
        def check_joined(self, hello: Hello) -> None:
            if hello.worker == "w1":
                raise BackendError("the driver does not see what executors wrote")

    with started(Apart(loading), num_workers=1) as backend:
        gather(backend, WorkerJoined, 1)
        backend.add_workers()
        (lost,) = gather(backend, WorkerLost, 1)
        assert (lost.worker, lost.blames_unit) == ("w1", False)
        assert "the driver does not see" in lost.reason
        assert still_works(backend)
        assert list(backend._run.pool.handles) == ["w0"], "nobody takes its place"
    until_said("the run goes on, but worker w1 on  leaves: the driver does not see", caplog)


def test_a_worker_that_comes_back_to_its_place_ends_no_run_either(caplog: pytest.LogCaptureFixture) -> None:
    class Once(ThreadLauncher):
        def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
            if handle.name == "w1.1":
                raise BackendError("no process")
            super().launch(handle, spec, watcher)

    with started(Once(loading)) as backend:
        gather(backend, WorkerJoined, 2)
        backend.submit(RetireWorker("w1", back_after=0.01))
        until_said("the place of worker w1.1 stays empty: no process", caplog)
        assert still_works(backend)


# -- how many


def test_a_machine_has_room_for_eight_workers_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 3})
    launcher = LocalLauncher(1, ())
    launcher.check_addition(14, 2)
    with pytest.raises(BackendError) as caught:
        launcher.check_addition(1000, 2)
    assert str(caught.value) == (
        "`workers` is 1000, but a run that has 2 can have at most 16 here, 8 for each core that this process may use"
        " (2): add at most 14"
    )
    with pytest.raises(BackendError, match=r"\(2\): remove others before"):
        launcher.check_addition(1, 20)


def test_a_number_that_is_refused_launches_nobody() -> None:
    class Small(ThreadLauncher):
        def check_addition(self, count: int, there: int) -> None:
            raise BackendError(f"no room for {count} besides {there}")

    launcher = Small(loading)
    with started(launcher) as backend:
        gather(backend, WorkerJoined, 2)
        with pytest.raises(BackendError, match="no room for 9 besides 2"):
            backend.add_workers(9)
        backend.remove_worker("w0")
        with pytest.raises(BackendError, match="no room for 9 besides 1"):
            backend.add_workers(9)
    assert len(launcher.jobs) == 2


def context(**settings: str) -> Any:
    """Something like a SparkContext with these settings."""
    named = {"spark." + name.replace("__", "."): value for name, value in settings.items()}
    settings_of: Any = SimpleNamespace(get=named.get, getAll=named.items)
    return SimpleNamespace(getConf=lambda: settings_of, _jsc=object())


@pytest.mark.parametrize(
    ("slots", "dynamic", "settings", "most"),
    [
        (3, False, {}, 3),
        (3, False, {"executor__instances": "4", "executor__cores": "2"}, 8),  # not all have registered yet
        (3, True, {"dynamicAllocation__maxExecutors": "4", "executor__cores": "2"}, 8),
        (3, True, {"dynamicAllocation__maxExecutors": "4"}, None),  # nobody knows how large executors will be
        (3, True, {"executor__cores": "2"}, None),
    ],
)
def test_a_cluster_has_room_for_as_many_as_it_can_run_at_a_time(
    slots: int, dynamic: bool, settings: dict[str, str], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Cluster("yarn", slots, 1, dynamic, "here", "here")
    monkeypatch.setattr(spark_cluster, "look", lambda context: there)
    launcher = SparkLauncher(context(**settings), 1, HubAddress())
    launcher._cluster = there
    assert spark_cluster.most_slots(context(**settings)) == most
    if most is None:
        launcher.check_addition(1000, 2)
        return
    launcher.check_addition(most - 2, 2)
    with pytest.raises(
        BackendError, match=rf"`workers` is 1000, but yarn has room for {most} .*add at most {most - 2}"
    ):
        launcher.check_addition(1000, 2)
    with pytest.raises(BackendError, match="remove others before, or give Spark more executors first"):
        launcher.check_addition(1, most)
