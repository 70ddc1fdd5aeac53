"""Runs that were started, and not waited for, on a backend whose block is left, that is closed, or that has another."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError
from cerebro_spark.live import Run
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.tune.trackers import Tracker

pytestmark = pytest.mark.timeout(900)
KINDS = ["simulated", pytest.param("local", marks=pytest.mark.slow)]
LONG = 600.0
CLOSED = "the backend was closed while a run went on"


class Gate(Tracker):
    """Holds its run after the first epoch, in the thread that drives it, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        self.reached.set()
        assert self.opened.wait(LONG)


@pytest.fixture(autouse=True)
def _nothing_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that tests these runs does not wait for them."""
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)


def make_backend(kind: str) -> LocalBackend | SimulatedBackend:
    if kind == "local":
        return LocalBackend(2, threads=1)
    return SimulatedBackend([SimulatedWorker("w0"), SimulatedWorker("w1")], World(cost=lambda params: 1.0))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str) -> LocalBackend | SimulatedBackend:
    return make_backend(kind)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), rows=80)


def start(dataset: Dataset, folder: Path, backend: Backend, run_id: str, gate: Gate | None = None) -> Run:
    """Start a run; wait until it is at its gate, if it has one."""
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.03]), "batch_size": 16},
        store=str(folder),
        metric="val_loss",
        epochs=2,
        backend=backend,
        trackers=[gate] if gate else [],
    )
    run = search.start(dataset, run_id=run_id)
    assert gate is None or gate.reached.wait(LONG)
    return run


def test_leaving_a_block_waits_for_the_run_that_was_started_there(
    backend: Backend, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, wait_until_free = Gate(), backend.wait_until_free

    def wait() -> None:
        gate.opened.set()  # not before the block is left
        wait_until_free()

    monkeypatch.setattr(backend, "wait_until_free", wait)
    with backend:
        run = start(dataset, tmp_path, backend, "mine", gate)
    assert len(run.wait(LONG).history) == 4


def test_a_block_that_is_left_before_a_run_has_come_to_its_workers_does_not_stop_it(
    backend: Backend, dataset: Dataset, tmp_path: Path
) -> None:
    with backend:
        run = start(dataset, tmp_path, backend, "mine")
    assert len(run.wait(LONG).history) == 4


@pytest.fixture
def gate(backend: LocalBackend | SimulatedBackend, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """A gate that is opened when somebody has closed the backend, and waits for the run to notice that."""
    made, wait_until_free = Gate(), backend._tenancy.wait_until_free

    def wait(timeout: float | None = None) -> None:
        made.opened.set()
        wait_until_free(timeout)

    monkeypatch.setattr(backend._tenancy, "wait_until_free", wait)
    return made


def test_ctrl_c_in_the_wait_at_the_end_of_a_block_ends_the_run(
    backend: Backend, gate: Gate, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "wait_until_free", interrupted)
    with pytest.raises(KeyboardInterrupt), backend:
        run = start(dataset, tmp_path, backend, "mine", gate)
    with pytest.raises(BackendError, match=CLOSED):
        run.wait(LONG)


def test_closing_a_backend_ends_its_run_which_can_be_resumed(
    kind: str, backend: Backend, gate: Gate, dataset: Dataset, tmp_path: Path
) -> None:
    run = start(dataset, tmp_path, backend, "mine", gate)
    backend.close()
    with pytest.raises(BackendError, match=CLOSED) as caught:
        run.wait(LONG)
    assert "run mine can be resumed: cs.resume(" in caught.value.__notes__[0]
    assert run.status == "failed"
    assert len(cs.resume(str(tmp_path), "mine", backend=make_backend(kind)).history) == 4


def test_a_second_run_on_a_backend_is_refused_and_the_first_goes_on(
    backend: Backend, dataset: Dataset, tmp_path: Path
) -> None:
    gate = Gate()
    first = start(dataset, tmp_path, backend, "first", gate)
    second = start(dataset, tmp_path, backend, "second")
    with pytest.raises(BackendError, match="running already: thread run-first drives a run on it"):
        second.wait(LONG)
    with pytest.raises(BackendError, match="running already"):
        start(dataset, tmp_path, backend, "third").wait(LONG)
    gate.opened.set()
    assert len(first.wait(LONG).history) == 4
    again = start(dataset, tmp_path, backend, "second")
    assert len(again.wait(LONG).history) == 4, "its id is free, and so is the backend"


def test_two_runs_that_are_started_at_a_time_never_get_each_others_job(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two threads binds before either starts: one has the backend, with its own job, and the other an error."""
    backend, both = LocalBackend(1), threading.Barrier(2)
    began: list[tuple[str, str]] = []
    refused: list[BackendError] = []
    done = threading.Barrier(2)
    monkeypatch.setattr(
        LocalBackend, "_begin_run", lambda self, job, at: began.append((threading.current_thread().name, job.run))
    )

    def drive(name: str) -> None:
        backend.bind(Job(name, dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn))))
        both.wait(LONG)
        try:
            backend.start(dataset.partitions)
        except BackendError as error:
            refused.append(error)
        done.wait(LONG)

    threads = [threading.Thread(target=drive, args=(name,), name=name, daemon=True) for name in ("r1", "r2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    ((thread_name, run_name),) = began
    assert thread_name == run_name
    assert len(refused) == 1
    assert f"running already: thread {thread_name} drives" in str(refused[0])
