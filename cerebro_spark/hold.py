"""The hold of a driver on a run: it writes heartbeats to the store, and another driver looks for them.

It does not stop another driver from writing: the log does that in any case (`segments.py`). It only keeps a driver from
taking over a run whose driver is alive. Stores have no common clock, and clocks jump: so a beat is a new name, and a
driver that waits for one counts seconds by its own monotonic clock.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from cerebro_spark.errors import EventLogError, NotFoundInStore
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

_log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds from one beat of a driver to its next."""
PATIENCE = 30.0
"""Seconds without a beat after which a driver is taken for dead."""
_LOOK = 1.0
_STOP_SECONDS = 5.0


class Hold:
    """Holds a run for the length of a block.

    If the store fails, the next beat is the next try. However the block ends, the hold ends with it at once, unless the
    store cannot be reached then, or the process is killed: the next driver then waits for a beat.

    Args:
        store: The store of the run.
        run: The name of the run.
        by: The name of the driver, for people.
        every: Seconds between two beats; EVERY by default.
    """

    def __init__(self, store: Store, run: str, by: str, every: float | None = None) -> None:
        self._store = store
        self._run = run
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._data = json.dumps({"by": by, "since": since}).encode()
        self._token = uuid.uuid4().hex
        self._every = EVERY if every is None else every
        self._numbers = itertools.count()
        self._written: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="beat", daemon=True)

    def __enter__(self) -> Hold:
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_STOP_SECONDS)  # do not wait for a store that hangs: the thread finishes by itself
        self._forget(self._written)

    def _keep(self) -> None:
        while not self._stop.wait(self._every):
            self._beat()
        self._forget(self._written)

    def _beat(self) -> None:
        """Write the new beat, then delete the old one: in between there are two, and never none."""
        name = paths.beat(self._run, self._token, next(self._numbers))
        self._written.append(name)
        try:
            self._store.write(name, self._data)
        except OSError as error:
            _log.debug("no beat for run %s this time: %s", self._run, error)
            return
        self._forget(self._written[:-1])

    def _forget(self, names: list[str]) -> None:
        for name in list(names):
            try:
                self._store.delete(name)
                self._written.remove(name)
            except (OSError, ValueError) as error:
                _log.debug("a beat of run %s stays for now: %s", self._run, error)
                return


def wait_until_free(
    store: Store,
    run: str,
    seconds: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when no driver holds the run: at once if there is no beat, else once no new beat has come for a while.

    Args:
        store: The store of the run.
        run: The name of the run.
        seconds: How long to wait for a new beat; PATIENCE by default.
        clock: Returns seconds.
        sleep: Waits for some seconds.

    Raises:
        EventLogError: A new beat has come; the message says who holds the run, and since when.
    """
    known = set(store.list(paths.beats(run)))
    if not known:
        return
    holder = _holder(store, run, max(known)) or "a driver that has just ended"
    _log.warning(
        "run %s may still be held by %s: looking for up to %g s for a sign of life (take_over=True does not)",
        *(run, holder, seconds),
    )
    began = clock()
    while True:
        sleep(_LOOK)
        looked = clock()
        found = set(store.list(paths.beats(run)))
        alive = _holder(store, run, max(found - known)) if found - known else ""
        if alive:
            raise EventLogError(
                f"another driver goes on with run {run}: {alive}, and was seen alive just now. Stop that one first, or"
                " take the run away from it with take_over=True"
            )
        if not found:
            return
        if looked - began >= seconds:
            break
    _log.warning("run %s: no sign of life from %s for %g s; going on with it", run, holder, seconds)
    with suppress(OSError):  # so that the next driver need not wait
        for name in known:
            store.delete(name)


class Pulse:
    """Says whether somebody drives a run, as far as its beats tell. It only looks, and never waits.

    A driver that ended has no beat. One that was killed left its last beat: it is taken for dead when no new one has
    come for a while, counted from the first look.

    Args:
        store: The store of the run.
        run: The name of the run.
        seconds: How long to wait for a new beat; PATIENCE by default.
        clock: Returns seconds.
    """

    def __init__(
        self, store: Store, run: str, seconds: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._run = run
        self._seconds = seconds
        self._clock = clock
        self._known: set[str] = set()
        self._since = clock()

    def beats(self) -> bool:
        """Look for beats.

        Returns:
            Whether a driver is alive, or may be.
        """
        found = set(self._store.list(paths.beats(self._run)))
        if found - self._known:
            self._since = self._clock()
        self._known = found
        return bool(found) and self._clock() - self._since < self._seconds

    def driver(self) -> str:
        """Who drives the run, and since when, as of the last look; "" if nobody does."""
        return _holder(self._store, self._run, max(self._known)) if self._known else ""


def _holder(store: Store, run: str, beat: str) -> str:
    """Who wrote a beat, and holds the run since when; "" if that driver has ended.

    A driver deletes a beat when it has written the next one, so a beat that was listed may be gone when it is read. The
    next one then says the same.
    """
    token = beat.rpartition("-")[0]
    while True:
        try:
            said = json.loads(store.read(beat))
            return f"{said['by']}, who holds it since {said['since']}"
        except NotFoundInStore:
            left = [name for name in store.list(paths.beats(run)) if name.rpartition("-")[0] == token]
        except (ValueError, LookupError, TypeError):
            return "a driver without a name"
        if not left:
            return ""
        beat = max(left)
