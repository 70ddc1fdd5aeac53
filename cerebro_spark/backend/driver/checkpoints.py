"""Deletes the checkpoints of a run that no unit can need any more, in the background. It decides nothing.

`CheckpointDeleter` deletes what the scheduler gives up, and what a worker wrote and died before it could report.
`CheckpointSweep` deletes what an earlier driver of the run left: what it had not deleted yet, or never knew of.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from cerebro_spark.backend.job import Job
from cerebro_spark.events import DeleteCheckpoint, RunUnit
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import Checkpoint

_log = logging.getLogger(__name__)


class CheckpointDeleter:
    """Deletes the checkpoints of one run on one backend.

    `delete` and `note_order` are called by the engine's thread, `note_report` by the hub's.

    Args:
        job: The run and its store.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._unreported: dict[int, Checkpoint] = {}
        self._pool = ThreadPoolExecutor(1, "checkpoints")

    def delete(self, action: DeleteCheckpoint) -> None:
        """Delete a checkpoint that the scheduler gave up."""
        self._pool.submit(self._delete, action.checkpoint)

    def note_order(self, action: RunUnit) -> None:
        """Take notice of an order: from now on its checkpoint may be in the store."""
        if action.unit.kind == "train":
            left = Checkpoint(action.unit.trial, action.unit.epoch, action.step, action.attempt)
            self._unreported[action.attempt] = left

    def note_report(self, attempt: int) -> None:
        """Take notice that a unit was reported: its checkpoint is the scheduler's to keep or to delete."""
        self._unreported.pop(attempt, None)

    def close(self) -> None:
        """Once all workers have ended: delete what was never reported, and wait until all is gone."""
        for checkpoint in self._unreported.values():
            self._pool.submit(self._delete, checkpoint)
        self._pool.shutdown(wait=True)

    def _delete(self, checkpoint: Checkpoint) -> None:
        try:
            self._job.store.delete(paths.checkpoint(self._job.run, checkpoint))
        except OSError as error:
            _log.warning("a checkpoint that is not needed any more stays: %s", error)


class CheckpointSweep:
    """Deletes every checkpoint of one run that its log does not keep.

    A store that fails now delays nothing: a sweep ends with its first failure, and the next one finds the rest. As a
    context manager it waits for its deletions if the block ends well, and leaves the rest to a later sweep if not.

    Args:
        store: The run's store.
        run: The run's id.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._pool = ThreadPoolExecutor(1, "sweep")
        self._hurry = threading.Event()

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
            if not owned():
                return
        except OSError as error:
            self._leave(error)
            return
        strays = [name for name in listed if name not in needed and paths.is_checkpoint(name)]
        if strays:
            self._pool.submit(self._delete, strays)

    def __enter__(self) -> CheckpointSweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._hurry.set()
        self._pool.shutdown(wait=True)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            if self._hurry.is_set():
                return
            try:
                self._store.delete(name)
            except OSError as error:
                self._leave(error)
                return

    def _leave(self, error: OSError) -> None:
        _log.warning("checkpoints of run %s that are not needed stay for now: %s", self._run, error)
