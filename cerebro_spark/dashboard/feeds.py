"""One run of a store, followed: its log, its driver's signs of life, its forecast. Any thread may ask it."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from cerebro_spark.dashboard.json_values import dump, plain
from cerebro_spark.dashboard.judging import OutcomesMissing
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.views.runs import Condition, Driver
from cerebro_spark.errors import CerebroError, NotFoundInStore, StoreError
from cerebro_spark.following import LogFollower
from cerebro_spark.hold import PATIENCE
from cerebro_spark.segments import read_author
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn

_log = logging.getLogger(__name__)
_MOST_ANSWERS = 32
_BEATS_EVERY = 5.0
_SILENT_SECONDS = 60.0
_LARGEST_FORECAST = 1 << 20
_NOBODY = read_author(b"")
"""Who wrote a segment that does not say so."""


class Stamp(NamedTuple):
    """What of a run an answer was made from: answers with equal stamps are equal."""

    generation: str
    version: int
    condition: Condition
    forecast: str
    sent: int


class RunFeed:
    """Reads a run when it is told to, and answers from what it has read.

    `refresh` is called by one thread at a time: others that call it meanwhile return at once. Answers are made under a
    lock, so they never see half a turn.

    Args:
        store: The store of the run.
        run: The id of the run.
        clock: Returns seconds, by which signs of life are judged. Defaults to the monotonic clock.
    """

    def __init__(self, store: Store, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.index = RunIndex(run)
        self.gone: str | None = None
        self.read_at = float("-inf")
        self.watched = False
        self.forecast: dict[str, Any] | None = None
        self._store = store
        self._follower = LogFollower(store, run)
        self._clock = clock
        self._refreshing = threading.Lock()
        self._reading = True
        self._problem: str | None = None
        self._broken = False
        """Whether the log is damaged, which lasts as long as the log does. A store that fails may work again."""
        self._beginning = _Beginning(store, run, clock)
        self._beats = _Beats(store, run, clock)
        self._forecast_name = ""
        self._answers: OrderedDict[object, bytes] = OrderedDict()
        self._answered: Stamp | None = None
        """What these answers were made from."""

    @property
    def condition(self) -> Condition:
        """How the run is, apart from what its log says."""
        return Condition(self._beats.driver, self._reading, self._problem)

    @property
    def stamp(self) -> Stamp:
        """Changes whenever an answer may change."""
        index = self.index
        return Stamp(index.generation, index.version, self.condition, self._forecast_name, len(index.commands))

    @property
    def known(self) -> bool:
        """Whether the run has a log, as far as is known."""
        return self.gone is None and (self.index.version > 0 or self._problem is not None)

    @property
    def stale_after(self) -> float:
        """Seconds after which the run may be another way although its log is the same.

        Its driver dies, or is heard of again; a store that failed is back; a damaged log was made anew.
        """
        if self.gone is not None:  # if the store still lists it, another one is in its place
            return 0.0
        if self._broken:
            return _SILENT_SECONDS
        if self.index.view.finished:
            return math.inf
        if self._problem is not None:
            return _BEATS_EVERY
        return {"alive": _BEATS_EVERY, "silent": _SILENT_SECONDS, "gone": math.inf}[self._beats.driver]

    @property
    def reading(self) -> bool:
        """Whether the log was not read to its end yet."""
        return self._reading

    def refresh(self, seconds: float = 1.0) -> bool:
        """Read what is new.

        Args:
            seconds: After so much time the rest of a long log is left for the next call. Defaults to 1.0.

        Returns:
            Whether anything changed.
        """
        if self.gone is not None or not self._refreshing.acquire(blocking=False):
            return False
        try:
            before = self.stamp
            self._read_log(self._clock() + seconds)
            self._look_around()
            self.read_at = self._clock()
            return self.stamp != before
        finally:
            self._refreshing.release()

    def answer(self, key: object, make: Callable[[], dict[str, Any]]) -> bytes:
        """The JSON of an answer, made anew only if something changed.

        Args:
            key: What is asked for, with all its arguments.
            make: Makes the answer from this feed; it is called under the lock.
        """
        with self.lock:
            stamp = self.stamp
            if stamp != self._answered:
                self._answers.clear()
                self._answered = stamp
            known = self._answers.get(key)
            if known is not None:
                self._answers.move_to_end(key)
                return known
            head = {"generation": stamp.generation, "version": stamp.version, "from": 0}
            data = dump({**head, **make()})
            self._answers[key] = data
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
            return data

    def _read_log(self, until: float) -> None:
        if self._broken:
            self._look_for_another_log()
            return
        try:
            while turns := self._follower.read():
                self._apply(turns)
                if self._clock() >= until:
                    return
            self._problem, self._reading = None, False
        except NotFoundInStore as error:
            self.gone = str(error)
        except OutcomesMissing:
            self._begin_again()
        except CerebroError as error:
            self._problem, self._reading = " ".join(str(error).split()), False
            self._broken = self._broken or self._follower.broken
            if self._broken:
                self._look_for_another_log()

    def _apply(self, turns: list[Turn]) -> None:
        with self.lock:
            for turn in turns:
                try:
                    self.index.apply(turn)
                except OutcomesMissing:
                    raise
                except CerebroError:  # the follower has no turn twice
                    self._broken = True
                    raise

    def _look_for_another_log(self) -> None:
        """Give the run up if the damaged log was deleted, or made anew: another feed reads the new one."""
        try:
            if self._beginning.is_another(self._follower.author):
                self.gone = f"the damaged log of run {self.run} in {self._store.url} was deleted"
        except StoreError as error:
            _log.debug("run %s: whether its log is still the damaged one is not known: %s", self.run, error)

    def _begin_again(self) -> None:
        """Read the log from its start, by a scheduler that hears everything: an older version went on with it."""
        with self.lock:
            self.index = RunIndex(self.run, hears_all=True)
            self._follower = LogFollower(self._store, self.run)
            self._reading = True

    def _look_around(self) -> None:
        if self.index.view.finished:
            return
        try:
            self._beats.look()
            self._read_forecast()
        except CerebroError as error:
            _log.debug("run %s: no sign of its driver or forecast this time: %s", self.run, error)

    def _read_forecast(self) -> None:
        names = self._store.list(paths.forecasts(self.run))
        newest = max(names, default="")
        if newest == self._forecast_name:
            return
        if not newest:  # another driver goes on, and what was foreseen before is void
            with self.lock:
                self.forecast, self._forecast_name = None, ""
            return
        try:
            data = self._store.read(newest)
            found = json.loads(data) if len(data) <= _LARGEST_FORECAST else None
        except (NotFoundInStore, ValueError, RecursionError):  # the next one is there by now, or it is none
            return
        if isinstance(found, dict):
            with self.lock:
                self.forecast, self._forecast_name = plain(found), newest


class _Beginning:
    """The first segment of a log. No driver ever changes or deletes it: another one belongs to another log."""

    def __init__(self, store: Store, run: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._name = paths.log_segment(run, 0)
        self._clock = clock
        self._looked = float("-inf")
        self._digest: bytes | None = None
        """Of what was there at the first look, if only of nothing: a copy by hand may lack the first segment."""

    def is_another(self, author: str | None) -> bool:
        """Whether there is another log than at the first look, or another than this author began.

        Between two looks some seconds pass: meanwhile it is not known, and False. Raises StoreError if the store fails.
        """
        now = self._clock()
        if now - self._looked < _BEATS_EVERY:
            return False
        self._looked = now
        data = self._read()
        digest = hashlib.sha256(data).digest()
        if self._digest is None:
            self._digest = digest
            return author is not None and read_author(data) not in (author, _NOBODY)
        return digest != self._digest

    def _read(self) -> bytes:
        try:
            return self._store.read(self._name)
        except NotFoundInStore:
            return b""


class _Beats:
    """The signs of life of a run's drivers: a driver is alive while new ones come."""

    def __init__(self, store: Store, run: str, clock: Callable[[], float]) -> None:
        self._store = store
        self._folder = paths.beats(run)
        self._clock = clock
        self._looked = float("-inf")
        self._names: frozenset[str] = frozenset()
        self._changed = float("-inf")

    @property
    def driver(self) -> Driver:
        """Whether there is a driver, as far as can be seen."""
        if not self._names:
            return "gone"
        return "alive" if self._looked - self._changed < PATIENCE else "silent"

    def look(self) -> None:
        """Look for signs of life, unless that was just done."""
        now = self._clock()
        if now - self._looked < _BEATS_EVERY:
            return
        names = frozenset(self._store.list(self._folder))
        if names - self._names:
            self._changed = now
        self._names, self._looked = names, now
