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


@dataclass(slots=True)
class _Hand:
    """A worker process: `peer` is its wire once it has said hello."""

    name: WorkerId
    process: subprocess.Popen[bytes]
    peer: int | None = None
    dismissed: bool = False
    useful: bool = False
    watcher: threading.Thread | None = None
    words: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))


class LocalBackend(Backend):
    """One process a worker on this machine.

    `threads` are those of one worker; the machine's cores shared out evenly if not given. A worker that is silent for
    longer than `heartbeat` seconds is given up and replaced; after `max_restarts` replacements in a run, no more. Three
    that die one after another in the same place, without having done anything at all, end the run.

    >>> LocalBackend(num_workers=0)
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `num_workers` is 0, but must be at least 1
    """

    def __init__(
        self,
        num_workers: int = 2,
        *,
        threads: int | None = None,
        heartbeat: float = 30.0,
        start_timeout: float = 120.0,
        max_restarts: int = 100,
    ) -> None:
        if num_workers < 1:
            raise ConfigurationError(f"`num_workers` is {num_workers}, but must be at least 1")
        if heartbeat <= 0:
            raise ConfigurationError(f"`heartbeat` is {heartbeat}, but must be above 0 seconds")
        self.num_workers = num_workers
        self.threads = threads or max(1, (os.cpu_count() or 1) // num_workers)
        self.heartbeat = heartbeat
        self._start_timeout = start_timeout
        self._restarts_left = max_restarts
        self._job: Job | None = None
        self._hub: Hub | None = None
        self._facts: queue.SimpleQueue[Event | BackendError] = queue.SimpleQueue()
        self._hands: dict[WorkerId, _Hand] = {}
        self._names: dict[int, WorkerId] = {}
        self._lock = threading.RLock()
        self._useless: dict[str, int] = {}
        self._closing = False
        self._zero = 0.0
        self._janitor = ThreadPoolExecutor(1, "janitor")
        self._burials = ThreadPoolExecutor(4, "burials")

    def bind(self, job: Job) -> None:
        """Say what the workers will work on; before `start`."""
        self._job = replace(job, resources=replace(job.resources, threads=job.resources.threads or self.threads))

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        if self._job is None:
            raise BackendError("this backend has no job: call bind(job) before start")
        self._zero = time.monotonic() - at
        self._secret = secrets.token_bytes(32)
        self._hub = Hub(self._secret, self._heard, self._lost, silence=self.heartbeat)
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
        facts = [self._facts.get()]
        while not self._facts.empty():
            facts.append(self._facts.get())
        for item in facts:
            if isinstance(item, BackendError):
                raise item
        return [item for item in facts if isinstance(item, Event)]

    def now(self) -> float:
        return time.monotonic() - self._zero

    def close(self) -> None:
        with self._lock:
            if self._closing:
                return
            self._closing = True
            hands = list(self._hands.values())
        if self._hub is not None:
            for hand in hands:
                if hand.peer is not None:
                    self._hub.send(hand.peer, {"type": "stop"})
            self._hub.close()
        for hand in hands:
            self._end(hand)
        self._burials.shutdown(wait=True)
        self._janitor.shutdown(wait=True)

    # -- processes

    def _hire(self, name: WorkerId) -> None:
        assert self._hub is not None
        assert self._job is not None
        posting = Posting(self._hub.address, self._secret, name, self._job, beat=self.heartbeat / 4)
        process = subprocess.Popen(
            [sys.executable, "-m", "cerebro_spark.backend.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        hand = _Hand(name, process)
        with self._lock:
            self._hands[name] = hand
        hand.watcher = threading.Thread(target=self._watch, args=(hand,), name=f"watch-{name}", daemon=True)
        hand.watcher.start()
        assert process.stdin is not None
        try:
            process.stdin.write(cloudpickle.dumps(posting))
            process.stdin.flush()
        except BrokenPipeError:
            return  # it died at once: the watcher tells with what words

    def _watch(self, hand: _Hand) -> None:
        """Forward what a worker says on stderr; when it ends without ever having joined, the run cannot go on."""
        assert hand.process.stderr is not None
        with hand.process.stderr as stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip()
                hand.words.append(text)
                _log.info("%s: %s", hand.name, text)
        code = hand.process.wait()
        with self._lock:
            if hand.peer is None and not self._closing:
                words = "\n".join(hand.words)
                self._facts.put(BackendError(f"worker {hand.name} ended with code {code} before it joined:\n{words}"))

    def _end(self, hand: _Hand) -> None:
        """Wait until nothing is left of a worker."""
        if hand.process.stdin is not None:
            try:
                hand.process.stdin.close()
            except BrokenPipeError:
                _log.debug("%s was gone already", hand.name)
        try:
            hand.process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            hand.process.kill()
            hand.process.wait(timeout=10.0)
        if hand.watcher is not None:
            hand.watcher.join(timeout=10.0)

    def _delete(self, name: str) -> None:
        assert self._job is not None
        try:
            self._job.store.delete(name)
        except OSError as error:
            _log.warning("a checkpoint that is not needed any more stays: %s", error)

    # -- called by the hub

    def _heard(self, peer: int, message: Message) -> None:
        with self._lock:
            name = self._names.get(peer)
            if name is None:
                self._welcome(peer, message)
                return
        try:
            event = fact(name, message, self.now())
        except WireError as error:
            _log.warning("%s", error)
            return
        if event is not None:
            hand = self._hands.get(name)
            if hand is not None and isinstance(event, (PartitionLoaded, UnitFinished)):
                hand.useful = True
            self._facts.put(event)

    def _welcome(self, peer: int, message: Message) -> None:
        name = str(message.get("name"))
        hand = self._hands.get(name)
        if message["type"] != "hello" or hand is None or hand.peer is not None:
            _log.warning("a connection that should say hello as a known worker said %r: dropped", message["type"])
            assert self._hub is not None
            self._hub.drop(peer)
            return
        hand.peer = peer
        self._names[peer] = name
        self._facts.put(WorkerJoined(self.now(), name, str(message.get("host", ""))))

    def _lost(self, peer: int, reason: str) -> None:
        """A wire is cut: the worker is dead to us, whatever it may think, and another takes its place."""
        with self._lock:
            name = self._names.pop(peer, None)
            if name is None or self._closing:
                return
            hand = self._hands.pop(name)
            if not hand.dismissed:
                self._facts.put(WorkerLost(self.now(), name, reason))
        hand.process.kill()
        self._burials.submit(self._end, hand)
        if not hand.dismissed:
            self._replace(hand)

    def _replace(self, hand: _Hand) -> None:
        stem, _, life = hand.name.partition(".")
        with self._lock:
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
