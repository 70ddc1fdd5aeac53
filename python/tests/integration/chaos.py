"""Kills and stalls real workers and executors while a run goes on, and keeps the book of it. It never helps the run.

What is hit, how and when is drawn from a seed; when it is time is told by what the run itself does.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.backend.wire.messages import FromWorker, UnitStarted
from cerebro_spark.events import Action, Event, RunUnit, UnitFinished, WorkerJoined, WorkerLost
from cerebro_spark.search import Done, Search, Wait, make_trial_ids
from cerebro_spark.turns import Turn
from cerebro_spark.types import Partition, Report, Unit, Work

Kind = Literal["worker", "task", "executor", "stall", "return"]
_SECONDS_TO_FIND_A_VICTIM = 300.0


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing to do: `units` that are to end after the last blow, and whether the victim must be in a unit."""

    kind: Kind
    units: int
    in_unit: bool


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing done, at `at` seconds of the backend's clock, to a worker that was in `unit`, or between units."""

    kind: Kind
    worker: str
    pid: int
    at: float
    attempt: int | None
    unit: Unit | None


def plan(kinds: Iterable[Kind], seed: int, most_units: int) -> list[Blow]:
    """These blows in random order, with random pauses; three of four must hit a unit, the others may."""
    rng = random.Random(seed)
    order = list(kinds)
    rng.shuffle(order)
    return [Blow(kind, rng.randint(1, most_units), number % 4 != 3) for number, kind in enumerate(order)]


