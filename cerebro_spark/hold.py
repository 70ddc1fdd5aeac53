"""Who holds a run: a driver that lives renews its beat in the store, and whoever would go on with the run looks for it.

It keeps nobody from writing: that the log does, whatever was seen or not seen here (`segments.py`). It only spares a
driver that lives a successor that believes it dead. Stores have no clock that all agree on, and clocks jump: a beat is
a new name, and whoever waits for one counts seconds by its own monotonic clock.
"""

from __future__ import annotations

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
_SECONDS_TO_STOP = 5.0


class Hold:
    """A driver's hold of a run, for as long as the block lasts; `by` says who it is, for people.

    A store that fails disturbs nobody: the next beat is the next try. However the block ends, the hold ends with it at
    once, unless the store cannot be reached then, or the process is killed: then whoever comes next waits for a beat.
    """

    def __init__(self, store: Store, run: str, by: str, every: float | None = None) -> None:
        self._store = store
        self._run = run
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._data = json.dumps({"by": by, "since": since}).encode()
        self._token = uuid.uuid4().hex
        self._every = EVERY if every is None else every
        self._count = 0
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
        self._thread.join(_SECONDS_TO_STOP)  # a store that hangs keeps nobody: the thread ends what it began by itself
        self._forget(self._written)

    def _keep(self) -> None:
        while not self._stop.wait(self._every):
            self._beat()
        self._forget(self._written)

    def _beat(self) -> None:
        """The new one first, then the old one goes: in between there are two, and never none."""
        name = paths.beat(self._run, self._token, self._count)
        self._count += 1
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
    """Return when nobody holds the run: at once if nobody says so, else when no beat has come for that many seconds.

    Raises EventLogError, with who holds the run since when, as soon as one comes.
    """
    known = set(store.list(paths.beats(run)))
    if not known:
        return
    holder = _holder(store, max(known))
    _log.warning(
        "run %s was left without a word by %s: looking for up to %g s whether it is alive (take_over=True does not)",
        *(run, holder, seconds),
    )
    began = clock()
    while True:
        sleep(_LOOK)
        looked = clock()
        found = set(store.list(paths.beats(run)))
        if found - known:
            raise _held(run, _holder(store, max(found - known)))
        if not found:
            return
        if looked - began >= seconds:
            break
    _log.warning("run %s: no sign of life from %s for %g s; going on with it", run, holder, seconds)
    with suppress(OSError):  # it only spares the next one the waiting
        for name in known:
            store.delete(name)


def _holder(store: Store, name: str) -> str:
    try:
        said = json.loads(store.read(name))
        return f"{said['by']}, who holds it since {said['since']}"
    except (NotFoundInStore, ValueError, LookupError, TypeError):
        return "somebody who left no name"


def _held(run: str, holder: str) -> EventLogError:
    return EventLogError(
        f"another driver goes on with run {run}: {holder}, and was seen alive just now. Stop that one first, or take"
        " the run away from it with take_over=True"
    )
