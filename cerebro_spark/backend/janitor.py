"""Takes checkpoints away that nobody needs, one after another, in a thread of its own. It keeps nobody waiting.

It also knows which ones may have been written without anybody hearing of it: a worker can die between the two. What a
driver that was killed left to its janitor, or never knew of, is for the sweeper of the next (`sweeper.py`).
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from cerebro_spark.backend.job import Job
from cerebro_spark.events import DeleteCheckpoint, Event, RunUnit, UnitFailed, UnitFinished
from cerebro_spark.store import paths
from cerebro_spark.types import Checkpoint

_log = logging.getLogger(__name__)


class Janitor:
    """Of one run on one backend. `ordered` and `delete` are called by the engine's thread, `heard` by the hub's."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._unheard: dict[int, Checkpoint] = {}
        self._pool = ThreadPoolExecutor(1, "janitor")

    def delete(self, action: DeleteCheckpoint) -> None:
        self._pool.submit(self._delete, action.checkpoint)

    def ordered(self, action: RunUnit) -> None:
        """From now on its checkpoint may be there."""
        if action.unit.kind == "train":
            left = Checkpoint(action.unit.trial, action.unit.epoch, action.step, action.attempt)
            self._unheard[action.attempt] = left

    def heard(self, event: Event | None) -> None:
        """A checkpoint that was reported is the scheduler's to keep or to delete."""
        if isinstance(event, (UnitFinished, UnitFailed)):
            self._unheard.pop(event.attempt, None)

    def close(self) -> None:
        """Once all workers have ended: delete what was never reported, and wait until all is gone."""
        for checkpoint in self._unheard.values():
            self._pool.submit(self._delete, checkpoint)
        self._pool.shutdown(wait=True)

    def _delete(self, checkpoint: Checkpoint) -> None:
        try:
            self._job.store.delete(paths.checkpoint(self._job.run, checkpoint))
        except OSError as error:
            _log.warning("a checkpoint that is not needed any more stays: %s", error)
