"""A parent of workers as a process: what it forks, what it hears of it, and when it must not fork."""

from __future__ import annotations

import base64
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from ahead_of_jobs import BEGUN, GO
from small_search import small_dataset, torch_model_fn

from cerebro_spark.backend.driver.launcher import HubAddress
from cerebro_spark.backend.driver.switchboard import Listener, Switchboard
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import (
    Hello,
    KillWorker,
    PrepareNext,
    StartWorker,
    Stop,
    WorkerEnded,
    WorkerPrinted,
)
from cerebro_spark.backend.worker.ahead import AheadSpec
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.process import WorkerProcess
from cerebro_spark.backend.worker.session import WorkerSpec, pack_job
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECONDS = 200.0


class Driver:
    """The driver of one parent, and of the workers that it starts: it only listens."""

    def __init__(self) -> None:
        self.board = Switchboard(HubAddress(), silence=SECONDS)
        self.parents: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.workers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.ended = threading.Event()
        self.of_parents = self.board.open(self._listener(self.parents))
        self.of_run = self.board.open(self._listener(self.workers))
        self.process = WorkerProcess("parent", self.ended.set)

    def _listener(self, heard: queue.SimpleQueue[tuple[int, Any]]) -> Listener:
        return Listener(lambda peer, message: heard.put((peer, message)), lambda *_: None, lambda reason: None)

    def launch(self, job: Job, framework: str | None = "torch", **changes: Any) -> int:
        """Launch the parent with its first worker; return its peer number."""
        packed, board = pack_job(job, "w0"), self.board
        worker = WorkerSpec(
            board.dialled, board.credentials, "w0", packed.job, stores=packed.stores, framework=framework
        )
        spec = ParentSpec("p", self.of_parents.name, replace(worker, session=self.of_run.name, **changes))
        self.process.give(cloudpickle.dumps(spec))
        peer, hello = self.parents.get(timeout=SECONDS)
        assert isinstance(hello, Hello)
        return peer

    def hear(self, kind: type) -> Any:
        """The next message of that kind of the parent's."""
        while not isinstance(message := self.parents.get(timeout=SECONDS)[1], kind):
            pass
        return message

    def worker(self) -> tuple[int, Hello]:
        """The next worker that joins the run."""
        while not isinstance((heard := self.workers.get(timeout=SECONDS))[1], Hello):
            pass
        return heard

    def restart(self, parent: int, number: int, job: Job) -> None:
        """End the worker before that number, and order the one with that number."""
        self.of_parents.send(parent, KillWorker(number - 1))
        assert self.hear(WorkerEnded).number == number - 1
        data = base64.b64encode(pack_job(job, f"w{number}").job).decode()
        self.of_parents.send(parent, StartWorker(number, f"w{number}", self.of_run.name, data))

    def close(self) -> None:
        self.board.close()
        assert self.ended.wait(SECONDS), "a parent ends when its driver hangs up"


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


def job_of(folder: Path, model_fn: Any = torch_model_fn) -> Job:
    dataset = small_dataset(folder)
    return Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn), framework="torch"))


@pytest.mark.parametrize("framework", ["torch", None], ids=["forked", "spawned"])
def test_one_worker_after_another_is_started_killed_and_told_of(
    driver: Driver, tmp_path: Path, framework: str | None
) -> None:
    job = job_of(tmp_path)
    parent = driver.launch(job, framework)
    _, first = driver.worker()
    driver.of_parents.send(parent, KillWorker(7))  # not its number: nothing happens
    driver.of_parents.send(parent, KillWorker(0))
    ended = driver.hear(WorkerEnded)
    assert ended.number == 0
    assert ended.words[-1] == "(its process ended with code -9)"
    data = base64.b64encode(pack_job(job, "w1").job).decode()
    driver.of_parents.send(parent, StartWorker(1, "w1", driver.of_run.name, data))
    peer, second = driver.worker()
    assert (first.worker, second.worker) == ("w0", "w1")
    assert first.pid != second.pid
    driver.of_run.send(peer, Stop())
    assert driver.hear(WorkerEnded) == WorkerEnded(1)


