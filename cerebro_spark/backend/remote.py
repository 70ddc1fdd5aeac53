"""Workers in processes of their own, at the other end of connections: what LocalBackend and SparkBackend share."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.driver.launcher import Launcher
from cerebro_spark.backend.driver.parent_launcher import ParentLauncher
from cerebro_spark.backend.driver.run import RemoteRun
from cerebro_spark.backend.driver.switchboard import Switchboard
from cerebro_spark.backend.driver.worker_kinds import framework_of
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.tenancy import SECONDS_TO_NOTICE, Tenancy
from cerebro_spark.checks import check_seconds, check_whole
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Action, Event
from cerebro_spark.types import Partition, WorkerId


class RemoteBackend(Backend):
    """A backend whose workers are processes, however these are started. Each run is a RemoteRun of its own.

    Threads: the run that goes on is that of the thread that started it, until this thread closes it; others may close
    its workers under it. The lock guards the parents.

    Args:
        num_workers: How many workers a run begins with.
        heartbeat: Seconds after which a silent worker is given up and replaced.
        start_timeout: Seconds after which a worker that has not joined is given up and replaced.
        max_restarts: How many workers may be replaced in a run.
        idle_timeout: Seconds for which processes wait for the next run inside a `with` block; 0 for not at all.

    Raises:
        ConfigurationError: If one of these is no such number.
    """

    _launcher: Launcher

    def __init__(
        self,
        num_workers: int,
        *,
        heartbeat: float,
        start_timeout: float,
        max_restarts: int,
        idle_timeout: float = 0.0,
    ) -> None:
        check_whole("num_workers", num_workers)
        check_seconds("heartbeat", heartbeat)
        check_seconds("start_timeout", start_timeout)
        if idle_timeout != 0:
            check_seconds("idle_timeout", idle_timeout)
        self.num_workers = num_workers
        self.heartbeat = heartbeat
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self.idle_timeout = idle_timeout
        self._entered = 0
        self._board: Switchboard | None = None
        self._parents: ParentLauncher | None = None
        self._lock = threading.Lock()
        self._tenancy = Tenancy()
        # Of each thread its own: two runs that are started at a time must not get each other's job.
        self._bound = threading.local()
        self._current: RemoteRun | None = None
        self._zero = time.monotonic()

    @property
    def _run(self) -> RemoteRun:
        if self._current is None:
            raise BackendError("this backend is not running: start it first")
        return self._current

    # -- the contract

    def turn(self, wait: bool = True) -> AbstractContextManager[None]:
        return self._tenancy.turn(wait)

    def bind(self, job: Job) -> None:
        self._tenancy.check_free()
        self._bound.job = job

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        job: Job | None = getattr(self._bound, "job", None)
        if job is None:
            raise BackendError("this backend has no job: call bind(job) before start, in the same thread")
        self._tenancy.begin()
        try:
            self._begin_run(replace(job, trainer=job.trainer.with_modules()), at)
        except BaseException:
            self.close()
            raise

    def _begin_run(self, job: Job, at: float) -> None:
        launcher = self._launcher_of_run(job)
        launcher.prepare(job, self.num_workers)
        self._zero = time.monotonic() - at
        self._current = RemoteRun(
            launcher,
            job,
            self.num_workers,
            self.now,
            self.heartbeat,
            self.start_timeout,
            self.max_restarts,
            self._board if launcher is self._parents else None,
        )
        self._tenancy.check()  # whoever closed the backend meanwhile found no run to close
        self._current.begin()

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        return self._run.rehearsals.rehearse(params)

    def estimate(self, configurations: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return self._run.rehearsals.estimate(configurations)

    def skip_rehearsal(self) -> None:
        run = self._current
        if run is not None:
            run.rehearsals.skip()

    def submit(self, action: Action) -> None:
        if self._current is not None:
            self._current.submit(action)

    def events(self) -> list[Event]:
        return self._run.events()

    def wake(self) -> None:
        run = self._current
        if run is not None:
            run.wake()

    def now(self) -> float:
        return time.monotonic() - self._zero

    def close(self) -> None:
        of_another = self._tenancy.revoke()
        run = self._current
        try:
            if run is not None:
                run.close()
        finally:
            try:
                self._end_parents_after(run)
            finally:
                if of_another:
                    self._tenancy.wait_until_free(SECONDS_TO_NOTICE)
                else:
                    if run is not None:
                        self._current = None
                    self._tenancy.end()

    def wait_until_free(self) -> None:
        self._tenancy.take_to_close()

    # -- processes that stay between runs

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait_until_free()
        finally:
            self._entered -= 1
            self.close()

    def _launcher_of_run(self, job: Job) -> Launcher:
        """Return what starts the workers of a run.

        Inside a `with` block these are parents, which stay when it is over. Elsewhere parents are worth their memory
        only where workers can be forked from them, so that one that replaces another is there at once.
        """
        if not self.idle_timeout or not self._launcher.keeps:
            return self._launcher
        if not self._entered and framework_of(job) != "torch":
            return self._launcher
        with self._lock:
            if self._board is None or self._parents is None:
                self._board = Switchboard(self._launcher.hub_address, self.heartbeat)
                self._parents = ParentLauncher(self._launcher, self._board, self.idle_timeout)
            return self._parents

    def _end_parents_after(self, run: RemoteRun | None) -> None:
        """End the parents, unless a `with` block keeps them, or another run than this one has them by now."""
        with self._lock:
            others = self._tenancy.is_of_another and (run is None or self._current is not run)
            if self._entered or others:
                return
            parents, board = self._parents, self._board
            self._parents = self._board = None
        if parents is not None and board is not None:
            parents.close()
            board.close()

    @property
    def peak_memory(self) -> Mapping[WorkerId, int]:
        run = self._current
        return {} if run is None else dict(run.memory)

    # -- workers that come and go on purpose

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        run = self._current
        if run is None:
            raise BackendError("workers can be added only while a run goes on: set `num_workers` before it starts")
        return run.add_workers(count)

    def remove_worker(self, name: WorkerId) -> None:
        self._run.remove_worker(name)

    @property
    def workers(self) -> list[WorkerId]:
        """The names of the workers that are there now; none if no run goes on."""
        run = self._current
        return [] if run is None else sorted(handle.name for handle in run.pool.connected())
