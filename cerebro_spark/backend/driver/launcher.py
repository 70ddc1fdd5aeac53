"""How worker processes of one kind are started and ended. It keeps no record of workers: that is the pool's."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import Hello, OutputLine, StartTrouble
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.types import WorkerId


class HubAddress(NamedTuple):
    """Where the driver listens (port 0 for any free one), and the host that workers dial."""

    host: str = "127.0.0.1"
    port: int = 0
    dialled: str = "127.0.0.1"


class ProcessWatcher(Protocol):
    """Is told what a launched process does; any method may be called from any thread."""

    def ended(self, handle: WorkerHandle) -> None:
        """Nothing is left of the process. To be called exactly once for each successful launch."""

    def printed(self, handle: WorkerHandle, line: OutputLine) -> None:
        """The process printed a line."""

    def refused(self, handle: WorkerHandle, reason: str) -> None:
        """The worker cannot work where it is, for this reason, which also says what to do."""

    def loss_explained(self, handle: WorkerHandle, cause: str) -> None:
        """The worker dies, or died, of something else than its unit."""


class Launcher(ABC):
    """Starts and ends worker processes. Methods are called from the pool's threads if they do not say otherwise.

    Attributes:
        hub_address: Where the driver is to listen for workers.
        keeps: Whether it can launch a parent of workers, which stays between runs.
        echoes: Whether what workers print goes into a log of their machine's own, too.
    """

    hub_address = HubAddress()
    keeps = False
    echoes = False

    def prepare(self, job: Job, num_workers: int) -> None:  # noqa: B027 (not every kind has something to check)
        """Get ready for a run. Called by the engine's thread, before anything is launched.

        Raises:
            ConfigurationError, BackendError: If the run cannot work.
        """

    def check_addition(self, count: int, there: int) -> None:  # noqa: B027 (not every kind knows a limit)
        """Check that workers can be added to a run. Any thread may call it.

        Args:
            count: How many are to be added.
            there: How many the run has.

        Raises:
            BackendError: If there is no room for so many.
        """

    @abstractmethod
    def job_for(self, name: WorkerId, job: Job) -> Job:
        """Return the job as this worker gets it: with the threads and the device that it owns."""

    def probe(self) -> str | None:
        """Return the name of a blob that a worker is to write before it joins, to show that it can; None for none."""
        return None

    @abstractmethod
    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        """Start a worker; or a parent of workers, if it `keeps`.

        Raises:
            BackendError: If it cannot be started; the watcher is then told nothing.
        """

    def note_unit(self, handle: WorkerHandle) -> None:  # noqa: B027 (not every kind prepares something)
        """Take notice that a worker has finished a unit. Called by the hub's thread, and must not wait."""

    @abstractmethod
    def kill(self, handle: WorkerHandle) -> None:
        """End a worker, whatever it is doing."""

    def seconds_running(self, handle: WorkerHandle) -> float | None:
        """Return how long a worker's process has been running; None while it waits for a place."""
        return time.monotonic() - handle.launched_at

    def host_of(self, handle: WorkerHandle) -> str | None:
        """Return the name of a worker's machine, if it is better known here than there. Called by the hub's thread."""
        return None

    def check_joined(self, hello: Hello) -> None:  # noqa: B027 (not every kind has something to check)
        """Check what can be checked only once a worker has joined. Raises BackendError to end the run."""

    def tidy(self) -> None:  # noqa: B027 (not every kind has probes)
        """Delete what workers have written that never joined. Called when the run is over, and all have ended."""

    def explain(self, host: str, trouble: StartTrouble) -> str:
        """Return why a worker on this host cannot begin, with what to do."""
        return f"workers on {host} cannot begin: {trouble.error}"
