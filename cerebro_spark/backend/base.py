"""The contract of a backend: the place where units run. It carries out actions and returns events; it never decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import Action, Event
from cerebro_spark.types import Partition


class Backend(ABC):
    """Workers, and the way to talk to them.

    The engine calls it, from one thread: `bind` and `start` once, perhaps `rehearse`, then `submit` and `events` in
    turns, then `close`. `num_workers` is how many workers a run may expect.

    * `bind(job)` says what the workers will work on; before `start`.
    * `start(partitions, at)` makes workers appear; each is announced by WorkerJoined. It may raise BackendError or
      ConfigurationError before anything was launched.
    * `rehearse(params)` has one worker train and evaluate one batch of a trial of its own, and waits for it: None if
      that went well, else what went wrong, with the traceback.
    * `submit(action)` never blocks and never raises for what happens at a worker: that comes back as an event. Orders
      to one worker are carried out in the order they were given; orders to a worker that is not there are dropped.
    * `events()` blocks until at least one event is known and returns all that are, in the order in which they happened.
      It raises RunStalled when no event can ever come any more.
    * `now()` is the backend's clock, which never goes back; every event's `at` is a reading of it.
    * `close()` stops the workers; it may be called twice, and after a failed start.
    """

    num_workers: int

    def bind(self, job: Job) -> None:  # noqa: B027 (not every backend has real workers)
        """Say what the workers will work on."""

    @abstractmethod
    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        """Launch the workers, and let the clock begin at `at`."""

    def located(self, dataset: Dataset) -> Dataset:
        """The data set with the hosts that hold its partitions now, where a backend can know."""
        return dataset

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        """Try a configuration on one batch; a backend that trains nothing has nothing to try."""
        return None

    @abstractmethod
    def submit(self, action: Action) -> None:
        """Order something."""

    @abstractmethod
    def events(self) -> list[Event]:
        """Wait for events."""

    @abstractmethod
    def now(self) -> float:
        """Seconds on the clock of this backend."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that `start` launched."""

    def __enter__(self) -> Backend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
