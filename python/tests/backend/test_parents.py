"""Parents of workers as the driver keeps them, in any order of events, with parents that are records of a test."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fast_tier import drawn
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from small_search import torch_model_fn
from wire_credentials import RUN

from cerebro_spark.backend.driver.launcher import Launcher, ProcessWatcher
from cerebro_spark.backend.driver.parent_launcher import ParentLauncher
from cerebro_spark.backend.driver.switchboard import Listener
from cerebro_spark.backend.driver.worker_kinds import ahead_of, framework_of, worker_kind
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.messages import (
    Hello,
    KillWorker,
    OutputLine,
    PrepareNext,
    StartWorker,
    Stop,
    ToWorker,
    WorkerEnded,
)
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.errors import BackendError, ConfigurationError
from cerebro_spark.trainer.base import Hooks, Trainer
from cerebro_spark.trainer.spec import TrainerSpec

FOREVER = 1e6


@dataclass(eq=False)
class FakeParent:
    """What a parent process would be at: its worker, its connection, whether it was told to stop."""

    handle: WorkerHandle
    spec: ParentSpec
    watcher: ProcessWatcher
    child: int | None = 0
    name: str = ""
    peer: int | None = None
    stopped: bool = False


class FakeLauncher(Launcher):
    def __init__(self) -> None:
        self.parents: list[FakeParent] = []
        self.killed: list[WorkerHandle] = []
        self.was_killed = threading.Event()
        self.refuses = False

    def job_for(self, name: str, job: Job) -> Job:
        return job

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        assert isinstance(spec, ParentSpec)
        if self.refuses:
            raise BackendError("no room")
        self.parents.append(FakeParent(handle, spec, watcher, name=spec.worker.name))

    def kill(self, handle: WorkerHandle) -> None:
        self.killed.append(handle)
        self.was_killed.set()


@dataclass
class FakeBoard:
    """A switchboard and its session in one, which only notes what is said."""

    name: str = "parents"
    sent: list[tuple[int, ToWorker]] = field(default_factory=list)
    listener: Listener | None = None

    def open(self, listener: Listener) -> FakeBoard:
        self.listener = listener
        return self

    def send(self, peer: int, message: ToWorker) -> None:
        self.sent.append((peer, message))

    def close(self) -> None:
        pass


class Book:
    """A pool of a run, as far as launchers know it."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def ended(self, handle: WorkerHandle) -> None:
        self.ends.append(handle.name)

    def printed(self, handle: WorkerHandle, line: OutputLine) -> None: ...

    def refused(self, handle: WorkerHandle, reason: str) -> None: ...

    def loss_explained(self, handle: WorkerHandle, cause: str) -> None: ...


def spec_of(name: str, kind: str = "a", **changes: Any) -> WorkerSpec:
    return WorkerSpec(("127.0.0.1", 1), RUN.worker, name, b"job", session="r1", kind=kind, **changes)


