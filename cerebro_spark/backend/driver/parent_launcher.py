"""Starts workers through parents that stay between runs, and ends parents that nobody needs. It keeps no worker.

A parent has loaded the framework, and nothing of any run: each worker is a new process below it.
"""

from __future__ import annotations

import base64
import itertools
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import replace

from cerebro_spark.backend.driver.launcher import Launcher, ProcessWatcher
from cerebro_spark.backend.driver.parents import Assignment, Parent
from cerebro_spark.backend.driver.switchboard import Listener, Switchboard
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.channel import MOST_BYTES, WireError
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    Hello,
    KillWorker,
    OutputLine,
    PrepareNext,
    StartTrouble,
    StartWorker,
    Stop,
    WorkerEnded,
    WorkerPrinted,
)
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.types import WorkerId

_log = logging.getLogger(__name__)
_SECONDS_TO_END = 10.0
_MOST_BYTES_OF_JOB = MOST_BYTES // 2
_LOOPBACK = "127.0.0.1"


class ParentLauncher(Launcher):
    """Starts workers below parents, which another launcher starts. It lives as long as a backend's `with` block.

    Threads: pools call the methods of Launcher, the hub those of the session, and threads of the other launcher those
    of ProcessWatcher. The lock guards all state; no watcher is called while it is held.

    Args:
        launcher: Starts the parents.
        switchboard: Through which parents, and the workers of all runs, are talked to.
        idle_timeout: Seconds after which a parent without a worker ends.
    """

    def __init__(self, launcher: Launcher, switchboard: Switchboard, idle_timeout: float) -> None:
        self._launcher = launcher
        self._idle_timeout = idle_timeout
        self._names = itertools.count()
        self._lock = threading.Lock()
        self._parents: list[Parent] = []
        self.hub_address = launcher.hub_address
        self._session = switchboard.open(Listener(self._receive, self._lost, self._broken))

    @property
    def idle(self) -> int:
        """How many parents wait for a worker to start."""
        with self._lock:
            return len(self._idle())

    @property
    def held(self) -> int:
        """How many parents there are, idle or not."""
        with self._lock:
            return len(self._parents)

    def end_idle(self) -> list[WorkerHandle]:
        """End all parents without a worker; return their processes, which are not waited for."""
        with self._lock:
            return [self._dismiss(parent) for parent in self._idle()]

    def close(self) -> None:
        """End all parents, and wait until nothing is left of them."""
        with self._lock:
            unjoined = [parent.handle for parent in self._parents if parent.peer is None]
            handles = [self._dismiss(parent) for parent in self._parents]
        for handle in unjoined:
            self._launcher.kill(handle)
        for handle in _still_running(handles, _SECONDS_TO_END):
            self._launcher.kill(handle)
        for handle in _still_running(handles, _SECONDS_TO_END):
            _log.warning("the parent process %s did not end when it was killed", handle.name)
        self._session.close()

    # -- what a pool asks (Launcher)

    def prepare(self, job: Job, num_workers: int) -> None:
        self._launcher.prepare(job, num_workers)

    def check_addition(self, count: int, there: int) -> None:
        self._launcher.check_addition(count, there)

    def job_for(self, name: WorkerId, job: Job) -> Job:
        return self._launcher.job_for(name, job)

    def probe(self) -> str | None:
        return self._launcher.probe()

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        assert isinstance(spec, WorkerSpec)
        with self._lock:
            parent = self._take_idle(spec)
            if parent is not None:
                parent.work = Assignment(parent.started, handle, watcher)
                parent.started += 1
                self._session.send(parent.peer or 0, self._order(parent, parent.work, spec))
                return
            parent = self._new_parent(handle, spec, watcher)
        try:
            worker = replace(spec, leaves_cache=True)
            first = ParentSpec(parent.handle.name, self._session.name, worker, self._launcher.echoes)
            self._launcher.launch(parent.handle, first, self)
        except BaseException:
            with self._lock:
                self._parents.remove(parent)
            raise

    def kill(self, handle: WorkerHandle) -> None:
        with self._lock:
            parent = self._parent_of(handle)
            if parent is None or parent.work is None:
                return
            # A parent that has not joined yet, or did not do so when it was first told, is ended with its worker.
            ask = parent.peer is not None and not parent.work.killed
            parent.work.killed = True
            if ask:
                self._session.send(parent.peer or 0, KillWorker(parent.work.number))
        if not ask:
            self._launcher.kill(parent.handle)

    def note_unit(self, handle: WorkerHandle) -> None:
        """Have a worker's successor prepared after its first unit, in which step times may be compared."""
        with self._lock:
            parent = self._parent_of(handle)
            if parent is None or parent.work is None or parent.peer is None or parent.leaving:
                return
            if not parent.work.proven:
                parent.work.proven = True
                self._session.send(parent.peer, PrepareNext(parent.work.number))

    def seconds_running(self, handle: WorkerHandle) -> float | None:
        with self._lock:
            parent = self._parent_of(handle)
            if parent is None or parent.work is None:
                return time.monotonic() - handle.launched_at
            since = parent.work.since
        running = self._launcher.seconds_running(parent.handle)
        return None if running is None else min(running, time.monotonic() - since)

    def host_of(self, handle: WorkerHandle) -> str | None:
        with self._lock:
            parent = self._parent_of(handle)
        return None if parent is None else self._launcher.host_of(parent.handle)

    def check_joined(self, hello: Hello) -> None:
        self._launcher.check_joined(hello)

    def tidy(self) -> None:
        self._launcher.tidy()

    def explain(self, host: str, trouble: StartTrouble) -> str:
        return self._launcher.explain(host, trouble)

    # -- parents; the lock is held

    def _idle(self) -> list[Parent]:
        return [parent for parent in self._parents if parent.is_idle]

    def _parent_of(self, handle: WorkerHandle) -> Parent | None:
        of_it = (parent for parent in self._parents if parent.work is not None and parent.work.handle is handle)
        return next(of_it, None)

    def _take_idle(self, spec: WorkerSpec) -> Parent | None:
        """Return an idle parent that can start this worker; if there is none, end another one, which holds a place."""
        idle = self._idle()
        for parent in idle:
            if parent.kind == spec.kind and self._can_be_sent(parent, spec):
                parent.stop_timer()
                return parent
        for parent in idle[:1]:
            _log.debug("parent %s is of another kind than worker %s", parent.handle.name, spec.name)
            self._dismiss(parent)
        return None

    def _can_be_sent(self, parent: Parent, spec: WorkerSpec) -> bool:
        """Return whether a worker's job may be sent over the parent's connection, which everybody can read.

        Credentials of stores go to another machine only as its launcher sends them: new ones need a new parent.
        """
        small = len(spec.job) + len(spec.stores) < _MOST_BYTES_OF_JOB
        return small and (spec.address[0] == _LOOPBACK or parent.stores == spec.stores)

    def _order(self, parent: Parent, work: Assignment, spec: WorkerSpec) -> StartWorker:
        stores = "" if parent.stores == spec.stores else _base64(spec.stores)
        return StartWorker(work.number, spec.name, spec.session, _base64(spec.job), stores, spec.probe)

    def _new_parent(self, handle: WorkerHandle, spec: WorkerSpec, watcher: ProcessWatcher) -> Parent:
        name = f"parent-{next(self._names)}"
        parent = Parent(WorkerHandle(name), spec.kind, spec.stores, Assignment(0, handle, watcher))
        self._parents.append(parent)
        return parent

    def _dismiss(self, parent: Parent) -> WorkerHandle:
        """Tell a parent to end; one that has not joined cannot be told."""
        parent.leaving = True
        parent.stop_timer()
        if parent.peer is not None:
            self._session.send(parent.peer, Stop())
        return parent.handle

    def _wait_for_work(self, parent: Parent, dismissed: bool) -> None:
        """Let a parent without a worker live on for a while, unless that worker was let go: its place is not wanted."""
        if parent.leaving:
            return
        if dismissed:
            self._dismiss(parent)
            return
        parent.timer = threading.Timer(self._idle_timeout, self._end_if_idle, (parent,))
        parent.timer.daemon = True
        parent.timer.start()

    # -- called by timers, and by the hub

    def _end_if_idle(self, parent: Parent) -> None:
        with self._lock:
            if parent.work is None and not parent.leaving:
                _log.debug("parent %s ends: it was idle for %g s", parent.handle.name, self._idle_timeout)
                self._dismiss(parent)

    def _receive(self, peer: int, message: FromWorker) -> None:
        match message:
            case Hello():
                self._welcome(peer, message)
            case WorkerPrinted():
                work = self._work_of(peer, message.number)
                if work is not None:
                    work.watcher.printed(work.handle, message.line)
            case WorkerEnded():
                self._note_end(peer, message)

    def _welcome(self, peer: int, hello: Hello) -> None:
        with self._lock:
            parent = next((p for p in self._parents if p.handle.name == hello.worker and p.peer is None), None)
            if parent is None or parent.leaving:
                raise WireError(f"it says Hello as {hello.worker!r}, but that is not the name of a parent yet to join")
            parent.peer = peer
            parent.handle.host, parent.handle.pid = hello.host, hello.pid

    def _work_of(self, peer: int, number: int) -> Assignment | None:
        with self._lock:
            works = [parent.work for parent in self._parents if parent.peer == peer]
        return next((work for work in works if work is not None and work.number == number), None)

    def _note_end(self, peer: int, message: WorkerEnded) -> None:
        work = self._work_of(peer, message.number)
        if work is None:
            return
        with self._lock:
            for parent in self._parents:
                if parent.work is work:
                    parent.work = None
                    self._wait_for_work(parent, dismissed=work.handle.dismissed)
        work.handle.words.extend(message.words)
        work.watcher.ended(work.handle)

    def _lost(self, peer: int, reason: str) -> None:
        """Kill a parent that is gone. One that was told to end gets time: Spark warns of jobs that are killed."""
        with self._lock:
            lost = [parent for parent in self._parents if parent.peer == peer]
            seconds = [_SECONDS_TO_END if parent.leaving else 0.0 for parent in lost]
            for parent in lost:
                parent.leaving = True
                parent.stop_timer()
        for parent, wait in zip(lost, seconds, strict=True):
            # Not by the hub's own thread: it may take a while to reach a cluster.
            threading.Thread(target=self._kill_after, args=(parent.handle, wait), daemon=True).start()

    def _kill_after(self, handle: WorkerHandle, seconds: float) -> None:
        if not handle.ended.wait(seconds):
            self._launcher.kill(handle)

    def _broken(self, reason: str) -> None:
        _log.warning("the driver's connection to parents of workers broke down: %s", reason)

    # -- what the processes of parents do (ProcessWatcher)

    def ended(self, handle: WorkerHandle) -> None:
        """Tell that a parent's worker is gone with it."""
        with self._lock:
            gone = [parent for parent in self._parents if parent.handle is handle]
            self._parents = [parent for parent in self._parents if parent.handle is not handle]
        handle.ended.set()
        for parent in gone:
            parent.stop_timer()
            if parent.work is not None:
                parent.work.handle.words.extend(handle.words)
                parent.work.watcher.ended(parent.work.handle)

    def printed(self, handle: WorkerHandle, line: OutputLine) -> None:
        """Note what a parent itself prints; its workers' lines come over its connection."""
        _log.debug("%s: %s", handle.name, line.text)

    def refused(self, handle: WorkerHandle, reason: str) -> None:
        for work in self._works_below(handle):
            work.watcher.refused(work.handle, reason)

    def loss_explained(self, handle: WorkerHandle, cause: str) -> None:
        for work in self._works_below(handle):
            work.watcher.loss_explained(work.handle, cause)

    def _works_below(self, handle: WorkerHandle) -> list[Assignment]:
        with self._lock:
            works = [parent.work for parent in self._parents if parent.handle is handle]
        return [work for work in works if work is not None]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _still_running(handles: Iterable[WorkerHandle], seconds: float) -> list[WorkerHandle]:
    deadline = time.monotonic() + seconds
    return [handle for handle in handles if not handle.ended.wait(max(0.0, deadline - time.monotonic()))]
