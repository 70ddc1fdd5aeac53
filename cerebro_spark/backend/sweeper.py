"""Takes away what drivers that died left of a run: checkpoints that its log does not keep. It decides nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import Checkpoint

_log = logging.getLogger(__name__)


class Sweeper:
    """Of one run in one store: takes away every checkpoint that its log does not keep, whoever forgot it.

    A store that cannot do so now holds nothing up: a sweep ends with its first failure, and the next finds the rest. It
    is a context manager, which waits until all is gone if all went well, and leaves the rest where it is if not.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._pool = ThreadPoolExecutor(1, "sweeper")
        self._hurry = threading.Event()

    def sweep(self, kept: Iterable[Checkpoint], owned: Callable[[], bool] = lambda: True) -> None:
        """See at once what lies there and is not among `kept`; delete it in the background.

        Only for whoever owns the log, and before it orders anything (from then on there may be checkpoints that are yet
        to be reported) or once the run is over, when nobody can go on with it. `owned` is asked after the list was
        made: if the log is still this driver's then, no name on the list is a later driver's. Names carry the attempt:
        nobody writes a listed one anew while it waits to be deleted. A worker of a dead driver may be at the end of a
        unit just now, and write its checkpoint after the sweep: one file a worker at most, which the sweep at the run's
        end finds.
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

    def __enter__(self) -> Sweeper:
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
        _log.warning("checkpoints of run %s that nobody needs stay for now: %s", self._run, error)