class Parents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.board, self.book = FakeLauncher(), FakeBoard(), Book()
        self.launcher = ParentLauncher(self.inner, self.board, FOREVER)  # type: ignore[arg-type]
        self.names = itertools.count()
        self.peers = itertools.count(1)
        self.workers: dict[str, WorkerHandle] = {}
        self.proven: set[str] = set()
        self.heard = 0

    def teardown(self) -> None:
        """When all that is left ends, each worker has been told to have ended, once."""
        self.launcher.end_idle()
        for parent in list(self.inner.parents):
            self.die(parent)
        assert sorted(self.book.ends) == sorted(self.workers)
        assert self.launcher.held == 0

    def said(self, peer: int, message: Any) -> None:
        assert self.board.listener is not None
        self.board.listener.on_message(peer, message)

    def by_peer(self, peer: int) -> FakeParent | None:
        return next((parent for parent in self.inner.parents if parent.peer == peer), None)

    def die(self, parent: FakeParent) -> None:
        self.inner.parents.remove(parent)
        parent.watcher.ended(parent.handle)

    # -- what happens

    @rule(kind=st.sampled_from("ab"))
    def launch(self, kind: str) -> None:
        name = f"w{next(self.names)}"
        handle = self.workers[name] = WorkerHandle(name)
        self.launcher.launch(handle, spec_of(name, kind), self.book)
        parent = self.launcher._parent_of(handle)
        assert parent is not None
        assert parent.kind == kind

    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        waiting = [parent for parent in self.inner.parents if parent.peer is None]
        if waiting:
            parent = data.draw(st.sampled_from(waiting))
            parent.peer = next(self.peers)
            self.said(parent.peer, Hello(parent.handle.name, "host", 1))

    @rule(data=st.data())
    def worker_ends(self, data: st.DataObject) -> None:
        busy = [parent for parent in self.inner.parents if parent.peer is not None and parent.child is not None]
        if busy:
            parent = data.draw(st.sampled_from(busy))
            self.end_child(parent)

    def end_child(self, parent: FakeParent) -> None:
        assert parent.child is not None
        assert parent.peer is not None
        number, parent.child = parent.child, None
        self.said(parent.peer, WorkerEnded(number, ("bye",)))

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        if self.workers:
            self.launcher.kill(self.workers[data.draw(st.sampled_from(sorted(self.workers)))])

    @rule(data=st.data())
    def unit_ends(self, data: st.DataObject) -> None:
        """A worker finishes a unit: if it is the first, its parent hears of it, and no other."""
        if not self.workers:
            return
        handle = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        parent, before = self.launcher._parent_of(handle), len(self.board.sent)
        for _ in range(2):
            self.launcher.note_unit(handle)
        told = self.board.sent[before:]
        if parent is None or parent.peer is None or parent.leaving or handle.name in self.proven:
            assert told == []
        else:
            assert parent.work is not None
            assert told == [(parent.peer, PrepareNext(parent.work.number))]
            self.proven.add(handle.name)

    @rule(data=st.data())
    def parent_is_lost(self, data: st.DataObject) -> None:
        joined = [parent for parent in self.inner.parents if parent.peer is not None]
        if joined:
            parent = data.draw(st.sampled_from(joined))
            assert self.board.listener is not None
            self.board.listener.on_lost(parent.peer or 0, "gone")

    @rule(data=st.data())
    def parent_dies(self, data: st.DataObject) -> None:
        if self.inner.parents:
            self.die(data.draw(st.sampled_from(self.inner.parents)))

    @rule()
    def too_long_idle(self) -> None:
        for parent in list(self.launcher._parents):
            if parent.timer is not None:
                parent.timer.cancel()
                self.launcher._end_if_idle(parent)

    @rule()
    def room_is_made(self) -> None:
        self.launcher.end_idle()

    @precondition(lambda self: self.heard < len(self.board.sent))
    @rule()
    def parent_obeys(self) -> None:
        """A parent does what it was told next."""
        peer, order = self.board.sent[self.heard]
        self.heard += 1
        parent = self.by_peer(peer)
        if parent is None or parent.stopped:
            return
        if isinstance(order, StartWorker):
            assert parent.child is None, "one worker at a time"
            parent.child, parent.name = order.number, order.name
        elif isinstance(order, KillWorker) and parent.child == order.number:
            self.end_child(parent)
        elif isinstance(order, Stop):
            parent.stopped = True
            self.die(parent)

    # -- what always holds

    @invariant()
    def nobody_ends_twice(self) -> None:
        assert len(self.book.ends) == len(set(self.book.ends))

    @invariant()
    def who_has_ended_is_no_parents_worker(self) -> None:
        for parent in self.launcher._parents:
            assert parent.work is None or parent.work.handle.name not in self.book.ends

    @invariant()
    def a_parent_is_told_nothing_after_stop(self) -> None:
        stopped: set[int] = set()
        for peer, order in self.board.sent:
            assert not (isinstance(order, (StartWorker, PrepareNext)) and peer in stopped)
            if isinstance(order, Stop):
                stopped.add(peer)


Parents.TestCase.settings = settings(max_examples=drawn(150), stateful_step_count=40, deadline=None)
TestParents = Parents.TestCase


def joined(board: FakeBoard, inner: FakeLauncher, launcher: ParentLauncher, spec: WorkerSpec) -> FakeParent:
    """A parent that has started this worker, which has ended."""
    launcher.launch(WorkerHandle(spec.name), spec, Book())
    parent = inner.parents[-1]
    assert board.listener is not None
    board.listener.on_message(7, Hello(parent.handle.name))
    board.listener.on_message(7, WorkerEnded(0))
    return parent


