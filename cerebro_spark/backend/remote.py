"""Workers in processes of their own, at the other end of connections: what LocalBackend and SparkBackend share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.driver.launcher import Launcher
from cerebro_spark.backend.driver.run import RemoteRun
from cerebro_spark.backend.job import Job
from cerebro_spark.checks import check_seconds, check_whole
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Action, Event
from cerebro_spark.types import Partition, WorkerId


class RemoteBackend(Backend):
    """A backend whose workers are processes, however these are started. Each run is a RemoteRun of its own.

    Args:
        num_workers: How many workers a run begins with.
        heartbeat: Seconds after which a silent worker is given up and replaced.
        start_timeout: Seconds after which a worker that has not joined is given up and replaced.
        max_restarts: How many workers may be replaced in a run.

    Raises:
        ConfigurationError: If one of these is no such number.
    """

    _launcher: Launcher

    def __init__(self, num_workers: int, *, heartbeat: float, start_timeout: float, max_restarts: int) -> None:
        check_whole("num_workers", num_workers)
        check_seconds("heartbeat", heartbeat)
        check_seconds("start_timeout", start_timeout)
        self.num_workers = num_workers
        self.heartbeat = heartbeat
        self.start_timeout = start_timeout
        self.max_restarts = max_restarts
        self._job: Job | None = None
        self._current: RemoteRun | None = None
        self._zero = time.monotonic()

    @property
    def _run(self) -> RemoteRun:
        if self._current is None:
            raise BackendError("this backend is not running: start it first")
        return self._current

    # -- the contract

    def bind(self, job: Job) -> None:
        self._job = job

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        if self._job is None:
            raise BackendError("this backend has no job: call bind(job) before start")
        if self._current is not None:
            raise BackendError("this backend is running already: close it before it is started again")
        job = replace(self._job, trainer=self._job.trainer.with_modules())
        self._launcher.prepare(job, self.num_workers)
        self._zero = time.monotonic() - at
        self._current = RemoteRun(
            self._launcher, job, self.num_workers, self.now, self.heartbeat, self.start_timeout, self.max_restarts
        )

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        return self._run.rehearsals.rehearse(params)

    def submit(self, action: Action) -> None:
        if self._current is not None:
            self._current.submit(action)

    def events(self) -> list[Event]:
        return self._run.events()

    def now(self) -> float:
        return time.monotonic() - self._zero

    def close(self) -> None:
        run, self._current = self._current, None
        if run is not None:
            run.close()

    # -- workers that come and go on purpose

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        """Launch more workers while a run goes on.

        Args:
            count: How many.

        Returns:
            Their names.

        Raises:
            BackendError: If no run goes on.
        """
        if self._current is None:
            raise BackendError("workers can be added only while a run goes on: set `num_workers` before it starts")
        return self._current.pool.hire(count)

    def remove_worker(self, name: WorkerId) -> None:
        """Let a worker go once its running unit has ended; no other takes its place.

        Args:
            name: One of `workers`.

        Raises:
            BackendError: If there is no such worker, or it is the last one.
        """
        self._run.remove_worker(name)

    @property
    def workers(self) -> list[WorkerId]:
        """The names of the workers that are there now; none if no run goes on."""
        return [] if self._current is None else sorted(handle.name for handle in self._current.pool.connected())
