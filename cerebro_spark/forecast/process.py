"""The process that makes the forecasts of one run, beside its driver.

It gets its spec through standard input, then a byte or more for every turn of the run. When its standard input closes
the driver is gone, and it ends. It reads the log from the store and writes forecasts beside it; the driver waits for
nothing of that. What it cannot find out it says in a forecast, with the reason.

The search comes from the driver as a pickle, or from the recipe beside the log if its digest is the one in the log.
Nobody but a driver and its own process may open these.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cerebro_spark import recipe as recipes
from cerebro_spark.errors import CerebroError, EventLogError, StoreError
from cerebro_spark.events import Event, RunStarted
from cerebro_spark.following import LogFollower
from cerebro_spark.forecast.continuation import Continuation
from cerebro_spark.forecast.copies import in_copies
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.priority import give_way
from cerebro_spark.forecast.refresh import Refresh
from cerebro_spark.forecast.remaining import SIMULATIONS, Forecaster
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.search import Search
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn

_LENGTH = struct.Struct(">Q")
_LONG = 2.0
"""Seconds after which the first simulation is told of, if nothing was said before."""


@dataclass(frozen=True, slots=True)
class ForecastSpec:
    """What the process is given.

    Args:
        store: The store of the run.
        run: The id of the run.
        search: The pickle of the run's search before it was asked anything; None to take it from the recipe.
        refresh: When forecasts are made.
        simulations: How many simulations make an interval.
        patience: Seconds after which no more simulations are begun than there must be.
        trials: How many trials at most it is said of what stopping them would change, without being asked.
    """

    store: Store
    run: str
    search: bytes | None = None
    refresh: Refresh = field(default_factory=Refresh)
    simulations: int = SIMULATIONS
    patience: float = 30.0
    trials: int = 8


class DriverGone(Exception):
    """The driver has ended, or wants no more forecasts."""


class DriverLine:
    """What the driver's process says, through a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unread = b""

    def receive_spec(self) -> ForecastSpec:
        """Wait for the spec."""
        (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        spec = pickle.loads(self._read_exactly(length))
        assert isinstance(spec, ForecastSpec)
        return spec

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self.descriptor, min(size - len(data), 1 << 20))
            if not part:
                raise DriverGone
            data += part
        return data

    def look(self, seconds: float | None = 0.0) -> None:
        """Wait for news so long, for ever if None; raises DriverGone if there will be none."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if ready:
            news = os.read(self.descriptor, 1 << 16)
            if not news:
                raise DriverGone
            self._unread += news

    def take(self) -> bytes:
        """Return the news that have come."""
        news, self._unread = self._unread, b""
        return news


def pack_spec(spec: ForecastSpec) -> bytes:
    """Return a spec as `DriverLine.receive_spec` reads it."""
    data = pickle.dumps(spec)
    return _LENGTH.pack(len(data)) + data


class ForecastingProcess:
    """Makes forecasts until the driver is gone.

    Args:
        spec: What to do.
        line: What the driver's process says.
        clock: Seconds that never go back.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        spec: ForecastSpec,
        line: DriverLine,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._spec = spec
        self._line = line
        self._clock = clock
        self._wall_clock = wall_clock
        self._folder = ForecastFolder(spec.store, spec.run)
        self._log = LogFollower(spec.store, spec.run)
        self._events: list[Event] = []
        self._last: tuple[float, float] | None = None
        """The last event's time by the run, and by the wall clock."""
        self._asked: set[str] = set()
        self._said = False
        self._looked_at = 0.0

    def run(self) -> None:
        """Make forecasts whenever one is due."""
        refresh = self._spec.refresh
        while True:
            wait = refresh.wait(self._clock())
            self._line.look(wait if wait is None else min(wait, refresh.seconds))
            refresh.note(self._line.take(), self._clock())
            self._look_for_questions(refresh)
            if refresh.due(self._clock()):
                began = self._clock()
                self._make()
                refresh.made(self._clock(), self._clock() - began)

    def _look_for_questions(self, refresh: Refresh) -> None:
        """Look whether somebody asks something new, now and then: a listing costs something."""
        if self._clock() - self._looked_at < refresh.seconds or not self._events:
            return
        self._looked_at = self._clock()
        try:
            asked = {command.id for command in self._folder.questions()}
        except StoreError:
            return  # it is looked again soon
        if asked - self._asked:
            refresh.ask()
        self._asked = asked

    def _make(self) -> None:
        """Make one forecast, and write it. While the store fails there is none: the next one may succeed."""
        with contextlib.suppress(StoreError):
            made = self._next()
            if made is not None:
                self._write(made)

    def _write(self, made: Forecast) -> None:
        self._folder.write(made)
        self._said = True

    def _next(self) -> Forecast | None:
        """Return the forecast from what the log has by now; None if it has nothing yet."""
        try:
            while turns := self._log.read():
                for turn in turns:
                    self._take(turn)
                self._line.look()
        except EventLogError as error:
            return Forecast(self._wall_clock(), len(self._events), reason=str(error))
        return self._forecast() if self._events else None

    def _take(self, turn: Turn) -> None:
        self._events += turn.events
        at = max(event.at for event in turn.events)
        self._last = at, self._wall_clock() if turn.wall_clock is None else turn.wall_clock

    def _forecast(self) -> Forecast:
        assert self._last is not None
        last_at, last_clock = self._last
        wall = self._wall_clock()
        now = last_at + max(0.0, wall - last_clock)

        def by_the_wall(made: Forecast) -> Forecast:
            return replace(made.shifted(wall - now), made_at=wall)

        try:
            return by_the_wall(self._simulate(now, lambda made: self._write(by_the_wall(made))))
        except StoreError:
            raise
        except CerebroError as error:
            return by_the_wall(Forecast(now, len(self._events), reason=_in_words(error)))

    def _simulate(self, now: float, write: Callable[[Forecast], None]) -> Forecast:
        """Return the forecast; the first one that takes long is written early, as far as it is known."""
        started = self._clock()

        def early(made: Forecast) -> None:
            if not self._said and self._clock() - started > _LONG:
                write(made)

        run = Continuation(self._events, self._search(), now, self._line.look)
        gc.freeze()  # a copy would touch, and so copy, all that is looked through for garbage
        simulate = in_copies(run, self._line.look, [self._line.descriptor])
        spec = self._spec
        hurry = lambda: self._clock() - started > spec.patience  # noqa: E731 (a name helps to read the next line)
        forecaster = Forecaster(run, simulate, len(self._events), spec.simulations, hurry, early)
        made = forecaster.forecast(self._folder.questions(), run.likely_questions(spec.trials))
        gc.unfreeze()
        return made

    def _search(self) -> Search:
        """Return the search of the run, as it was before it was asked anything."""
        spec = self._spec
        if spec.search is not None:
            search = pickle.loads(spec.search)
            assert isinstance(search, Search)
            return search
        start = self._events[0]
        if not isinstance(start, RunStarted) or not start.recipe:
            raise EventLogError("the run has no recipe that says what its search is")
        return recipes.read(spec.store, spec.run, start.recipe).search


def _in_words(error: CerebroError) -> str:
    """Return why there is no forecast."""
    if isinstance(error, EventLogError) and "the search now says" in str(error):
        return "what the search of this run will ask for is known to its driver alone"
    return str(error)


def main(nice: int) -> None:
    """Make the forecasts of the run that standard input names.

    Args:
        nice: By how much the priority of this process is lower than that of others.
    """
    give_way(nice)
    line = DriverLine(sys.stdin.fileno())
    try:
        ForecastingProcess(line.receive_spec(), line).run()
    except DriverGone:
        return
