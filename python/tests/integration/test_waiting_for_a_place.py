"""A worker whose job finds no free place in the cluster is waited for; the others work meanwhile."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn

from cerebro_spark.backend.driver.spark_launcher import SparkLauncher
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.doctor import spark as doctor
from cerebro_spark.events import GatheringEnded, WorkerJoined
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE = 6.0


@pytest.fixture(autouse=True)
def slow_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has a place may take as long as it takes on a busy machine."""
    real = SparkLauncher.seconds_running

    def seconds_running(self: SparkLauncher, handle: WorkerHandle) -> float | None:
        return None if real(self, handle) is None else 0.0

    monkeypatch.setattr(SparkLauncher, "seconds_running", seconds_running)


class PlaceTaker:
    """Somebody else's job, which has one place of the cluster until it is told to leave."""

    def __init__(self, spark: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(300)
        self._job = threading.Thread(target=self._run, args=(spark, self._listener.getsockname()))

    def _run(self, spark: Any, address: tuple[str, int]) -> None:
        def sit(_: Any) -> Any:
            with socket.create_connection(address, timeout=300) as call:
                call.recv(1)  # returns when the other end is closed
            return []

        spark.sparkContext.parallelize([0], 1).mapPartitions(sit).collect()

    def __enter__(self) -> PlaceTaker:
        self._job.start()
        with self._listener:
            self._call, _ = self._listener.accept()
        return self

    def leave(self) -> None:
        self._call.close()

    def __exit__(self, *error: object) -> None:
        self.leave()
        self._job.join(300)


def test_those_who_come_late_do_not_wait_for_those_who_never_come(spark: Any, tmp_path: Path) -> None:
    """Nobody is there when patience ends for the first time; half of them are when it ends again."""
    dataset = small_dataset(tmp_path)
    backend = SparkBackend(spark, 2, start_timeout=PATIENCE, idle_timeout=0)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn))))
    told: list[type] = []
    with PlaceTaker(spark) as other, PlaceTaker(spark), backend:
        backend.start(dataset.partitions)
        leaving = threading.Timer(1.5 * PATIENCE, other.leave)
        leaving.start()
        while GatheringEnded not in told:
            told += [type(event) for event in backend.events()]
        leaving.join()
    assert told.count(WorkerJoined) == 1


def test_the_doctor_does_not_wait_for_ever(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SECONDS_FOR_A_TASK", 3.0)
    with PlaceTaker(spark), PlaceTaker(spark):
        lines = [line.text for line in doctor._examine_context(spark.sparkContext, None, {}) if line.verdict == "FIX"]
    assert len(lines) == 2
    assert "a barrier task did not run within 3 s, though there is room for 2: others may hold all slots" in lines[0]
    assert "executors did not answer within 3 s: others may hold all slots" in lines[1]


def test_a_worker_without_a_place_comes_when_there_is_one(spark: Any, tmp_path: Path) -> None:
    """Over three times the time in which a worker must have come, were it only slow: three such end a run."""
    dataset = small_dataset(tmp_path)
    backend = SparkBackend(spark, 2, start_timeout=PATIENCE, idle_timeout=0)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn))))
    joined: list[str] = []
    with PlaceTaker(spark) as other, backend:
        backend.start(dataset.partitions)
        left = threading.Event()

        def leave() -> None:
            left.set()
            other.leave()

        leaving = threading.Timer(3.5 * PATIENCE, leave)
        while len(joined) < 2:
            for event in backend.events():
                if isinstance(event, WorkerJoined):
                    joined.append(event.worker)
                    assert len(joined) == 1 or left.is_set(), "there was no place for a second worker yet"
                elif isinstance(event, GatheringEnded):  # the first one, however late it came, waits for no other
                    leaving.start()
        leaving.join()
