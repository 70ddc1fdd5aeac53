"""The contract of a backend: the place where units run. It carries out actions and returns events; it never decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from cerebro_spark.backend.job import Job
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Action, Event
from cerebro_spark.types import Partition, WorkerId


class Backend(ABC):
    """Workers, and the way to talk to them.

    The engine calls it, from one thread: `bind` and `start` once, perhaps `rehearse`, then `submit` and `events` in
    turns, then `close`. Only `wake` is for all threads. `num_workers` is how many workers a run may expect.
    """

    num_workers: int

    def bind(self, job: Job) -> None:  # noqa: B027 (not every backend has real workers)
        """Set what the workers will work on. It is called before `start`.

        Args:
            job: The run as its workers see it.
        """

    @abstractmethod
    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        """Launch the workers. Each is announced by a WorkerJoined.

        Args:
            partitions: The partitions of the run.
            at: What the clock shows now, in seconds. Defaults to 0.0; a resumed run goes on where it stopped.

        Raises:
            BackendError: Before anything is launched, if the workers cannot be.
            ConfigurationError: Before anything is launched, if an argument cannot be right.
        """

    def located(self, dataset: Dataset) -> Dataset:
        """Find the hosts that hold the partitions of a data set, if the backend can know.

        Args:
            dataset: The data set.

        Returns:
            The data set with these hosts; unchanged if they are not known.
        """
        return dataset

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        """Let one worker train and evaluate one batch of a trial of its own, and wait for it.

        Args:
            params: The configuration of the trial.

        Returns:
            None if that succeeded, or if the backend trains nothing. Otherwise what went wrong, with the traceback.
        """
        return None

    @abstractmethod
    def submit(self, action: Action) -> None:
        """Give an order. It never blocks, and never raises for what happens at a worker: that comes back as an event.

        Orders to one worker are carried out in the order in which they are given. An order to a worker that is not
        there is dropped.

        Args:
            action: The order.
        """

    @abstractmethod
    def events(self) -> list[Event]:
        """Wait until at least one event is known, or somebody calls `wake`.

        Returns:
            All events that are known, in the order in which they happened; none if there are none after a `wake`.

        Raises:
            RunStalled: If no event can ever come any more.
        """

    @abstractmethod
    def wake(self) -> None:
        """Have `events` return soon. Any thread may call it, at any time; it never blocks.

        One call before `events`, or several, end one wait. While no run goes on it does nothing.
        """

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        """Launch more workers while a run goes on; each is announced by a WorkerJoined.

        Args:
            count: How many.

        Returns:
            Their names.

        Raises:
            BackendError: If no run goes on, or the backend cannot do that.
        """
        raise BackendError(f"{type(self).__name__} cannot add workers to a run: set their number before it starts")

    def remove_worker(self, name: WorkerId) -> None:
        """Let a worker go once its running unit has ended; no other takes its place.

        Args:
            name: The worker's name.

        Raises:
            BackendError: If there is no such worker, it is the last one, or the backend cannot do that.
        """
        raise BackendError(f"{type(self).__name__} cannot remove workers from a run: set their number before it starts")

    @abstractmethod
    def now(self) -> float:
        """Read the clock of this backend, which never goes back. Every event's `at` is a reading of it.

        Returns:
            Seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything that `start` launched. It may be called twice, and after a failed start."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
