"""Workers as processes of this machine: how a search runs without Spark. It replaces those that die."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import cloudpickle

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.hub import Hub
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.messages import fact, order
from cerebro_spark.backend.wire import Message, WireError
from cerebro_spark.backend.worker import Posting
from cerebro_spark.errors import BackendError, ConfigurationError
from cerebro_spark.events import (
    Action,
    DeleteCheckpoint,
    Event,
    PartitionLoaded,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.store import paths
from cerebro_spark.types import Partition, WorkerId

_log = logging.getLogger(__name__)
_LAST_WORDS = 40
_MOST_USELESS = 3
_SECONDS_TO_END = 10.0


@dataclass(slots=True)
class _Hand:
    """A worker process: `peer` is its wire once it has said hello, `running` the attempt it is at."""

    name: WorkerId
    process: subprocess.Popen[bytes]
    peer: int | None = None
    running: int | None = None
    dismissed: bool = False
    useful: bool = False
    watcher: threading.Thread | None = None
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))


class LocalBackend(Backend):
    """One process a worker on this machine.

    `threads` are those of one worker; the cores this process may use shared out evenly if not given. `devices`, such as
    ("cuda:0", "cuda:1"), go to the workers in turn. A worker that is silent for longer than `heartbeat` seconds, or has
    not joined after `start_timeout`, is given up and replaced; after `max_restarts` replacements in a run, no more.
    Three that die one after another in the same place, without having done anything at all, end the run.

    >>> LocalBackend(num_workers=0)
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `num_workers` is 0, but must be at least 1
    """

    _facts: queue.SimpleQueue[Event | BackendError]
    _late: BackendError | None
    _hands: dict[WorkerId, _Hand]
    _names: dict[int, WorkerId]
    _useless: dict[str, int]

    def __init__(
        self,
        num_workers: int = 2,
        *,
        threads: int | None = None,
        devices: Sequence[str] = (),
        heartbeat: float = 30.0,
        start_timeout: float = 120.0,
        max_restarts: int = 100,
    ) -> None:
        for name, value in (("num_workers", num_workers), ("threads", 1 if threads is None else threads)):
            if value < 1:
                raise ConfigurationError(f"`{name}` is {value}, but must be at least 1")
        for name, seconds in (("heartbeat", heartbeat), ("start_timeout", start_timeout)):
            if not seconds > 0:
                raise ConfigurationError(f"`{name}` is {seconds}, but must be above 0 seconds")
        self.num_workers = num_workers
        self.threads = threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
        self.devices = tuple(devices)
        self.heartbeat = heartbeat
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self._job: Job | None = None
        self._hub: Hub | None = None
        self._lock = threading.RLock()
        self._clear()

    def bind(self, job: Job) -> None:
        """Say what the workers will work on; before `start`."""
        self._job = job

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        if self._job is None:
            raise BackendError("this backend has no job: call bind(job) before start")
        if self._hub is not None:
            raise BackendError("this backend is running already: close it before it is started again")
        self._clear()
        self._zero = time.monotonic() - at
        self._hub = Hub(self._secret, self._heard, self._lost, self._broken, silence=self.heartbeat)
        for number in range(self.num_workers):
            self._hire(f"w{number}")

    def submit(self, action: Action) -> None:
        if isinstance(action, DeleteCheckpoint):
            assert self._job is not None
            self._janitor.submit(self._delete, paths.checkpoint(self._job.run, action.checkpoint))
            return
        message = order(action)
        if message is None:
            return
        with self._lock:
            hand = self._hands.get(action.worker)  # type: ignore[attr-defined]
            if hand is None or hand.peer is None or self._hub is None:
                return
            hand.dismissed = hand.dismissed or message["type"] == "stop"
            self._hub.send(hand.peer, message)

    def events(self) -> list[Event]:
        facts: list[Event] = []
        while not facts or not self._facts.empty():
            item = self._late or self._facts.get()
            self._late = None
            if isinstance(item, Event):
                facts.append(item)
            elif facts:
                self._late = item  # what was known before is told first
                break
            else:
                raise item
        return facts

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
        for hand in hands:
            if hand.peer is not None:
                hub.send(hand.peer, {"type": "stop"})
        hub.close()
        for hand in hands:
            self._end(hand)
        self._hiring.shutdown(wait=True)
        self._janitor.shutdown(wait=True)

    def _clear(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._facts = queue.SimpleQueue()
        self._late = None
        self._hands = {}
        self._names = {}
        self._useless = {}
        self._restarts_left = self.max_restarts
        self._closing = False
        self._zero = time.monotonic()
        self._janitor = ThreadPoolExecutor(1, "janitor")
        self._hiring = ThreadPoolExecutor(4, "hiring")

    # -- processes

    def _hire(self, name: WorkerId) -> None:
        """Start a worker process and hand it its posting, which may take until it has started up."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "cerebro_spark.backend.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except OSError as error:
            self._facts.put(BackendError(f"worker {name} could not be started: {error}"))
            return
        hand = _Hand(name, process)
        with self._lock:
            hub = self._hub
            if hub is not None:
                self._hands[name] = hand
        hand.watcher = threading.Thread(target=self._watch, args=(hand,), name=f"watch-{name}", daemon=True)
        hand.watcher.start()
        if hub is None:
            process.kill()
            return
        self._hiring.submit(self._send_off, hand, Posting(hub.address, self._secret, name, self._job_of(name)))

    def _job_of(self, name: WorkerId) -> Job:
        assert self._job is not None
        resources = self._job.resources
        device = resources.device
        if self.devices and device == "auto":
            device = self.devices[int(name.partition(".")[0][1:]) % len(self.devices)]
        return replace(
            self._job, resources=replace(resources, threads=resources.threads or self.threads, device=device)
        )

    def _send_off(self, hand: _Hand, posting: Posting) -> None:
        assert hand.process.stdin is not None
        try:
            data = cloudpickle.dumps(replace(posting, beat=self.heartbeat / 4))
        except Exception as error:
            self._facts.put(BackendError(f"what worker {hand.name} needs cannot be sent to it: {error}"))
            return
        try:
            hand.process.stdin.write(data)
            hand.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it died at once, and its pipe is closed: the watcher tells with what words

    def _watch(self, hand: _Hand) -> None:
        """Forward what a worker says on stderr; one that ends, or hangs, before it has joined is replaced."""
        impatience = threading.Timer(self.start_timeout, self._hurry, [hand])
        impatience.daemon = True
        impatience.start()
        assert hand.process.stderr is not None
        with hand.process.stderr as stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip()
                hand.words.append(text)
                _log.info("%s: %s", hand.name, text)
        code = hand.process.wait()
        impatience.cancel()
        with self._lock:
            stillborn = hand.peer is None and self._hands.pop(hand.name, None) is not None
        if stillborn:
            hand.words.append(f"(it ended with code {code} before it joined)")
            self._close_stdin(hand)
            self._replace(hand)

    def _hurry(self, hand: _Hand) -> None:
        if hand.peer is None:
            hand.words.append(f"(it had not joined after {self.start_timeout:g} s)")
            hand.process.kill()

    def _end(self, hand: _Hand) -> None:
        """Wait until nothing is left of a worker; its standard input stays open, or it would end before its work."""
        try:
            hand.process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            hand.process.kill()
            hand.process.wait(timeout=_SECONDS_TO_END)
        self._close_stdin(hand)
        if hand.watcher is not None:
            hand.watcher.join(timeout=_SECONDS_TO_END)

    def _close_stdin(self, hand: _Hand) -> None:
        assert hand.process.stdin is not None
        try:
            hand.process.stdin.close()
        except BrokenPipeError:
            _log.debug("%s was gone already", hand.name)

    def _replace(self, hand: _Hand) -> None:
        stem, _, life = hand.name.partition(".")
        with self._lock:
            if self._closing:
                return
            self._useless[stem] = 0 if hand.useful else self._useless.get(stem, 0) + 1
            if self._restarts_left == 0 or self._useless[stem] >= _MOST_USELESS:
                why = (
                    "no restart is left" if self._restarts_left == 0 else "so did those before it, having done nothing"
                )
                words = "\n".join(hand.words)
                self._facts.put(BackendError(f"worker {hand.name} died, and {why}; its last words:\n{words}"))
                return
            self._restarts_left -= 1
        self._hire(f"{stem}.{int(life or 0) + 1}")

    def _delete(self, name: str) -> None:
        assert self._job is not None
        try:
            self._job.store.delete(name)
        except OSError as error:
            _log.warning("a checkpoint that is not needed any more stays: %s", error)

    # -- called by the hub, which must not be kept waiting

    def _heard(self, peer: int, message: Message) -> None:
        with self._lock:
            name = self._names.get(peer)
            if name is None:
                self._welcome(peer, message)
                return
            hand = self._hands.get(name)
        event = fact(name, message, self.now())
        if hand is not None and message["type"] == "started":
            hand.running = int(message["attempt"])
        if hand is not None and isinstance(event, (PartitionLoaded, UnitFinished)):
            hand.useful = True
        if event is not None:
            self._facts.put(event)

    def _welcome(self, peer: int, message: Message) -> None:
        name = str(message.get("name"))
        hand = self._hands.get(name)
        if message["type"] != "hello" or hand is None or hand.peer is not None:
            raise WireError(f"it should have said hello as a known worker, but said {message['type']!r}")
        hand.peer = peer
        self._names[peer] = name
        self._facts.put(WorkerJoined(self.now(), name, str(message.get("host", ""))))

    def _lost(self, peer: int, reason: str) -> None:
        """A wire is cut: the worker is dead to us, whatever it may think, and another takes its place."""
        with self._lock:
            name = self._names.pop(peer, None)
            hand = self._hands.pop(name, None) if name is not None else None
            if hand is None or self._closing:
                return
            if not hand.dismissed:
                self._facts.put(WorkerLost(self.now(), hand.name, reason, running=hand.running))
        hand.process.kill()
        self._hiring.submit(self._bury, hand)

    def _bury(self, hand: _Hand) -> None:
        if not hand.dismissed:
            self._replace(hand)
        self._end(hand)

    def _broken(self, reason: str) -> None:
        self._facts.put(BackendError(f"the driver's connection to its workers broke down: {reason}"))
