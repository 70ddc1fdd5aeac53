"""A parent of workers: a process that stays between runs, has loaded the framework, and starts a worker for each run.

It never unpickles a job and runs nothing of the user's: so each worker finds a process as a new one would be. Where
the framework allows, a worker is forked from it; else it is a new process, which loads the framework ahead of its job.
The parent has one thread only, and waits for its driver, its worker and its own parent at once.
"""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import cloudpickle

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    Heartbeat,
    Hello,
    KillWorker,
    OutputLine,
    PrepareNext,
    StartWorker,
    Stop,
    ToWorker,
    WorkerEnded,
    WorkerPrinted,
)
from cerebro_spark.backend.worker.ahead import AheadProcess, AheadSpec
from cerebro_spark.backend.worker.child import Child, ChildStream, fork_child, spawn_child
from cerebro_spark.backend.worker.preloading import preload_to_fork
from cerebro_spark.backend.worker.process import HOST
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.errors import CerebroError


@dataclass(frozen=True, slots=True)
class ParentSpec:
    """What a parent of workers is launched with.

    Attributes:
        name: The parent's name, which no other of the driver has.
        session: The session of the driver's switchboard that parents join.
        worker: The first worker; the parent dials the same address, with the same credentials.
        echo: Whether to print what workers print: for a log of the machine's own.
    """

    name: str
    session: str
    worker: WorkerSpec
    echo: bool = False


class ThisWorker(NamedTuple):
    """The worker that this process is; `accept` is to be called once its job is loaded."""

    spec: WorkerSpec
    accept: Callable[[], None] = lambda: None


def run_parent(spec: ParentSpec) -> ThisWorker | None:
    """Start workers as the driver says, until it says stop, or hangs up.

    Returns:
        None in the parent, when it is to end. In a forked child, the worker that this process is now.
    """
    # Before dialling: the driver would take the silence for death.
    trouble = preload_to_fork(spec.worker.framework)
    if trouble is not None:
        print(f"workers of {spec.name} are not forked, but started anew: {trouble}", file=sys.stderr)
    first = spec.worker
    connection = DriverConnection(first.address, first.credentials, first.timeout, silence=8 * first.beat)
    host = os.environ.get(HOST) or socket.gethostname()
    connection.send(Hello(spec.name, host, os.getpid(), session=spec.session))
    return _Parent(spec, connection, forks=trouble is None).run()


