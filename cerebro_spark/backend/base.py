"""The contract of a backend: the place where units run. It carries out actions and returns events; it never decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError
from cerebro_spark.events import Action, Event
from cerebro_spark.types import Partition, WorkerId


class Backend(ABC):
    """Workers, and the way to talk to them.

    The engine calls it, from one thread: `bind` and `start` once, perhaps `rehearse`, then `submit` and `events` in
    turns, then `close`. It has one run at a time, from `start` until that thread calls `close`. `wake`,
    `skip_rehearsal`, `add_workers` and `remove_worker` are for all threads, and so is `close`, which ends the run of
    another thread. `num_workers` is how many workers a run may expect.

    Whoever leaves its `with` block in good order while a run of another thread goes on waits for that run. Whoever
    leaves it by an exception does not: the run then ends with a BackendError.
    """

    num_workers: int

    def turn(self, wait: bool = True) -> AbstractContextManager[None]:
        """Keep the backend for a run of this thread, from before its data is prepared until it has ended.

        Inside the block no other thread begins a run here. Whoever begins one without a block is refused by `bind`.

        Args:
            wait: Whether to wait for the runs of other threads that wait too, in the order in which they came. Other
                runs are never waited for. Defaults to True.

        Returns:
            A context manager. It raises BackendError when the block is entered, if a run goes on here that is not
            waited for, or is this thread's own. By default it does nothing.
        """
        return nullcontext()

    def bind(self, job: Job) -> None:  # noqa: B027 (not every backend has real workers)
        """Set what the workers will work on. It is called before `start`, in the same thread.

        Args:
            job: The run as its workers see it.

        Raises:
            BackendError: If a run goes on here already.
        """

    @abstractmethod
    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        """Launch the workers. Each is announced by a WorkerJoined.

        Nothing is left of a start that failed: its caller need not call `close`.

        Args:
            partitions: The partitions of the run.
            at: What the clock shows now, in seconds. Defaults to 0.0; a resumed run goes on where it stopped.

        Raises:
            BackendError: Before anything is launched, if the workers cannot be, or if a run goes on here already.
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
            None if that succeeded, was skipped, or if the backend trains nothing. Otherwise what went wrong, with the
            traceback.
        """
        return None

    def estimate(self, configurations: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Try a few batches of each configuration, and wait for that: it is asked after a rehearsal that succeeded.

        Args:
            configurations: The params of trials, of another kin each.

        Returns:
            For each the seconds that a training unit may take one worker, on a partition of average size; None where
            that was not tried, or does not tell. By default nothing is tried.
        """
        return [None] * len(configurations)

    def skip_rehearsal(self) -> None:  # noqa: B027 (not every backend rehearses)
        """Have `rehearse` return None soon, this time and later in this run, even if no worker has come yet."""

    @property
    def peak_memory(self) -> Mapping[WorkerId, int]:
        """By worker of the pilot that goes on, the most bytes of memory that its process has had; none by default."""
        return {}

    @property
    def machines(self) -> Cluster:
        """What its workers can use.

        Raises:
            BackendError: If it has no real workers.
        """
        raise BackendError(f"{type(self).__name__} has no real workers: plan with a LocalBackend or a SparkBackend")

    def resized(self, num_workers: int, threads: int) -> Backend:
        """Return a backend of the same kind, in the same place, with other workers. Nothing is started.

        Args:
            num_workers: How many workers a run has.
            threads: The threads of each.

        Returns:
            Another backend.

        Raises:
            ConfigurationError: If that many cannot be.
            BackendError: If there is no such backend.
        """
        raise BackendError(f"{type(self).__name__} has no real workers: plan with a LocalBackend or a SparkBackend")

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
            BackendError: If the run cannot go on, or another thread has closed the backend.
        """

    @abstractmethod
    def wake(self) -> None:
        """Have `events` return soon. Any thread may call it, at any time; it never blocks.

        One call before `events`, or several, end one wait. While no run goes on it does nothing.
        """

    def add_workers(self, count: int = 1) -> list[WorkerId]:
        """Launch more workers while a run goes on; each is announced by a WorkerJoined.

        The run can do without them: one that cannot be launched, or does nothing but die, is named in a warning, and
        its place stays empty.

        Args:
            count: How many.

        Returns:
            Their names.

        Raises:
            BackendError: If no run goes on, the backend cannot do that, or there is no room for so many.
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
        """Stop everything that `start` launched. It may be called twice, and after a failed start.

        If another thread drives a run here, that run ends with a BackendError.
        """

    def wait_until_free(self) -> None:  # noqa: B027 (not every backend is used by several threads)
        """Wait until no other thread drives a run here. Who calls it closes the backend next; runs begin after that."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait_until_free()
        finally:
            self.close()