@pytest.fixture
def parts() -> tuple[FakeBoard, FakeLauncher, ParentLauncher]:
    inner, board = FakeLauncher(), FakeBoard()
    return board, inner, ParentLauncher(inner, board, FOREVER)  # type: ignore[arg-type]


Parts = tuple[FakeBoard, FakeLauncher, ParentLauncher]


def test_credentials_are_not_sent_to_another_machine(parts: Parts) -> None:
    """The connection is authenticated and can be read: a parent elsewhere is used for the stores it came with."""
    board, inner, launcher = parts
    far: dict[str, Any] = {"address": ("elsewhere", 1)}
    first = WorkerSpec(**far, credentials=RUN.worker, name="w0", job=b"one", stores=b"password", kind="a")
    joined(board, inner, launcher, first)
    same = WorkerSpec(**far, credentials=RUN.worker, name="w1", job=b"two", stores=b"password", kind="a")
    launcher.launch(WorkerHandle("w1"), same, Book())
    (order,) = [order for _, order in board.sent]
    assert isinstance(order, StartWorker)
    assert (order.stores, order.number, order.name) == ("", 1, "w1")
    assert board.listener is not None
    board.listener.on_message(7, WorkerEnded(1))
    other = WorkerSpec(**far, credentials=RUN.worker, name="w2", job=b"three", stores=b"another", kind="a")
    launcher.launch(WorkerHandle("w2"), other, Book())
    assert isinstance(board.sent[-1][1], Stop), "its place is needed"
    first_of_new = inner.parents[-1].spec.worker
    assert (first_of_new.job, first_of_new.stores) == (b"three", b"another")


def test_on_this_machine_other_stores_are_sent(parts: Parts) -> None:
    board, inner, launcher = parts
    joined(board, inner, launcher, spec_of("w0", stores=b"one"))
    launcher.launch(WorkerHandle("w1"), spec_of("w1", stores=b"two"), Book())
    ((_, order),) = board.sent
    assert isinstance(order, StartWorker)
    assert order.stores == "dHdv"


def test_a_job_that_is_too_large_for_a_message_goes_with_a_new_parent(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, inner, launcher = parts
    joined(board, inner, launcher, spec_of("w0"))
    monkeypatch.setattr("cerebro_spark.backend.driver.parent_launcher._MOST_BYTES_OF_JOB", 2)
    launcher.launch(WorkerHandle("w1"), spec_of("w1"), Book())
    assert len(inner.parents) == 2
    assert isinstance(board.sent[-1][1], Stop)


def test_a_parent_that_ends_as_it_was_told_is_not_killed(parts: Parts) -> None:
    """Its connection closes before its process has ended. Spark would warn of a job that was killed."""
    board, inner, launcher = parts
    parent = joined(board, inner, launcher, spec_of("w0"))
    launcher.end_idle()
    assert board.listener is not None
    board.listener.on_lost(7, "it hung up")
    waiting = [thread for thread in threading.enumerate() if thread.name.endswith("(_kill_after)")]
    assert inner.killed == []
    parent.watcher.ended(parent.handle)
    for thread in waiting:
        thread.join()
    assert inner.killed == []


def test_a_parent_that_does_not_end_as_it_was_told_is_killed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    board, inner, launcher = parts
    monkeypatch.setattr("cerebro_spark.backend.driver.parent_launcher._SECONDS_TO_END", 0.01)
    parent = joined(board, inner, launcher, spec_of("w0"))
    launcher.end_idle()
    assert board.listener is not None
    board.listener.on_lost(7, "it hung up")
    assert inner.was_killed.wait(60)
    assert inner.killed == [parent.handle]


def test_a_parent_that_is_lost_is_killed_at_once(parts: Parts) -> None:
    board, inner, launcher = parts
    parent = joined(board, inner, launcher, spec_of("w0"))
    assert board.listener is not None
    board.listener.on_lost(7, "it hung up")
    assert inner.was_killed.wait(60)
    assert inner.killed == [parent.handle]


def test_a_parent_that_cannot_be_launched_is_forgotten(parts: Parts) -> None:
    _, inner, launcher = parts
    inner.refuses = True
    with pytest.raises(BackendError, match="no room"):
        launcher.launch(WorkerHandle("w0"), spec_of("w0"), Book())
    assert launcher.held == 0


def test_nobody_joins_as_a_parent_that_is_not_expected(parts: Parts) -> None:
    board, inner, launcher = parts
    parent = joined(board, inner, launcher, spec_of("w0"))
    assert board.listener is not None
    for name in ("parent-9", parent.handle.name):
        with pytest.raises(WireError, match="not the name of a parent yet to join"):
            board.listener.on_message(8, Hello(name))


def test_a_worker_that_does_not_end_when_it_is_killed_is_ended_with_its_parent(parts: Parts) -> None:
    board, inner, launcher = parts
    joined(board, inner, launcher, spec_of("w0"))
    handle = WorkerHandle("w1")
    launcher.launch(handle, spec_of("w1"), Book())
    launcher.kill(handle)
    assert board.sent[-1] == (7, KillWorker(1))
    assert inner.killed == []
    launcher.kill(handle)
    assert inner.killed == [inner.parents[0].handle]


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "soon"])
def test_an_idle_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="idle_timeout"):
        LocalBackend(idle_timeout=seconds)


