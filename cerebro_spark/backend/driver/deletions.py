"""Deletes the files of a run that no unit can need any more, in the background. It decides nothing.

`CheckpointDeleter` deletes what the scheduler gives up, and what a worker wrote and died before it could report.
`CheckpointSweep` deletes what an earlier driver of the run left: what it had not deleted yet, or never knew of.
`MetricStateFiles` deletes metric states that later units have made superfluous.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from cerebro_spark.backend.job import Job
from cerebro_spark.events import DeleteCheckpoint, Event, RunUnit, UnitFinished
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import Checkpoint, Metrics, TrialId

_log = logging.getLogger(__name__)


class BackgroundDeleter:
    """Deletes blobs in a thread of its own; a store that fails delays nothing.

    As a context manager it waits for its deletions if the block ends well, and leaves the rest where it is if not.

    Args:
        store: The run's store.
        warning: What to say of blobs that could not be deleted.
    """

    def __init__(self, store: Store, warning: str) -> None:
        self._store = store
        self._warning = warning
        self._pool = ThreadPoolExecutor(1, "deletions")
        self._hurry = threading.Event()

    def _delete_later(self, *names: str) -> None:
        """Delete blobs one after another, until the store fails."""
        self._pool.submit(self._delete, names)

    def _delete(self, names: Iterable[str]) -> None:
        try:
            for name in names:
                if not self._hurry.is_set():
                    self._store.delete(name)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        _log.warning("%s: %s", self._warning, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._hurry.set()
        self._pool.shutdown(wait=True)


class CheckpointDeleter(BackgroundDeleter):
    """Deletes the checkpoints of one run on one backend.

    `delete` and `note_order` are called by the engine's thread, `note_report` by the hub's, `close` by any.

    Args:
        job: The run and its store.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.store, "a checkpoint that is not needed any more stays")
        self._run = job.run
        self._unreported: dict[int, Checkpoint] = {}
        self._closing = threading.Lock()
        self._closed = False

    def delete(self, action: DeleteCheckpoint) -> None:
        """Delete a checkpoint that the scheduler gave up. Once this is closed, the next driver of the run does that."""
        with self._closing:
            if not self._closed:
                self._delete_later(paths.checkpoint(self._run, action.checkpoint))

    def note_order(self, action: RunUnit) -> None:
        """Take notice of an order: from now on its checkpoint may be in the store."""
        for order in action.members:
            if order.unit.kind == "train":
                left = Checkpoint(order.unit.trial, order.unit.epoch, order.step, order.attempt)
                self._unreported[order.attempt] = left

    def note_report(self, attempt: int) -> None:
        """Take notice that a unit was reported: its checkpoint is the scheduler's to keep or to delete."""
        self._unreported.pop(attempt, None)

    def close(self) -> None:
        """Once all workers have ended: delete what was never reported, and wait until all is gone."""
        with self._closing:
            self._closed = True
            for checkpoint in list(self._unreported.values()):
                self._delete_later(paths.checkpoint(self._run, checkpoint))
        self._pool.shutdown(wait=True)


class CheckpointSweep(BackgroundDeleter):
    """Deletes every checkpoint of one run that its log does not keep.

    A sweep ends with its first failure, and the next one finds the rest.

    Args:
        store: The run's store.
        run: The run's id.
    """

    def __init__(self, store: Store, run: str) -> None:
        super().__init__(store, f"checkpoints of run {run} that are not needed stay for now")
        self._run = run

    def sweep(self, kept: Iterable[Checkpoint], owned: Callable[[], bool] = lambda: True) -> None:
        """List at once what lies there and is not among `kept`; delete it in the background.

        Only for the driver that owns the log, and only before it orders anything (afterwards there may be checkpoints
        that are yet to be reported) or once the run is over. A worker of a dead driver may write its checkpoint after
        the sweep: one file a worker at most, which the sweep at the run's end finds.

        Args:
            kept: The checkpoints that the log keeps.
            owned: Asked after the list was made: if the log is still this driver's then, no name on the list is of a
                later driver. Names contain the attempt, so no listed name is written anew before it is deleted.
        """
        needed = {paths.checkpoint(self._run, checkpoint) for checkpoint in kept}
        try:
            listed = self._store.list(paths.checkpoint_folder(self._run))
            if owned():
                self._delete_later(*(name for name in listed if name not in needed and paths.is_checkpoint(name)))
        except OSError as error:
            self._warn(error)


class MetricStateFiles(BackgroundDeleter):
    """Deletes the metric states of one run that no unit can need any more.

    It is told of every event, after the scheduler. What a driver that died left is deleted at the run's end.

    Args:
        store: The run's store.
        run: The run's id.
    """

    def __init__(self, store: Store, run: str) -> None:
        super().__init__(store, "a metric state that is not needed any more stays")
        self._run = run
        self._known: defaultdict[TrialId, set[str]] = defaultdict(set)

    def note(self, event: Event, trials: Mapping[TrialId, TrialRecord]) -> None:
        """Take notice of an event: a unit that ended has made the state before its own superfluous."""
        if not isinstance(event, UnitFinished) or event.unit.trial not in trials:
            return
        trial, stored = event.unit.trial, event.metrics.stored
        if stored is not None and stored.name:
            self._known[trial].add(stored.name)
        if self._known.get(trial):
            idle = self._known[trial] - files_in_use(trials[trial])
            self._known[trial] -= idle
            for name in sorted(idle):
                self._delete_later(name)

    def clear(self, *, inherited: bool) -> None:
        """Delete all files: the run is over. A run that was `inherited` may have some of an earlier driver."""
        if self._known or inherited:
            self._delete_later(paths.carried_folder(self._run))


def files_in_use(trial: TrialRecord) -> set[str]:
    """Return the files that a next unit of the trial would need: of its epoch, and of epochs that are evaluated."""
    parts = [trial.trained, *(evaluation.measured for evaluation in trial.evaluations.values())]
    stored = [Metrics.merge(part.values()).stored for part in parts if part]
    return {file.name for file in stored if file is not None}