class _Parent:
    """The loop of a parent. At most one child works at a time; one more, the spare, may get ready for its job.

    Args:
        spec: What the parent was launched with.
        connection: Its connection to the driver.
        forks: Whether workers are forked from this process.
    """

    def __init__(self, spec: ParentSpec, connection: DriverConnection, forks: bool) -> None:
        self._spec = spec
        self._connection = connection
        self._forks = forks
        self._child: Child | None = None
        self._spare: Child | None = None
        self._born: ThisWorker | None = None  # in a forked child: what it is to be
        self._over = False
        # Not epoll: a child would share it.
        self._selector = selectors.PollSelector()
        self._died, self._wake = socket.socketpair()
        for end in (self._died, self._wake):
            end.setblocking(False)

    def run(self) -> ThisWorker | None:
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(self._connection.fileno(), self._hear_driver)
        self._watch(sys.stdin.fileno(), self._hear_own_parent)
        self._watch(self._died.fileno(), self._bury)
        self._start(0, self._spec.worker)
        while self._born is None and not self._over:
            self._wait()
        if self._born is None:
            self._end()
        return self._born

    def _end(self) -> None:
        """End all children, and delete what they left in the cache, unless others use it."""
        for child in (self._child, self._spare):
            if child is not None:
                child.kill()
                child.wait()
        with contextlib.suppress(OSError, CerebroError), Cache(**self._spec.worker.cache) as cache:
            cache.enter()

    def _watch(self, number: int, act: Callable[[], None]) -> None:
        self._selector.register(number, selectors.EVENT_READ, act)

    def _wait(self) -> None:
        """Wait for whatever comes next; show the driver meanwhile that this process lives."""
        beat = time.monotonic() + self._spec.worker.beat
        while self._born is None and not self._over:
            left = beat - time.monotonic()
            if left <= 0:
                self._say(Heartbeat())
                return
            for key, _ in self._selector.select(left):
                # What came before it may have ended a child, and another may have its numbers.
                if self._born is None and not self._over and self._selector.get_map().get(key.fd) == key:
                    key.data()

    def _say(self, message: FromWorker) -> None:
        try:
            self._connection.send(message)
        except (OSError, WireError):
            self._over = True

    # -- what comes

    def _hear_driver(self) -> None:
        try:
            orders = self._connection.receive_ready()
        except (OSError, WireError) as error:
            print(f"parent {self._spec.name} ends: {error}", file=sys.stderr)
            self._over = True
            return
        for order in orders:
            if self._born is None:
                self._obey(order)

    def _hear_own_parent(self) -> None:
        """Lines that it passes on are in the driver's log already; when it is gone, so is this process."""
        self._over = self._over or not os.read(sys.stdin.fileno(), 1 << 16)

    def _bury(self) -> None:
        """Take notice of children that have ended."""
        self._died.recv(1 << 12)
        if self._spare is not None and self._is_over(self._spare):
            self._spare = None
        child = self._child
        if child is not None and self._is_over(child):
            self._child = None
            if self._forks and child.untaken is not None and not child.killed:
                # It was forked ahead, and died of that, or was not fit for its job.
                self._fork(child.number, child.untaken)
                return
            self._say(WorkerEnded(child.number, tuple(child.words)))
            if not self._forks and not self._over:
                self._spare = self._launch_spare()

    def _obey(self, order: ToWorker) -> None:
        match order:
            case StartWorker():
                self._start(order.number, self._spec_for(order))
            case KillWorker():
                if self._child is not None and self._child.number == order.number:
                    self._child.kill()
            case PrepareNext():
                ahead = self._spec.worker.ahead
                if self._forks and self._spare is None and ahead is not None and ahead.is_wanted:
                    self._fork_ahead(ahead)
            case Stop():
                self._over = True

    # -- the start of a worker

    def _spec_for(self, order: StartWorker) -> WorkerSpec:
        first = self._spec.worker
        stores = base64.b64decode(order.stores) if order.stores else first.stores
        job = base64.b64decode(order.job)
        return replace(first, name=order.name, session=order.session, job=job, stores=stores, probe=order.probe)

    def _start(self, number: int, spec: WorkerSpec) -> None:
        if self._child is not None:
            self._say(WorkerEnded(number, ("(its parent had another worker already)",)))
            return
        spare, self._spare = self._spare, None
        if spare is not None and self._is_over(spare):
            spare = None
        if self._forks and spare is None:
            self._fork(number, spec)
            return
        child = spare or self._launch_spare()
        child.number = number
        child.give(spec)
        self._child = child

    def _fork(self, number: int, spec: WorkerSpec) -> None:
        child = fork_child(number, self._print)
        if child is None:
            self._leave_to_parent()
            self._born = ThisWorker(spec)
        else:
            self._adopt(child)
            self._child = child

    def _fork_ahead(self, ahead: AheadSpec) -> None:
        """Fork the spare. In it, this returns when it has its spec."""
        file = os.memfd_create("spec")
        child = fork_child(-1, self._print)
        if child is None:
            self._leave_to_parent()
            process = AheadProcess(ahead, file)
            self._born = ThisWorker(cloudpickle.loads(process.wait()), process.accept)
        else:
            self._spare = child.give_through(file)
            self._adopt(child)

    def _leave_to_parent(self) -> None:
        """Close, in a child, what is the parent's, or leads to another child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._connection.close()
        self._died.close()
        self._wake.close()
        for other in (self._child, self._spare):
            if other is not None:
                other.disown()

    def _launch_spare(self) -> Child:
        child = spawn_child(self._spec.worker.framework, self._print)
        self._adopt(child)
        return child

    def _adopt(self, child: Child) -> None:
        for stream in child.streams:
            self._watch(stream.number, partial(self._hear_child, stream))

    def _hear_child(self, stream: ChildStream) -> None:
        if not stream.read():
            self._selector.unregister(stream.number)

    def _is_over(self, child: Child) -> bool:
        """Return whether a child has ended; its pipes are not watched any more then."""
        watched = [stream.number for stream in child.streams if stream.number in self._selector.get_map()]
        if not child.has_ended():
            return False
        for number in watched:
            self._selector.unregister(number)
        return True

    def _print(self, number: int, line: OutputLine) -> None:
        """Pass on what a child prints; what a spare prints is no worker's."""
        if self._spec.echo or number < 0:
            print(line.text, file=sys.stderr, flush=True)
        if number >= 0:
            self._say(WorkerPrinted(number, line))
