"""The life of workers as their backend keeps it: who belongs to which run, and who is left when it is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept_workers import KeptWorkers
from logs import logged
from small_search import small_dataset, torch_model_fn

from cerebro_spark.backend.driver.workers import WorkerHandle, WorkerNames
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.events import RetireWorker, WorkerJoined
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec


def begun(backend: LocalBackend, folder: Path, model_fn: Any = torch_model_fn) -> None:
    """Start it, and wait until all its workers are there."""
    dataset = small_dataset(folder)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn), framework="torch")))
    backend.start(dataset.partitions)
    there = 0
    while there < backend.num_workers:
        there += sum(isinstance(event, WorkerJoined) for event in backend.events())


@pytest.mark.slow
@pytest.mark.parametrize("left", [WorkerHandle("w0"), WorkerHandle("w0", peer=1)], ids=["never joined", "had joined"])
def test_who_is_left_of_an_earlier_run_takes_nobodys_name_or_wire(
    left: WorkerHandle, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    with kept_backend(2) as backend:
        begun(backend, tmp_path)
        backend._run.pool.ended(left)
        assert backend.rehearse({}) is None
        assert backend.workers == ["w0", "w1"]


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed_again(*_: Any) -> None:
        raise KeyboardInterrupt

    backend = LocalBackend(num_workers=1, threads=1)
    begun(backend, tmp_path)
    pool = backend._run.pool
    (handle,) = pool.handles.values()
    os.kill(handle.pid or 0, signal.SIGSTOP)  # it will not hear that it shall stop
    monkeypatch.setattr(pool, "close", pressed_again)
    with pytest.raises(KeyboardInterrupt):
        backend.close()
    assert handle.ended.wait(300)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_that_is_taken_away_while_it_tries_a_trial_says_nothing_of_the_trial(
    tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    def model_fn(params: Mapping[str, Any]) -> Any:
        if not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch_model_fn(params)

    with kept_backend(1) as backend:
        begun(backend, tmp_path, model_fn)
        assert backend.rehearse({}) is None
        assert backend.workers == ["w0.1"]


@pytest.mark.slow
def test_a_worker_that_the_scheduler_lets_go_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept_backend: KeptWorkers
) -> None:
    with kept_backend(3) as backend:
        begun(backend, tmp_path)
        backend.remove_worker("w0")
        left = [backend._run.pool.handles[name] for name in ("w0", "w1")]
        for handle in left:
            backend.submit(RetireWorker(handle.name))
        assert all(handle.ended.wait(200) for handle in left)  # they may be loading a framework
        while backend.workers != ["w2"]:  # until the driver has seen that they are gone
            time.sleep(0.005)
    assert [record.message.split(" on ")[0] for record in caplog.records if "let go" in record.message] == ["worker w1"]


@pytest.mark.slow
def test_who_was_let_go_for_its_failures_is_replaced_after_a_while(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    with kept_backend(2) as backend:
        begun(backend, tmp_path)
        backend.submit(RetireWorker("w0", back_after=0.01))
        joined: list[str] = []
        while not joined:
            joined += [event.worker for event in backend.events() if isinstance(event, WorkerJoined)]
        assert joined == ["w0.1"]


@pytest.mark.slow
def test_a_place_that_is_still_bad_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_backend: KeptWorkers
) -> None:
    """Whoever comes there dies at once, which would end a run that has nobody else for the place."""
    with kept_backend(2, max_restarts=4) as backend:
        begun(backend, tmp_path)
        monkeypatch.setattr("sys.executable", "/bin/false")
        w0 = backend._run.pool.handles["w0"]
        with logged("cerebro_spark.backend.driver.pool", "no restart is left") as given_up:
            backend.submit(RetireWorker("w0", back_after=0.01))
            assert given_up.wait(300)
        assert w0.ended.wait(300)
        assert not backend._run._events.failed
        assert [name for name in backend.workers if name != "w0"] == ["w1"]


def test_who_died_of_a_trial_does_not_speak_against_the_place() -> None:
    names = WorkerNames(max_restarts=9)
    assert [names.replacement_of(WorkerHandle("w0", tried=True)) for _ in range(5)] == ["w0.1"] * 5


def refusing(error: Exception) -> Any:
    class Session:
        @property
        def sparkContext(self) -> Any:
            raise error

    Session.__module__ = "pyspark.sql.connect.session"
    return Session()


@pytest.mark.parametrize("error", [AttributeError("sparkContext"), NotImplementedError("[NOT_IMPLEMENTED]")])
def test_spark_connect_is_refused_with_what_to_use(error: Exception) -> None:
    with pytest.raises(ConfigurationError, match=r"`spark` is a pyspark.sql.connect.*classic session"):
        SparkBackend(refusing(error), 2)


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"`spark` is a int, but must be a SparkSession"):
        SparkBackend(7, 2)  # type: ignore[arg-type]


def test_a_session_that_was_stopped_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the Spark session was stopped: make a new one"):
        SparkBackend(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)), 2)  # type: ignore[arg-type]


@pytest.mark.jvm
@pytest.mark.slow
def test_a_run_on_a_session_that_was_stopped_ends_with_what_to_do(tmp_path: Path) -> None:
    """In a process of its own: the session that other tests share must live."""
    script = textwrap.dedent(
        """
        import sys
        from pyspark.sql import SparkSession
        import cerebro_spark as cs
        from cerebro_spark import hp

        def model_fn(params):
            import torch
            module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Flatten(0))
            return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.MSELoss())

        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        backend = cs.SparkBackend(spark, 1)
        spark.stop()
        search = cs.GridSearch(
            model_fn, space={"lr": hp.choice([0.1])}, backend=backend, store=sys.argv[1], metric="loss", epochs=1
        )
        data = cs.prepare({"x": [1.0] * 8, "y": [1.0] * 8}, store=sys.argv[1], features=["x"], label="y", partitions=1)
        search.fit(data)
        """
    )
    said = [sys.executable, "-c", script, str(tmp_path / "store")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(said, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    # Not always the last line: the JVM, which ends a moment later, writes there too.
    assert "the Spark session was stopped: make a new one, and a new SparkBackend of it" in done.stderr, done.stderr[
        -3000:
    ]