def kind(job: Job, **resources: Any) -> str:
    return worker_kind("torch", replace(job, trainer=job.trainer.with_resources(**resources)))


def test_workers_are_of_one_kind_if_new_processes_would_be_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job: Any = Job("r1", None, None, TrainerSpec(Hooks(lambda params: None)))  # type: ignore[arg-type]
    first = kind(job)
    other: Any = Job("r2", None, None, TrainerSpec(Hooks(lambda params: 1), seed=3), metric="loss")  # type: ignore[arg-type]
    assert kind(other) == first, "what a run is about does not matter"
    kinds = [kind(job, threads=2), kind(job, device="cpu"), kind(job, precision="bfloat16"), worker_kind("keras", job)]
    with monkeypatch.context() as changed:
        changed.setenv("KERAS_BACKEND", "torch")
        kinds.append(kind(job))
    with monkeypatch.context() as changed:
        changed.chdir(tmp_path)
        kinds.append(kind(job))
    with monkeypatch.context() as changed:
        changed.syspath_prepend(str(tmp_path))
        kinds.append(kind(job))
    assert len({first, *kinds}) == 1 + len(kinds)
    assert kind(job) == first


def test_an_installed_package_makes_another_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job: Any = Job("r1", None, None, TrainerSpec(Hooks(lambda params: None)))  # type: ignore[arg-type]
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    before = kind(job)
    os.utime(packages, ns=(1, 1))
    assert kind(job) != before


@pytest.mark.parametrize(
    ("framework", "model_fn", "expected"),
    [
        ("auto", torch_model_fn, "torch"),
        ("keras", torch_model_fn, "keras"),
        ("auto", lambda params: None, None),
        (Trainer, torch_model_fn, None),
    ],
    ids=["by its code", "by its name", "unclear", "one's own"],
)
def test_the_framework_that_a_parent_loads(framework: Any, model_fn: Any, expected: str | None) -> None:
    job: Any = Job("r1", None, None, TrainerSpec(Hooks(model_fn), framework=framework))  # type: ignore[arg-type]
    assert framework_of(job) == expected


@pytest.mark.parametrize(
    ("framework", "device", "wanted"),
    [("torch", "auto", True), ("torch", "cuda:1", True), ("torch", "cpu", False), ("keras", "auto", False)],
)
def test_only_processes_that_may_use_a_gpu_have_something_to_do_ahead(
    framework: str, device: str, wanted: bool, tmp_path: Path
) -> None:
    trainer = TrainerSpec(Hooks(torch_model_fn)).with_resources(device=device)
    job = Job("r1", None, None, trainer)  # type: ignore[arg-type]
    ahead = ahead_of(framework, job)
    assert (ahead is not None) == wanted
    if ahead is not None:
        assert ahead.arguments == (device,)
        module, _, name = ahead.function.partition(":")
        assert callable(getattr(import_module(module), name))
        assert not replace(ahead, needs=str(tmp_path / "nvidia")).is_wanted
