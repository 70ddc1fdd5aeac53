"""Workers as processes of this machine: how a search runs without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import cloudpickle

from cerebro_spark.backend.driver.launcher import Launcher, ProcessWatcher
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.process import WorkerProcess
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.checks import check_whole
from cerebro_spark.errors import BackendError
from cerebro_spark.host_memory import count_memory
from cerebro_spark.types import WorkerId

_MOST_WORKERS_A_CORE = 8
"""To how many workers a run may be enlarged: more only wait for each other, and for memory."""


class LocalBackend(RemoteBackend):
    """One process a worker on this machine.

    Inside a `with` block processes stay for a while when a run is over, so that the next one starts at once. Each run
    has new workers below them: it finds nothing of the run before. Whoever leaves the block waits for a run that was
    started there; an exception that leaves it ends that run with a BackendError.

    Three workers that die one after another in the same place, without having done anything, end the run.

    Args:
        num_workers: How many workers a run has. Default: 2.
        threads: Threads of one worker. Default: the cores that this process may use, shared evenly.
        devices: Devices such as ("cuda:0", "cuda:1") that go to the workers in turn. Default: none in particular.
        heartbeat: Seconds after which a silent worker is given up and replaced. Default: 30.
        start_timeout: Seconds after which a worker that has not joined is given up and replaced. Default: 120.
        max_restarts: How many workers may be replaced in a run. Default: 100.
        idle_timeout: Seconds for which processes wait for the next run inside a `with` block, so that it starts at
            once; 0 for not at all. Default: 300.

    Raises:
        ConfigurationError: If one of these is no such number.

    >>> LocalBackend(num_workers=0)
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `num_workers` is 0, but must be a whole number of at least 1
    """

    def __init__(
        self,
        num_workers: int = 2,
        *,
        threads: int | None = None,
        devices: Sequence[str] = (),
        heartbeat: float = 30.0,
        start_timeout: float = 120.0,
        max_restarts: int = 100,
        idle_timeout: float = 300.0,
    ) -> None:
        super().__init__(
            num_workers,
            heartbeat=heartbeat,
            start_timeout=start_timeout,
            max_restarts=max_restarts,
            idle_timeout=idle_timeout,
        )
        if threads is not None:
            check_whole("threads", threads)
        self.threads = threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
        self.devices = tuple(devices)
        self._launcher = LocalLauncher(self.threads, self.devices)

    @property
    def machines(self) -> Cluster:
        return Cluster(1, len(os.sched_getaffinity(0)), count_memory())

    def resized(self, num_workers: int, threads: int) -> LocalBackend:
        return LocalBackend(
            num_workers,
            threads=threads,
            devices=self.devices,
            heartbeat=self.heartbeat,
            start_timeout=self.start_timeout,
            max_restarts=self.max_restarts,
            idle_timeout=self.idle_timeout,
        )


class LocalLauncher(Launcher):
    """Starts workers as processes of this machine.

    Args:
        threads: Threads of a worker whose job asks for no number.
        devices: Devices that go in turn to workers whose job asks for none in particular.
    """

    keeps = True

    def __init__(self, threads: int, devices: Sequence[str]) -> None:
        self._threads = threads
        self._devices = devices

    def check_addition(self, count: int, there: int) -> None:
        cores = len(os.sched_getaffinity(0))
        most = _MOST_WORKERS_A_CORE * cores
        if there + count > most:
            fix = f"add at most {most - there}" if there < most else "remove others before"
            raise BackendError(
                f"`workers` is {count}, but a run that has {there} can have at most {most} here, {_MOST_WORKERS_A_CORE}"
                f" for each core that this process may use ({cores}): {fix}"
            )

    def job_for(self, name: WorkerId, job: Job) -> Job:
        asked = job.trainer.resources
        threads, device = asked.threads or self._threads, asked.device
        if self._devices and device == "auto":
            device = self._devices[int(name.partition(".")[0][1:]) % len(self._devices)]
        return replace(job, trainer=job.trainer.with_resources(threads=threads, device=device))

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        try:
            # It may die before this call returns: its words must be where the watcher looks for them.
            process = WorkerProcess(
                handle.name, partial(watcher.ended, handle), handle.words, on_line=partial(watcher.printed, handle)
            )
        except OSError as error:
            raise BackendError(f"worker {handle.name} could not be started: {error}") from error
        handle.launched = process
        process.give(cloudpickle.dumps(spec))

    def kill(self, handle: WorkerHandle) -> None:
        if handle.launched is not None:
            handle.launched.kill()
