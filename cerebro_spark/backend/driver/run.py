"""One run on workers at the other end of connections: orders go out, events come in. It decides nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from cerebro_spark.backend.driver.deadlines import Deadlines, PendingOrder
from cerebro_spark.backend.driver.deletions import CheckpointDeleter
from cerebro_spark.backend.driver.event_queue import EventQueue, WakeUp
from cerebro_spark.backend.driver.launcher import Launcher
from cerebro_spark.backend.driver.meetings import Meetings
from cerebro_spark.backend.driver.pool import WorkerPool
from cerebro_spark.backend.driver.rehearsal import Rehearsals
from cerebro_spark.backend.driver.switchboard import Listener, Switchboard
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.tenancy import CLOSED
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    GroupStalled,
    Hello,
    LoadStarted,
    MeetingCall,
    MemoryUsed,
    OutputLine,
    Stop,
    TrialRehearsed,
    UnitStarted,
    WorkerEvent,
)
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.errors import BackendError
from cerebro_spark.events import (
    AbandonUnit,
    Action,
    DeleteCheckpoint,
    DropPartition,
    Event,
    GatheringEnded,
    GroupGaveUp,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.types import Unit, WorkerId

_log = logging.getLogger(__name__)
_SECONDS_TO_LOSE = 0.05
"""Seconds after which the loss of a worker is known whose partners have noticed it."""
WorkerAction = LoadPartition | DropPartition | RunUnit | WithdrawUnit | AbandonUnit | RetireWorker


class RemoteRun:
    """One run: the hub, the pool of workers and what is known of their orders. `begin` launches the first workers.

    Threads: the engine's calls the public methods, of which `wake`, `close`, `add_workers` and `remove_worker` are for
    all threads; the hub's calls `_receive`, `_lost` and `_broken`, and must not be kept waiting. The pool's lock guards
    all that they change.

    Args:
        launcher: Starts the workers; it is prepared already.
        job: What they work on.
        num_workers: How many the run begins with.
        now: The backend's clock.
        heartbeat: Seconds after which a silent worker is lost.
        start_timeout: Seconds that a worker may take to join.
        max_restarts: How many workers may be replaced.
        switchboard: Through which workers are talked to. Default: one of the run's own.
    """

    def __init__(
        self,
        launcher: Launcher,
        job: Job,
        num_workers: int,
        now: Callable[[], float],
        heartbeat: float,
        start_timeout: float,
        max_restarts: int,
        switchboard: Switchboard | None = None,
    ) -> None:
        self._launcher = launcher
        self._num_workers = num_workers
        self._now = now
        self._start_timeout = start_timeout
        self._events = EventQueue()
        self._deadlines = Deadlines(start_timeout)
        self._deleter = CheckpointDeleter(job)
        self._meetings = Meetings()
        self._by_peer: dict[int, WorkerHandle] = {}
        self.memory: dict[WorkerId, int] = {}
        """By worker of a pilot, the most bytes of memory that its process has had."""
        self._closing = threading.Lock()
        self._closed = False
        self._own = Switchboard(launcher.hub_address, heartbeat) if switchboard is None else None
        board = self._own or switchboard
        assert board is not None
        listener = Listener(self._receive, self._lost, self._broken)
        self._session = board.open(listener, None if self._own is None else "")
        beat, session = heartbeat / 4, self._session.name
        spec = WorkerSpec(board.dialled, board.credentials, "", b"", beat=beat, session=session)
        self.pool = WorkerPool(launcher, job, spec, self._events, now, self._session.lose, start_timeout, max_restarts)
        # Frameworks are loaded and models built before the batch itself.
        timeout = None if job.unit_timeout is None else job.unit_timeout + start_timeout
        self.rehearsals = Rehearsals(self.pool, self._session, self._events, timeout)

    def begin(self) -> None:
        """Launch the workers with which the run begins."""
        self.pool.after(self._start_timeout, self._stop_gathering)
        self.pool.hire(self._num_workers)

    def submit(self, action: Action) -> None:
        """Order something; see Backend."""
        match action:
            case DeleteCheckpoint():
                self._deleter.delete(action)
            case LimitOrder():
                with self.pool.lock:
                    for handle in self._handles_of(self._workers_of(action)):
                        self._deadlines.set_limit(handle, action, self._now())
            case LoadPartition() | DropPartition() | RunUnit() | WithdrawUnit() | AbandonUnit() | RetireWorker():
                with self.pool.lock:
                    self._order(action)

    def events(self) -> list[Event]:
        """Wait for events; see Backend."""
        while True:
            with self.pool.lock:
                for handle, late in self._deadlines.overdue(self.pool.handles.values(), self._now()):
                    self._give_up(handle, late)
                patience = self._deadlines.wait(self._now())
            # Answers to rehearsals stay in the queue, and may come late.
            news = self._events.take(patience)
            events = [event for event in news if isinstance(event, Event)]
            if events or any(isinstance(one, WakeUp) for one in news):
                return events

    def wake(self) -> None:
        """End the wait for events; see Backend."""
        self._events.put(WakeUp())

    def close(self) -> None:
        """Stop all workers, and wait until nothing is left of them. Whoever waits for events is told so by an error."""
        self._events.fail(BackendError(CLOSED))
        with self._closing:
            if not self._closed:
                self._closed = True
                self._stop_workers()

    def _stop_workers(self) -> None:
        try:
            for handle in self.pool.begin_close():
                self._session.send(handle.peer or 0, Stop())
            (self._own or self._session).close()
            self.pool.close()
            self._deleter.close()
        except BaseException:  # Ctrl-C again: there will be no second call, so nothing waits any more
            self.pool.kill_all()
            raise

    def add_workers(self, count: int) -> list[WorkerId]:
        """Launch more workers; see RemoteBackend."""
        with self.pool.lock:
            there = sum(not (handle.leaving or handle.dismissed) for handle in self.pool.handles.values())
        self._launcher.check_addition(count, there)
        return self.pool.hire(count, extra=True)

    def remove_worker(self, name: WorkerId) -> None:
        """Have a worker leave once its running unit has ended; see RemoteBackend."""
        with self.pool.lock:
            handle = self.pool.handles.get(name)
            if handle is None or handle.peer is None:
                there = ", ".join(sorted(other.name for other in self.pool.connected()))
                raise BackendError(f"there is no worker {name!r}: there are {there or 'none'}")
            if all(other is handle or other.leaving for other in self.pool.handles.values()):
                raise BackendError(f"worker {name!r} is the last one: launch another before, with add_workers()")
            handle.leaving = True
            self._events.put(WorkerRetiring(self._now(), name))

    def _order(self, action: WorkerAction) -> None:
        """Order something of a worker, or of all workers of a group, as far as they are there; the lock is held.

        If a member of a group is gone, the scheduler will hear of that, and have the others leave.
        """
        handles = self._handles_of(self._workers_of(action))
        if isinstance(action, RunUnit) and handles:
            self._deleter.note_order(action)
            self._meetings.open(action, {handle.name for handle in handles})
        if isinstance(action, AbandonUnit):
            self._meetings.close(action.attempt)
        for handle in handles:
            if isinstance(action, RetireWorker):
                self.pool.retire(handle, action)
            self._deadlines.note_order(handle, action, self._now())
            self._session.send(handle.peer or 0, action)

    def _workers_of(self, action: WorkerAction | LimitOrder) -> tuple[WorkerId, ...]:
        """Return the workers whom an action is about; the lock is held."""
        match action:
            case RunUnit():
                return action.workers
            case LimitOrder(attempt=int(attempt)):
                return self._meetings.workers_of(attempt) or (action.worker,)
            case _:
                return (action.worker,)

    def _handles_of(self, workers: Iterable[WorkerId]) -> list[WorkerHandle]:
        """Return those of these workers that are there; the lock is held."""
        handles = (self.pool.handles.get(worker) for worker in workers)
        return [handle for handle in handles if handle is not None and handle.peer is not None]

    def _give_up(self, handle: WorkerHandle, late: PendingOrder) -> None:
        """Lose a worker that lives, but is stuck with something; the lock is held.

        Where all members of a group wait for each other none of them is stuck, and only their unit is given up.
        """
        reason = f"{late.what} took longer than {late.limit:g} s"
        if late.waits_for_others and late.unit is not None:
            self._break_up(handle, late.unit, int(late.key), f"{reason}, and all of them wait for each other")
            return
        _log.warning("worker %s on %s is given up: %s", handle.name, handle.host, reason)
        if isinstance(late.key, int):
            handle.running = late.key
        else:
            handle.cause = reason
            self._events.put(PartitionLost(self._now(), handle.name, late.key, reason))
        handle.orders.clear()
        self._session.lose(handle.peer or 0, reason)

    def _break_up(self, handle: WorkerHandle, unit: Unit, attempt: int, reason: str) -> None:
        """Have the members of a group leave their unit; the lock is held."""
        if attempt in handle.orders:
            self._events.put(GroupGaveUp(self._now(), handle.name, unit, attempt, reason))
            self._end_group(handle, attempt)
            # The others are told by the scheduler, since they are not whom it hears of.
            self._session.send(handle.peer or 0, AbandonUnit(handle.name, attempt))

    def _stop_gathering(self) -> None:
        """Begin with the workers that are there, although not all came; wait as long again if none did."""
        with self.pool.lock:
            there = len(self._by_peer)
            if not there:
                self.pool.after(self._start_timeout, self._stop_gathering)
            elif there < self._num_workers and not self.pool.closing:
                _log.warning("only %d of %d workers came: the run begins with them", there, self._num_workers)
                self._events.put(GatheringEnded(self._now()))

    # -- called by the hub, which must not be kept waiting

    def _receive(self, peer: int, message: FromWorker) -> None:
        handle = self._by_peer.get(peer)
        if isinstance(message, Hello):
            self._welcome(peer, message)
        elif handle is None:
            raise WireError(f"a worker must say Hello first, but it said {type(message).__name__}")
        else:
            self._note(handle, message)

    def _welcome(self, peer: int, hello: Hello) -> None:
        with self.pool.lock:
            handle = self.pool.handles.get(hello.worker)
            if handle is None or handle.peer is not None or peer in self._by_peer:
                raise WireError(f"it says Hello as {hello.worker!r}, but that is not the name of a worker yet to join")
            host = self._launcher.host_of(handle) or hello.host
            if hello.trouble is not None:
                self.pool.refused(handle, self._launcher.explain(host, hello.trouble))
                return
            handle.peer, handle.host, handle.pid = peer, host, hello.pid
            self._by_peer[peer] = handle
            _log.debug("worker %s has joined from %s", handle.name, host)
            self._events.put(WorkerJoined(self._now(), handle.name, host, threads=hello.threads))
        self.pool.do(self._check_joined, handle, hello)

    def _check_joined(self, handle: WorkerHandle, hello: Hello) -> None:
        try:
            self._launcher.check_joined(hello)
        except BackendError as error:
            with self.pool.lock:
                if self.pool.can_do_without(handle):
                    self._dismiss(handle, str(error))
                else:
                    self._events.fail(error)

    def _dismiss(self, handle: WorkerHandle, reason: str) -> None:
        """Lose a worker that cannot work where it is, and leave its place empty; the lock is held."""
        _log.warning("the run goes on, but worker %s on %s leaves: %s", handle.name, handle.host, reason)
        handle.leaving, handle.cause = True, reason
        self._session.lose(handle.peer or 0, reason)

    def _note(self, handle: WorkerHandle, message: FromWorker) -> None:
        """Take in what a worker says after its hello; the hub alone needs its heartbeats."""
        match message:
            case OutputLine():
                self.pool.printed(handle, message)
            case TrialRehearsed():
                self._events.put(message)
            case MemoryUsed():
                self.memory[handle.name] = message.peak
            case UnitStarted() | LoadStarted():
                with self.pool.lock:
                    self._deadlines.note_report(handle, message, self._now())
                    handle.running = message.attempt if isinstance(message, UnitStarted) else handle.running
            case MeetingCall():
                with self.pool.lock:
                    for reply in self._meetings.call(handle.name, message):
                        member = self.pool.handles.get(reply.worker)
                        if member is not None and member.peer is not None:
                            self._session.send(member.peer, reply.answer)
            case GroupStalled():
                with self.pool.lock:
                    self._deadlines.note_stall(handle, message, self._now())
            case PartitionLoaded() | PartitionLost() | UnitFinished() | UnitFailed() | UnitWithdrawn() | GroupGaveUp():
                self._note_event(handle, message)

    def _note_event(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        if event.worker != handle.name:
            raise WireError(f"worker {handle.name} reports in the name of {event.worker!r}")
        if isinstance(event, UnitFinished | UnitFailed | UnitWithdrawn):
            self._deleter.note_report(event.attempt)
        with self.pool.lock:
            self._deadlines.note_report(handle, event, self._now())
            handle.useful = handle.useful or isinstance(event, PartitionLoaded | UnitFinished)
            group = [] if isinstance(event, PartitionLoaded | PartitionLost) else self._end_group_of(handle, event)
        for member in [handle, *group] if isinstance(event, UnitFinished) else ():
            self._launcher.note_unit(member)
        if isinstance(event, UnitFailed):
            _log.debug("%s failed on %s (%s): %s", event.unit, handle.name, handle.host, event.error)
        if isinstance(event, GroupGaveUp) and not event.lasting:
            # The links to a member that dies break as soon as its connection does. Its loss is to be known before, or
            # the unit would be given to it once more.
            self.pool.after(_SECONDS_TO_LOSE, self._put, event)
        else:
            self._put(event)

    def _put(self, event: Event) -> None:
        self._events.put(replace(event, at=self._now()))

    def _end_group_of(
        self, handle: WorkerHandle, event: UnitFinished | UnitFailed | UnitWithdrawn | GroupGaveUp
    ) -> list[WorkerHandle]:
        """Take notice of what a worker of a group says of its unit; return the others. The lock is held."""
        workers = self._meetings.workers_of(event.attempt)
        if not workers:
            return []
        if handle.name not in workers or (isinstance(event, UnitFinished) and event.workers != workers):
            raise WireError(f"worker {handle.name} reports for a group whose workers are {', '.join(workers)}")
        others = self._end_group(handle, event.attempt)
        for member in others:
            member.useful = member.useful or isinstance(event, UnitFinished)
        return others

    def _end_group(self, handle: WorkerHandle, attempt: int) -> list[WorkerHandle]:
        """The unit of a group is over for all of its workers; return the others. The lock is held."""
        members = self._handles_of(self._meetings.close(attempt))
        for member in members:
            self._deadlines.note_end(member, attempt, self._now())
        return [member for member in members if member is not handle]

    def _lost(self, peer: int, reason: str) -> None:
        """Give up a worker whose connection is closed, whatever its process does, and have it replaced."""
        with self.pool.lock:
            handle = self._by_peer.pop(peer, None)
            if handle is None or self.pool.closing:
                return
            self._meetings.lose(handle.name)
            if not handle.dismissed:
                _log.debug("worker %s on %s is lost: %s", handle.name, handle.host, reason)
                reason = handle.cause or reason
                self._events.put(WorkerLost(self._now(), handle.name, reason, not handle.cause, handle.running))
            self.pool.remove(handle)

    def _broken(self, reason: str) -> None:
        self._events.fail(BackendError(f"the driver's connection to its workers broke down: {reason}"))