class Watched(RemoteBackend):
    """A backend that says when a unit starts, which no event does, and remembers which unit an attempt was."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_start: Callable[[str, int], None] = lambda name, attempt: None
        self.units: dict[int, Unit] = {}

    def submit(self, action: Action) -> None:
        if isinstance(action, RunUnit):
            self.units[action.attempt] = action.unit
        super().submit(action)

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        super().start(partitions, at)
        note = self._run._note

        def watched(handle: WorkerHandle, message: FromWorker) -> None:
            note(handle, message)
            if isinstance(message, UnitStarted):
                self.on_start(handle.name, message.attempt)

        self._run._note = watched  # type: ignore[method-assign]


class WatchedBackend(Watched, SparkBackend):
    """Watched workers on Spark."""


class WatchedLocalBackend(Watched, LocalBackend):
    """Watched workers on this machine."""


class Chaos:
    """An observer of a run with a thread that strikes; a context manager around the run. `strikes` is its book.

    When all blows have fallen, and all who fell were replaced, it makes the file `calm`.
    """

    def __init__(self, backend: Watched, blows: list[Blow], seed: int, calm: Path, least_left: int = 1) -> None:
        self._backend = backend
        self._blows = blows
        self._rng = random.Random(seed)
        self._calm = calm
        self._least_left = least_left
        self._news = threading.Condition()
        self._over = False
        self._units = 0
        self._seconds = 0.1
        self._at: dict[str, int] = {}
        self._finished: set[int] = set()
        self._ready: set[str] = set()  # they have ended a unit, and so are in their stride
        self._struck: set[str] = set()
        self._joined: set[str] = set()
        self._to_wake: dict[str, int] = {}
        self.strikes: list[Strike] = []
        backend.on_start = self._started
        self._thread = threading.Thread(target=self._rage, name="chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()
        self._thread.join(timeout=60.0)

    # -- what the run does; called by the engine's thread and by the hub's

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        with self._news:
            if isinstance(event, UnitFinished):
                self._units += 1
                self._ready.update(name for name in event.workers if name not in self._struck)
                self._finished.add(event.attempt)
                self._seconds = 0.8 * self._seconds + 0.2 * event.seconds
            elif isinstance(event, WorkerJoined):
                self._joined.add(event.worker)
            elif isinstance(event, WorkerLost):
                self._ready.discard(event.worker)
                self._at.pop(event.worker, None)
                if event.worker in self._to_wake:
                    # Given up a moment ago, and hardly killed yet: now it wakes, ends its unit, and wants to report it.
                    with suppress(ProcessLookupError):
                        _signal(self._to_wake.pop(event.worker), signal.SIGCONT)
            self._news.notify_all()

    def _started(self, name: str, attempt: int) -> None:
        with self._news:
            self._at[name] = attempt
            self._news.notify_all()

    # -- what is done to it; the thread of its own

    def _rage(self) -> None:
        try:
            with self._news:
                for blow in self._blows:
                    goal = self._units + blow.units
                    self._wait_for(lambda goal=goal: self._units >= goal)
                    while not self._over and not self._tried(blow):
                        pass
                self._wait_for(lambda: {heir(name) for name in self._struck} <= self._joined)
        finally:
            self._calm.touch()  # the run must end, whatever happened here

    def _tried(self, blow: Blow) -> bool:
        """Choose somebody, wait for a moment, and strike if all is still as it was."""
        self._wait_for(lambda: self._victims(blow) and len(self._ready) > self._least_left)
        if self._over:
            return False
        name = self._rng.choice(self._victims(blow))
        attempt = self._running(name)
        self._wait_for(lambda: False, self._rng.uniform(0.0, 0.8) * self._seconds)
        handle = self._backend._run.pool.handles.get(name)
        if self._over or handle is None or not handle.pid or (blow.in_unit and self._running(name) != attempt):
            return False
        self._ready.discard(name)
        self._struck.add(name)
        running = self._running(name)
        unit = None if running is None else self._backend.units[running]
        self.strikes.append(Strike(blow.kind, name, handle.pid, self._backend.now(), running, unit))
        self._strike(blow.kind, name, handle.pid)
        return True

    def _strike(self, kind: Kind, name: str, pid: int) -> None:
        if kind in ("stall", "return"):
            if kind == "return":
                self._to_wake[name] = pid
            _signal(pid, signal.SIGSTOP)
        else:
            _signal({"worker": lambda: pid, "task": lambda: parent(pid), "executor": lambda: executor(pid)}[kind]())

    def _running(self, name: str) -> int | None:
        attempt = self._at.get(name)
        return attempt if attempt not in self._finished else None

    def _victims(self, blow: Blow) -> list[str]:
        return sorted(name for name in self._ready if not blow.in_unit or self._running(name) is not None)

    def _wait_for(self, condition: Any, seconds: float = _SECONDS_TO_FIND_A_VICTIM) -> None:
        self._news.wait_for(lambda: self._over or condition(), seconds)


def heir(worker: str) -> str:
    """The name of who takes a worker's place."""
    stem, _, life = worker.partition(".")
    return f"{stem}.{int(life or 0) + 1}"


class UntilCalm(Search):
    """Trains all configurations on, epoch after epoch, until the file `calm` is there."""

    def __init__(self, configurations: Sequence[Mapping[str, Any]], calm: Path) -> None:
        self._params = dict(zip(make_trial_ids(len(configurations)), configurations, strict=True))
        self._open = set(self._params)
        self._pending = deque(Work(trial, params, 1) for trial, params in self._params.items())
        self._calm = calm

    def ask(self) -> Work | Wait | Done:
        if self._pending:
            return self._pending.popleft()
        return Wait() if self._open else Done()

    def tell(self, report: Report) -> None:
        if report.failed or self._calm.exists():
            self._open.discard(report.trial)
        else:
            self._pending.append(Work(report.trial, self._params[report.trial], report.epoch + 1))


def parent(pid: int) -> int:
    """The process that started this one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor(pid: int) -> int:
    """The executor's JVM above a worker."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent(pid)
    return pid


def alive(pid: int) -> bool:
    """Whether there is still something of a process that can run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_end(pid: int, seconds: float) -> None:
    """Wait until a process, which need not be a child of this one, has ended; it may have done so long ago."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)


def _signal(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)
