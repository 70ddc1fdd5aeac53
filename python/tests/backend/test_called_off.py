"""A run whose workers do not come, or are busy with their first batch, can be stopped."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn
from test_remote_run import ThreadBackend, ThreadLauncher, gather, started

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.driver.event_queue import EventQueue
from cerebro_spark.backend.driver.launcher import ProcessWatcher
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.messages import RehearseTrial, ToWorker
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.errors import BackendError, NoAnswerYet, RunKilled
from cerebro_spark.events import WorkerJoined
from cerebro_spark.live import Run
from cerebro_spark.store.local import LocalStore

pytestmark = pytest.mark.timeout(300)


class NoPlace(ThreadLauncher):
    """A cluster that is full: workers are launched, and never run."""

    def __init__(self) -> None:
        super().__init__(lambda connection, name, order: None)
        self._watchers: dict[str, ProcessWatcher] = {}
        self.asked = threading.Event()

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        self._watchers[handle.name] = watcher
        self.asked.set()

    def kill(self, handle: WorkerHandle) -> None:
        watcher = self._watchers.pop(handle.name, None)
        if watcher is not None:
            watcher.ended(handle)

    def seconds_running(self, handle: WorkerHandle) -> float | None:
        return None


class Outcome(threading.Thread):
    """What became of a call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.begun = threading.Event()
        self.returned: Any = "nothing yet"
        self.start()
        assert self.begun.wait(60)

    def run(self) -> None:
        try:
            self.begun.set()
            self.returned = self._call()
        except BaseException as error:
            self.returned = error

    def value(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self.returned


def test_an_exception_of_another_thread_ends_the_wait_for_events() -> None:
    waiting = Outcome(EventQueue().take)
    assert waiting.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting.ident), ctypes.py_object(KeyboardInterrupt))
    assert isinstance(waiting.value(), KeyboardInterrupt)


def test_the_wait_for_events_has_the_limit_that_it_is_given() -> None:
    events = EventQueue()
    assert events.take(0.01) == []
    assert events.take(1.01) == []
    assert events.peek(0) == []


def rehearsing(backend: ThreadBackend) -> Outcome:
    return Outcome(lambda: backend.rehearse({}))


def test_a_rehearsal_for_which_no_worker_comes_can_be_skipped() -> None:
    with started(NoPlace()) as backend:
        trying = rehearsing(backend)
        backend.skip_rehearsal()
        assert trying.value() is None
        assert backend.rehearse({"lr": 1}) is None, "and so are all later ones"


def test_a_rehearsal_that_takes_long_can_be_skipped() -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(connection: DriverConnection, name: str, order: ToWorker) -> None:
        if isinstance(order, RehearseTrial):
            asked.set()
            assert answer.wait(60)

    with started(ThreadLauncher(slow), num_workers=1) as backend:
        trying = rehearsing(backend)
        assert asked.wait(60)
        backend.skip_rehearsal()
        assert trying.value() is None
        answer.set()
        assert [event.worker for event in gather(backend, WorkerJoined, 1)] == ["w0"], "no event is lost by that"


def test_to_skip_a_rehearsal_where_nothing_goes_on_is_nothing() -> None:
    ThreadBackend(NoPlace()).skip_rehearsal()


def test_a_run_that_is_closed_while_its_workers_are_awaited_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited, peek = threading.Event(), EventQueue.peek

    def noted(events: EventQueue, *arguments: Any) -> Any:
        awaited.set()
        return peek(events, *arguments)

    monkeypatch.setattr(EventQueue, "peek", noted)
    with started(NoPlace()) as backend:
        trying = rehearsing(backend)
        assert awaited.wait(60)
        backend.close()
        said = trying.value()
    assert isinstance(said, BackendError)
    assert "the backend was closed while a run went on" in str(said)


# -- whole runs


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that waits for workers which never come."""
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)
    launcher = NoPlace()
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.03]), "batch_size": 16},
        store=str(tmp_path / "runs"),
        metric="val_loss",
        epochs=1,
        backend=ThreadBackend(launcher),
    )
    run = search.start(small_dataset(tmp_path, rows=80), run_id="mine")
    assert launcher.asked.wait(60)
    assert run.status == "starting"
    return run


class InterruptedWait(threading.Event):
    """An event whose first wait is interrupted, as by Ctrl-C."""

    interrupted = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().wait(timeout)


# Not where coverage is measured: while an exception is pending for one thread, traced threads of Python 3.11 get no
# further at the beginning of a function, and one of them may have what the first thread waits for.
@pytest.mark.slow
def test_ctrl_c_stops_a_run_that_waits_for_its_workers(waiting: Run, tmp_path: Path) -> None:
    waiting._ended = InterruptedWait()
    with pytest.raises(KeyboardInterrupt):
        waiting.wait()
    assert (waiting.status, type(waiting.error)) == ("stopped", KeyboardInterrupt)
    assert LocalStore(tmp_path / "runs").list() == [], "it never began"


def test_a_run_that_waits_for_its_workers_can_be_killed_and_resumed(waiting: Run, tmp_path: Path) -> None:
    assert waiting.kill().done
    with pytest.raises(RunKilled, match="run mine was killed") as caught:
        waiting.wait(60)
    assert "run mine can be resumed: cs.resume(" in caught.value.__notes__[0]
    assert waiting.status == "stopped"
    assert list(waiting.trials["trial"]) == ["t0", "t1"], "what it was to do is in its log"


def test_a_run_that_waits_for_its_workers_can_be_ended(waiting: Run) -> None:
    assert waiting.end().done
    result = waiting.wait(60)
    assert waiting.status == "done"
    assert len(result.history) == 0


def test_other_commands_wait_for_the_workers(waiting: Run) -> None:
    with pytest.raises(NoAnswerYet, match=r"pause was not answered after 0.01 s: run mine is starting"):
        waiting.pause(timeout=0.01)
    assert waiting.kill().done
    with pytest.raises(RunKilled):
        waiting.wait(60)