class Talking:
    """Unpickling it prints, and closes the standard output for good."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _talk, ()


def _talk() -> Any:
    print("out")
    print("a loud one", file=sys.stderr)
    os.close(1)
    return torch_model_fn


def test_what_a_worker_prints_comes_with_its_number_also_if_it_closes_its_output(
    driver: Driver, tmp_path: Path
) -> None:
    def model_fn(params: Mapping[str, Any], talking: Any = Talking()) -> Any:  # noqa: B008 (it is to be pickled)
        return torch_model_fn(params)

    parent = driver.launch(job_of(tmp_path, model_fn))
    driver.worker()
    lines = {driver.hear(WorkerPrinted) for _ in range(2)}
    assert {(each.number, each.line.text) for each in lines} == {(0, "out"), (0, "a loud one")}
    driver.of_parents.send(parent, KillWorker(0))
    assert "a loud one" in driver.hear(WorkerEnded).words


def test_a_worker_below_a_parent_that_is_told_to_stop_ends_with_it(driver: Driver, tmp_path: Path) -> None:
    parent = driver.launch(job_of(tmp_path))
    _, hello = driver.worker()
    driver.of_parents.send(parent, Stop())
    assert driver.ended.wait(SECONDS)
    with subprocess.Popen(["tail", f"--pid={hello.pid}", "-f", "/dev/null"]) as waiting:
        assert waiting.wait(SECONDS) == 0


class SettingAVariable:
    """Unpickling it changes the environment."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_a_variable, ()


def _set_a_variable() -> Any:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return torch_model_fn


def test_the_next_worker_is_forked_ahead_of_its_job(driver: Driver, tmp_path: Path) -> None:
    """It is used once, if it lived, got ready and is fit; else the worker is forked as if it had not been there."""
    job, begun, go = job_of(tmp_path), tmp_path / BEGUN, tmp_path / GO
    for pipe in (begun, go):
        os.mkfifo(pipe)
    ahead = AheadSpec("ahead_of_jobs:get_ready", (str(tmp_path),), needs=str(tmp_path))
    parent = driver.launch(job, ahead=ahead)
    driver.worker()

    def prepare(number: int) -> int:
        driver.of_parents.send(parent, PrepareNext(number))
        return int(begun.read_text())

    # Its job comes while it is still getting ready.
    ready = prepare(0)
    driver.of_parents.send(parent, PrepareNext(0))  # there is one already: nothing happens
    driver.restart(parent, 1, job)
    go.write_text("well")
    assert driver.worker()[1].pid == ready
    # It dies while nobody looks.
    killed = prepare(1)
    assert killed != ready
    os.kill(killed, signal.SIGKILL)
    driver.restart(parent, 2, job)
    fresh = driver.worker()[1].pid
    assert fresh not in (ready, killed)
    # It does not get ready.
    failed = prepare(2)
    driver.restart(parent, 3, job)
    go.write_text("badly")
    assert driver.worker()[1].pid not in (ready, killed, fresh, failed)
    # What its job sets may have been settled ahead.
    unfit = prepare(3)
    go.write_text("well")

    def model_fn(params: Mapping[str, Any], setting: Any = SettingAVariable()) -> Any:  # noqa: B008 (to be pickled)
        return torch_model_fn(params)

    driver.restart(parent, 4, replace(job, trainer=TrainerSpec(Hooks(model_fn), framework="torch")))
    assert "CUBLAS_WORKSPACE_CONFIG" in driver.hear(WorkerPrinted).line.text
    assert driver.worker()[1].pid != unfit
    # It does not outlive its parent, however that ends.
    last = prepare(4)
    driver.process.kill()
    with subprocess.Popen(["tail", f"--pid={last}", "-f", "/dev/null"]) as waiting:
        assert waiting.wait(SECONDS) == 0


IMPORTING_STARTS_A_THREAD = """
import sys, threading, importlib.abc
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "torch._dynamo":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("framework", "before", "why_not"),
    [
        ("torch", "", "None"),
        ("keras", "", "Keras starts threads when it is imported"),
        (None, "", "the framework is not known"),
        ("torch", IMPORTING_STARTS_A_THREAD, "something that was imported has started threads"),
        (
            "torch",
            "import small_search",
            "something that was imported has imported modules of the user's: small_search",
        ),
        ("torch", "kept = open('/dev/null'); import os; os.readlink = lambda file: '/dev/nvidiactl'", "uses a GPU"),
    ],
    ids=["torch", "keras", "unknown", "thread", "own module", "GPU"],
)
def test_a_process_is_forked_only_if_nothing_it_loaded_is_in_the_way(
    framework: str | None, before: str, why_not: str
) -> None:
    asked = "from cerebro_spark.backend.worker.preloading import preload_to_fork"
    code = f"{before}\n{asked}\nprint(preload_to_fork({framework!r}))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True, env=environment()
    )
    assert why_not in said.stdout.splitlines()[-1]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
