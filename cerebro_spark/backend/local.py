"""Workers as processes of this machine: how a search runs without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import cloudpickle

from cerebro_spark.backend.child import Child
from cerebro_spark.backend.hand import Hand
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wired import WiredBackend
from cerebro_spark.backend.worker import Posting
from cerebro_spark.checks import check_whole
from cerebro_spark.errors import BackendError
from cerebro_spark.types import WorkerId


class LocalBackend(WiredBackend):
    """One process a worker on this machine.

    `threads` are those of one worker; the cores this process may use shared out evenly if not given. `devices`, such as
    ("cuda:0", "cuda:1"), go to the workers in turn. A worker that is silent for longer than `heartbeat` seconds, or has
    not joined after `start_timeout`, is given up and replaced; after `max_restarts` replacements in a run, no more.
    Three that die one after another in the same place, without having done anything at all, end the run.

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
    ) -> None:
        super().__init__(num_workers, heartbeat=heartbeat, start_timeout=start_timeout, max_restarts=max_restarts)
        if threads is not None:
            check_whole("threads", threads)
        self.threads = threads or max(1, len(os.sched_getaffinity(0)) // num_workers)
        self.devices = tuple(devices)

    def _launch(self, hand: Hand, posting: Posting) -> None:
        try:
            # It may die before this call returns: its words must be where `_gone` looks for them.
            child = Child(hand.name, lambda: self._gone(hand), hand.words, say=lambda said: self._said(hand, said))
        except OSError as error:
            raise BackendError(f"worker {hand.name} could not be started: {error}") from error
        hand.launched = child
        child.post(cloudpickle.dumps(posting))

    def _kill(self, hand: Hand) -> None:
        if hand.launched is not None:
            hand.launched.kill()

    def _job_of(self, name: WorkerId, job: Job) -> Job:
        asked = job.resources
        device = asked.device
        if self.devices and device == "auto":
            device = self.devices[int(name.partition(".")[0][1:]) % len(self.devices)]
        return replace(job, resources=replace(asked, threads=asked.threads or self.threads, device=device))
