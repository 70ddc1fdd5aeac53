"""What is said before anything is launched on Spark, each with its fix; and what becomes of workers at a Ctrl-C."""

from __future__ import annotations

import logging
import py_compile
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from drivers import started_driver
from observing import each_event
from small_search import small_dataset, torch_model_fn
from sparks import CLUSTER, SparkHouse

from cerebro_spark.backend.driver import spark_cluster as cluster
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError, ConfigurationError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, Settings, WorkerJoined
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.opening import open_store
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


def job(folder: Path, **changes: Any) -> Job:
    dataset = small_dataset(folder)
    given: dict[str, Any] = {"store": dataset.store, "trainer": TrainerSpec(Hooks(torch_model_fn)), **changes}
    return Job("r1", dataset=dataset, **given)


def begin(spark: Any, job: Job, workers: int = 1) -> None:
    """Start workers on Spark and have one try a batch, then let them go."""
    backend = SparkBackend(spark, num_workers=workers)
    backend.bind(job)
    backend.start(job.dataset.partitions)
    try:
        assert backend.rehearse({"lr": 0.01}) is None
    finally:
        backend.close()


def test_too_few_slots(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`num_workers` is 5, but local\[2\] has room for 2 .* local\[5\]"):
        SparkBackend(spark, num_workers=5)


def test_all_slots_if_nobody_says_how_many(spark: Any) -> None:
    assert SparkBackend(spark).num_workers == 2


def test_executors_that_were_asked_for_and_are_not_there_are_said(
    spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    SparkBackend(spark)
    assert caplog.text == ""
    monkeypatch.setattr(cluster, "settled", cluster.look)  # it would wait for them
    monkeypatch.setattr(cluster, "expected_slots", lambda context: 5)
    assert SparkBackend(spark).num_workers == 2
    assert "has room for 2 tasks although its settings ask for executors with room for 5" in caplog.text
    caplog.clear()
    SparkBackend(spark, num_workers=2)
    assert caplog.text == "", "who says how many gets no advice"


def test_a_worker_owns_the_cores_of_its_task(spark_house: SparkHouse) -> None:
    session = spark_house.session("local[2]", spark__task__cpus="2")
    assert SparkBackend(session).num_workers == 1
    assert SparkBackend(session).threads == 2
    with pytest.raises(
        ConfigurationError, match=r"room for 1 tasks at a time \(spark.task.cpus is 2\): use num_workers=1"
    ):
        SparkBackend(session, num_workers=2)


def test_more_threads_than_cores_are_warned_of(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        SparkBackend(spark, num_workers=1, threads=4)
    assert "--conf spark.task.cpus=4" in caplog.text


def test_a_library_that_executors_lack(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster.LIBRARIES, "torch", ("torch", "no_such_library"))
    with pytest.raises(BackendError, match=r"lack no_such_library: install them there, or ship .* spark.archives"):
        begin(spark, job(tmp_path), 2)


def test_a_store_that_executors_cannot_write(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"cannot write to the store .*proc/nowhere"):
        begin(spark, job(tmp_path, store=LocalStore("/proc/nowhere")))


def test_a_store_that_is_not_shared(spark: Any, tmp_path: Path) -> None:
    apart = open_store("memory://apart")
    with pytest.raises(BackendError, match=r"does not see what executors wrote .* use a store that they share"):
        begin(spark, job(tmp_path, store=apart))


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that this process can import and no executor can."""
    source = tmp_path / "only_here.py"
    source.write_text(
        "from small_search import torch_model_fn\n\n\ndef model_fn(params):\n    return torch_model_fn(params)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield source
    sys.modules.pop("only_here", None)


def test_a_module_of_the_users_own_travels_to_executors(spark: Any, tmp_path: Path, only_here: Path) -> None:
    begin(spark, job(tmp_path, trainer=TrainerSpec(Hooks(import_module("only_here").model_fn))))


def test_a_compiled_module_that_executors_do_not_have(spark: Any, tmp_path: Path, only_here: Path) -> None:
    py_compile.compile(str(only_here), str(only_here.with_suffix(".pyc")))
    only_here.unlink()
    with pytest.raises(BackendError, match=r"No module named 'only_here'(.|\n)*addPyFile"):
        begin(spark, job(tmp_path, trainer=TrainerSpec(Hooks(import_module("only_here").model_fn))))


def test_a_good_cluster_leaves_nothing_behind(spark: Any, tmp_path: Path) -> None:
    good = job(tmp_path)
    before = good.store.list()
    backend = SparkBackend(spark, num_workers=2)
    backend.bind(good)
    backend.start(good.dataset.partitions)
    try:
        joined = 0
        while joined < 2:
            joined += sum(isinstance(event, WorkerJoined) for event in backend.events())
        # What a worker has written that is killed before it joins.
        good.store.write(str(backend._run.pool._launcher.probe()), b"probe")
    finally:
        backend.close()
    assert good.store.list() == before


@pytest.fixture
def dynamic(spark_house: SparkHouse) -> Any:
    return spark_house.session(
        CLUSTER,
        spark__dynamicAllocation__enabled="true",
        spark__dynamicAllocation__shuffleTracking__enabled="true",
        spark__dynamicAllocation__minExecutors="1",
        spark__dynamicAllocation__maxExecutors="2",
    )


def test_dynamic_allocation_runs_plain_tasks(dynamic: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        backend = SparkBackend(dynamic, num_workers=2)
    assert "spark.dynamicAllocation.enabled=false" in caplog.text
    there = job(tmp_path)
    backend.bind(there)
    settings = Settings(there.dataset.partitions, 2, queue_ahead=1, objective=Objective("val_loss", "min"))
    joined: list[Event] = []
    search = FixedSearch([{"lr": 0.01}, {"lr": 0.02}], epochs=1)
    Engine(search, settings, backend, EventLog(there.store, "r1"), observers=[each_event(joined.append)]).run()
    assert {event.worker for event in joined if isinstance(event, WorkerJoined)} == {"w0", "w1"}


DRIVER = """
import sys
from pathlib import Path
from drivers import started_driver
from small_search import small_dataset, torch_model_fn
from sparks import SparkHouse
import cerebro_spark as cs
from cerebro_spark import hp

folder = Path(sys.argv[1])
backend = cs.SparkBackend(SparkHouse().session("local[2]"), num_workers=2)
search = cs.RandomSearch(
    torch_model_fn, space={"lr": hp.uniform(0.001, 0.1), "batch_size": 8}, num_trials=50, epochs=50, metric="val_loss",
    store=str(folder / "runs"), backend=backend,
)

def tell(turn):
    if any(type(event).__name__ == "UnitFinished" for event in turn.events):
        print("workers", *(handle.pid for handle in backend._run.pool.handles.values()), flush=True)

from cerebro_spark import runs
execute = runs.execute
runs.execute = lambda *a, **k: execute(*a[:4], [tell], False)
search.fit(small_dataset(folder), run_id="stopped")
"""


def test_ctrl_c_stops_spark_workers_and_leaves_a_run_to_resume(tmp_path: Path) -> None:
    driver = started_driver(DRIVER, tmp_path)
    assert driver.stdout is not None
    workers = next((line.split()[1:] for line in driver.stdout if line.startswith("workers")), [])
    assert len(workers) == 2, workers or driver.communicate(timeout=450)
    assert all(is_worker(pid) for pid in workers)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=450)
    assert "KeyboardInterrupt" in said
    assert 'can be resumed: cs.resume("' in said
    await_end(workers)


def await_end(pids: Sequence[str]) -> None:
    """Wait until no worker process is left: each ends by itself, and no child of this process."""
    end = time.monotonic() + 120.0
    while left := [pid for pid in pids if is_worker(pid)]:
        assert time.monotonic() < end, f"{left} of {pids} are still there"
        time.sleep(0.05)


def is_worker(pid: str) -> bool:
    """Whether a worker process of that number is there."""
    try:
        return b"cerebro_spark.backend.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
