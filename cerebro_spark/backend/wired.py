"""Workers at the other end of wires: who they are, who is lost, who takes their place. How they start is left open.

A worker is `serve(posting)` in a process somewhere. A kind of backend says how to launch such a process and how to kill
it; everything else is here: one hub, names that are never used twice, replacements, and facts in the order they came.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.clocks import Clocks, Order
from cerebro_spark.backend.facts import Facts
from cerebro_spark.backend.hand import Hand, see_off
from cerebro_spark.backend.hub import Hub
from cerebro_spark.backend.janitor import Janitor
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.messages import fact, order
from cerebro_spark.backend.rehearsals import Rehearsals
from cerebro_spark.backend.returns import Returns
from cerebro_spark.backend.speech import Said
from cerebro_spark.backend.succession import Succession
from cerebro_spark.backend.wire import Message, WireError
from cerebro_spark.backend.worker import Posting, packed
from cerebro_spark.checks import check_seconds, check_whole
from cerebro_spark.errors import BackendError
from cerebro_spark.events import (
    Action,
    DeleteCheckpoint,
    Event,
    GatheringEnded,
    LimitOrder,
    LossExplained,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.types import Partition, WorkerId

_log = logging.getLogger(__name__)
_SECONDS_TO_END = 10.0


class WiredBackend(Rehearsals, Backend):
    """What LocalBackend and SparkBackend have in common.

    Threads: the engine's own calls the public methods; the hub's thread calls `_heard`, `_lost` and `_broken`, and must
    not be kept waiting; threads of the kind call `_gone`; a small pool does what may take long.
    """

    _facts: Facts
    _hands: dict[WorkerId, Hand]
    _left: set[Hand]
    _names: dict[int, WorkerId]
    _returns: Returns
    _clocks: Clocks

    def __init__(self, num_workers: int, *, heartbeat: float, start_timeout: float, max_restarts: int) -> None:
        check_whole("num_workers", num_workers)
        check_seconds("heartbeat", heartbeat)
        check_seconds("start_timeout", start_timeout)
        self.num_workers = num_workers
        self.heartbeat = heartbeat
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self._job: Job | None = None
        self._hub: Hub | None = None
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._clear()

    # -- what a kind of backend says

    @abstractmethod
    def _launch(self, hand: Hand, posting: Posting) -> None:
        """Start a worker; `_gone(hand)` is to be called once, from any thread, when nothing is left of it.

        Called from a pool of threads; raises BackendError if it cannot be started, and then never calls `_gone`.
        """

    @abstractmethod
    def _kill(self, hand: Hand) -> None:
        """Make a worker end, whatever it does just now. Called from a pool of threads."""

    @abstractmethod
    def _job_of(self, name: WorkerId, job: Job) -> Job:
        """The job as this worker gets it: with the threads and the device that it owns."""

    def _where(self) -> tuple[str, int, str]:
        """Where the hub listens (host and port, 0 for any), and the host that workers dial."""
        return "127.0.0.1", 0, "127.0.0.1"

    def _check(self, job: Job) -> None:
        """Raise ConfigurationError or BackendError, before anything is launched, for what cannot work."""

    def _probe(self, job: Job) -> str | None:
        """What a worker writes into the store before it says hello, to show that it can; None where all can."""
        return None

    def _explained(self, host: str, trouble: Mapping[str, str]) -> str:
        """In words, with the fix: why a worker there cannot begin."""
        return f"workers on {host} cannot begin: {'; '.join(trouble.values())}"

    # -- the contract

    def bind(self, job: Job) -> None:
        self._job = job

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        if self._job is None:
            raise BackendError("this backend has no job: call bind(job) before start")
        if self._hub is not None:
            raise BackendError("this backend is running already: close it before it is started again")
        self._check(self._job)
        self._clear()
        self._zero = time.monotonic() - at
        host, port, self._dialled = self._where()
        self._hub = Hub(
            self._secret, self._heard, self._lost, self._broken, host=host, port=port, silence=self.heartbeat
        )
        self._hiring = ThreadPoolExecutor(8, "hiring")
        self._janitor = Janitor(self._job)
        with self._lock:
            self._wait_for_all()
            for _ in range(self.num_workers):
                self._hire(self._succession.newcomer())

    def submit(self, action: Action) -> None:
        if isinstance(action, DeleteCheckpoint):
            self._janitor.delete(action)
            return
        if isinstance(action, LimitOrder):
            self._limit(action)
            return
        message = order(action)
        if message is None:
            return
        with self._lock:
            hand = self._hands.get(action.worker)  # type: ignore[attr-defined]
            if hand is None or hand.peer is None or self._hub is None:
                return
            if isinstance(action, RetireWorker):
                hand.dismissed = True
                self._let_go(hand, action)
            if isinstance(action, RunUnit):
                self._janitor.ordered(action)
            self._clocks.ordered(hand, action, self.now())
            self._hub.send(hand.peer, message)

    def _limit(self, action: LimitOrder) -> None:
        with self._lock:
            hand = self._hands.get(action.worker)
            if hand is not None:
                self._clocks.limit(hand, action, self.now())

    def events(self) -> list[Event]:
        while True:
            with self._lock:
                for hand, late in self._clocks.overdue(self._hands.values(), self.now()):
                    self._give_up(hand, late)
                patience = self._clocks.wait(self.now())
            events = self._facts.take(patience)
            if events:
                return events

    def now(self) -> float:
        return time.monotonic() - self._zero

    def close(self) -> None:
        with self._lock:
            self._closing = True
            hands = list(self._hands.values())
            self._hands = {}
            hub, self._hub = self._hub, None
        if hub is None:
            return
        try:
            self._patience.cancel()
            self._returns.cancel()
            for hand in hands:
                if hand.peer is not None:
                    hub.send(hand.peer, {"type": "stop"})
                else:
                    self._kill(hand)  # nobody can tell it to stop
            hub.close()
            self._hiring.shutdown(wait=True)
            see_off(self._left, self._kill, _SECONDS_TO_END)
            self._janitor.close()
        except BaseException:  # Ctrl-C again: nobody will call a second time, so there is no more waiting
            for hand in list(self._left):
                self._kill(hand)
            raise

    # -- workers that come and go on purpose

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        """Launch more workers while the run goes on; returns their names."""
        with self._lock:
            if self._hub is None or self._closing:
                raise BackendError("workers can be added only while a run goes on: set `num_workers` before it starts")
            names = [self._succession.newcomer() for _ in range(count)]
            for name in names:
                self._hire(name)
        return names

    def remove_worker(self, name: WorkerId) -> None:
        """Let a worker go once its current unit has ended; nobody takes its place."""
        with self._lock:
            hand = self._hands.get(name)
            if hand is None or hand.peer is None:
                raise BackendError(f"there is no worker {name!r}: there are {', '.join(self.workers) or 'none'}")
            if all(other is hand or other.leaving for other in self._hands.values()):
                raise BackendError(f"worker {name!r} is the last one: launch another before, with add_workers()")
            hand.leaving = True
            self._facts.put(WorkerRetiring(self.now(), name))

    @property
    def workers(self) -> list[WorkerId]:
        """The names of those that are there now."""
        with self._lock:
            return sorted(hand.name for hand in self._hands.values() if hand.peer is not None)

    def _let_go(self, hand: Hand, action: RetireWorker) -> None:
        """Say so of one that nobody asked to go, and see that somebody tries again in its place; the lock is held."""
        if not hand.leaving:
            again = "" if action.back_after is None else f"; another takes its place in {action.back_after:g} s"
            _log.warning(
                "worker %s on %s is let go: too much failed there and nowhere else%s", hand.name, hand.host, again
            )
        if action.back_after is not None:
            self._returns.after(action.back_after, hand)

    def _return(self, hand: Hand, seconds: float) -> None:
        """The place of one that was let go was empty for long enough."""
        with self._lock:
            if self._closing or self._failure is not None:
                return
            name = self._succession.returning(hand)
            if name is None:
                _log.warning("nobody takes the place of worker %s: no restart is left", hand.name)
            else:
                self._hire(name, kept_away=seconds)

    # -- the life of a worker

    def _clear(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._facts = Facts()
        self._failure = None
        self._practice = None
        self._hands = {}
        self._left = set()
        self._names = {}
        self._rehearsed = {}
        self._returns = Returns(self._return)
        self._clocks = Clocks(self.start_timeout)
        self._succession = Succession(self.max_restarts)
        self._closing = False
        self._zero = time.monotonic()

    def _hire(self, name: WorkerId, kept_away: float = 0.0) -> None:
        """Have a worker launched; the lock is held."""
        assert self._hub is not None
        assert self._job is not None
        hand = Hand(name, kept_away=kept_away)
        self._hands[name] = hand
        self._left.add(hand)
        address = (self._dialled, self._hub.address[1])
        job, beat, probe = self._job_of(name, self._job), self.heartbeat / 4, self._probe(self._job)
        posting = Posting(address, self._secret, name, b"", beat=beat, probe=probe)
        self._hiring.submit(self._launched, hand, posting, job)

    def _launched(self, hand: Hand, posting: Posting, job: Job) -> None:
        if self._closing:
            self._gone(hand)
            return
        impatience = threading.Timer(self.start_timeout, self._hurry, [hand])
        impatience.daemon = True
        impatience.start()
        try:
            self._launch(hand, replace(posting, job=packed(job, hand.name)))
        except Exception as error:  # nobody looks at what this thread ends with
            known = error if isinstance(error, BackendError) else None
            self._fail(known or BackendError(f"worker {hand.name} cannot be launched: {error!r}"))
            self._gone(hand)

    def _gone(self, hand: Hand) -> None:
        """Nothing is left of a worker. One that never joined is replaced; of one that did, the hub hears by itself."""
        hand.ended.set()
        with self._lock:
            if hand not in self._left:
                return  # of an earlier run: who has its name or its wire now is somebody else
            self._left.discard(hand)
            stillborn = hand.peer is None and self._hands.pop(hand.name, None) is not None
            if stillborn and not self._closing and self._failure is None:
                self._replace(hand)
            elif hand.peer is not None and self._hub is not None:
                self._hub.lose(hand.peer, "its process ended")
            self._news.notify_all()

    def _trouble(self, hand: Hand, words: str) -> None:
        """A worker cannot begin where it is. While nobody has done anything yet, the same holds for the others."""
        with self._lock:
            hand.words.append(words)
            if not any(other.useful for other in self._hands.values()):
                self._fail(BackendError(words))

    def _hurry(self, hand: Hand) -> None:
        if hand.peer is None and not hand.ended.is_set() and not self._closing:
            hand.words.append(f"(it had not joined after {self.start_timeout:g} s)")
            self._kill(hand)

    def _wait_for_all(self) -> None:
        """Give workers their time to come; the lock is held."""
        self._patience = threading.Timer(self.start_timeout, self._stop_gathering)
        self._patience.daemon = True
        self._patience.start()

    def _stop_gathering(self) -> None:
        """Those who are there begin, although not all came. While nobody is there, they are waited for again."""
        with self._lock:
            if self._closing:
                return
            if not self._names:
                self._wait_for_all()
            elif len(self._names) < self.num_workers:
                _log.warning("only %d of %d workers came: the run begins with them", len(self._names), self.num_workers)
                self._facts.put(GatheringEnded(self.now()))

    def _replace(self, hand: Hand) -> None:
        """Have somebody take the place of a worker that died; the lock is held."""
        if self._returns.later_still(hand):
            return
        try:
            self._hire(self._succession.heir(hand))
        except BackendError as error:
            self._fail(error)

    def _fail(self, error: BackendError) -> None:
        with self._news:
            self._failure = self._failure or error
            self._facts.put(error)
            self._news.notify_all()

    # -- called by the hub, which must not be kept waiting

    def _heard(self, peer: int, message: Message) -> None:
        with self._lock:
            name = self._names.get(peer)
            if name is None:
                self._welcome(peer, message)
                return
            hand = self._hands.get(name)
        if message["type"] == "rehearsed":
            self._note_rehearsal(message)
            return
        if message["type"] == "said" and hand is not None:
            self._said(hand, Said(str(message["text"]), str(message["trial"]), bool(message["loud"])))
            return
        event = fact(name, message, self.now())
        self._janitor.heard(event)
        if hand is not None:
            self._note(hand, message, event)
        if event is not None:
            self._facts.put(event)

    def _note(self, hand: Hand, message: Message, event: Event | None) -> None:
        with self._lock:
            self._clocks.heard(hand, message, self.now())
        if message["type"] == "started":
            hand.running = int(message["attempt"])
        if isinstance(event, (PartitionLoaded, UnitFinished)):
            hand.useful = True
        if isinstance(event, UnitFailed):
            _log.debug("%s failed on %s (%s): %s", event.unit, hand.name, hand.host, event.error)

    def _said(self, hand: Hand, said: Said) -> None:
        """A worker printed something."""
        where = f"{hand.name}, trial {said.trial}" if said.trial else hand.name
        _log.log(logging.WARNING if said.loud else logging.INFO, "%s: %s", where, said.text)

    def _welcome(self, peer: int, message: Message) -> None:
        name = str(message.get("name"))
        hand = self._hands.get(name)
        if message["type"] != "hello" or hand is None or hand.peer is not None:
            raise WireError(f"it should have said hello as a known worker, but said {message['type']!r}")
        if message.get("trouble"):
            self._trouble(hand, self._explained(str(message.get("host", "")), message["trouble"]))
            return
        hand.peer, hand.host, hand.pid = peer, str(message.get("host", "")), int(message.get("pid", 0))
        self._names[peer] = name
        self._facts.put(WorkerJoined(self.now(), name, hand.host, threads=int(message.get("threads") or 0)))
        if self._practice is not None and self._hub is not None:
            self._hub.send(peer, self._practice)
        self._news.notify_all()

    def _lost(self, peer: int, reason: str) -> None:
        """A wire is cut: the worker is dead to us, whatever it may think, and another takes its place."""
        with self._news:
            name = self._names.pop(peer, None)
            hand = self._hands.pop(name, None) if name is not None else None
            if hand is None or self._closing:
                return
            if not hand.dismissed:
                _log.debug("worker %s on %s is lost: %s", hand.name, hand.host, reason)
                reason = hand.cause or reason
                self._facts.put(WorkerLost(self.now(), hand.name, reason, not hand.cause, hand.running))
            self._hiring.submit(self._kill, hand)
            # Of one that was to leave anyway the place stays empty, unless nobody else is left to do its work.
            if not hand.dismissed and not (hand.leaving and self._hands):
                self._hiring.submit(self._succeed, hand)
            self._news.notify_all()

    def _give_up(self, hand: Hand, late: Order) -> None:
        """A worker is stuck with something, although it lives: it is lost, and replaced; the lock is held."""
        assert self._hub is not None
        reason = f"{late.what} took longer than {late.limit:g} s"
        _log.warning("worker %s on %s is given up: %s", hand.name, hand.host, reason)
        if late.partition is not None:
            hand.cause = reason
            self._facts.put(PartitionLost(self.now(), hand.name, late.partition, reason))
        else:
            hand.running = late.attempt
        hand.orders.clear()
        self._hub.lose(hand.peer or 0, reason)

    def _explain(self, hand: Hand, cause: str) -> None:
        """A worker dies, or died, of something else than its unit."""
        with self._lock:
            hand.cause = cause
            told = hand.peer is not None and hand.name not in self._hands and not hand.dismissed
            if told and not self._closing:
                self._facts.put(LossExplained(self.now(), hand.name, cause))

    def _succeed(self, hand: Hand) -> None:
        """Replace a worker that had joined; of one that did nothing, its last words are worth waiting for."""
        if not hand.useful:
            hand.ended.wait(1.0)
        with self._lock:
            if not self._closing:
                self._replace(hand)

    def _broken(self, reason: str) -> None:
        self._fail(BackendError(f"the driver's connection to its workers broke down: {reason}"))
