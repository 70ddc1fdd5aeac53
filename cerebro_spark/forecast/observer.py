"""The driver's part of forecasts: it starts the process that makes them, and tells it what is new. It never waits."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import cloudpickle

from cerebro_spark.events import (
    CommandAnswered,
    Event,
    RunStarted,
    TrialStopped,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.priority import ENVIRONMENT, LOW
from cerebro_spark.forecast.process import ForecastSpec, pack_spec
from cerebro_spark.forecast.refresh import CHANGED, UNITS, Refresh
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.search import Search
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn

_log = logging.getLogger(__name__)
SWITCH = "CEREBRO_SPARK_FORECASTS"
"""The environment variable of a driver that makes no forecasts if it is "off"."""
_SECONDS_TO_END = 5.0
_CHANGES = (CommandAnswered, TrialStopped, WorkerJoined, WorkerLost)


class LiveForecasts:
    """An observer of a run: while it lasts, forecasts of its end are written beside its log.

    A process of low priority makes them, at most one at a time. Whatever happens to it, the run goes on.

    Args:
        store: The store of the run.
        search: The search of the run before it is asked anything; what it is asked later does not matter. None to let
            the process take it from the recipe beside the log. One that is unforeseeable has a forecast that says why.
        run: The id of the run. Defaults to None: that of the first turn. It must be given for one that is resumed.
        refresh: When forecasts are made; by default at most every 5 seconds.
        nice: By how much the priority of the process is lower, 0 to 19. Defaults to 10.
        after: Seconds before which there are no forecasts, and no process: short runs need none.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        store: Store,
        search: Search | None = None,
        run: str | None = None,
        refresh: Refresh | None = None,
        nice: int = LOW,
        after: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run = run or ""
        self._unknown = "" if search is None else search.unforeseeable
        self._search = None if search is None or self._unknown else cloudpickle.dumps(search)
        self._refresh = refresh or Refresh()
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: threading.Thread | None = None
        self._given = threading.Event()
        self._ended = False
        self._nice = nice
        self._clock = clock
        self._not_before = math.inf if os.environ.get(SWITCH) == "off" else clock() + after

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, turn: Turn) -> None:
        """Tell the process of a turn; the first one that is late enough starts it."""
        for event in turn.events:
            if isinstance(event, RunStarted):
                self._run = event.run
        if self._starting is None and self._clock() >= self._not_before and self._run:
            self._start()
        news = _news(turn.events)
        if news and self._given.is_set() and not self._ended:
            self._say(news)

    def close(self) -> None:
        """End the process. It is not asked for a last forecast."""
        self._ended = True
        if self._starting is not None:
            self._starting.join(_SECONDS_TO_END)
        if self._process is None:
            return
        self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a run does not wait for what it does not need
            self._process.wait(_SECONDS_TO_END)

    def forget_earlier(self) -> None:
        """Delete what an earlier driver of the run foresaw: it is wrong by now."""
        try:
            ForecastFolder(self._store, self._run).clear()
        except OSError as error:
            _log.warning("forecasts of an earlier driver of run %s stay until there is a new one: %s", self._run, error)

    def _start(self) -> None:
        self._starting = threading.Thread(target=self._begin, name="forecasts", daemon=True)
        self._starting.start()

    def _begin(self) -> None:
        """Do what takes a moment, in a thread of its own."""
        try:
            if self._unknown:
                made = Forecast(time.time(), events=0, reason=self._unknown)
                ForecastFolder(self._store, self._run).write(made)
            else:
                self._launch()
        except Exception as error:  # nobody looks at what this thread ends with
            if not self._ended:
                _log.warning("there will be no forecasts: %r", error)
            self._ended = True

    def _launch(self) -> None:
        """Start the process, and hand over its spec."""
        data = pack_spec(ForecastSpec(self._store, self._run, self._search, self._refresh))
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "cerebro_spark.forecast", str(self._nice)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is for the driver, which then ends this process
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert process.stdin is not None
        process.stdin.write(data + UNITS)  # what was done before is news to it
        process.stdin.flush()
        os.set_blocking(process.stdin.fileno(), False)
        self._given.set()
        if self._ended:  # nobody waited for this
            process.kill()

    def _say(self, news: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), news)
        except BlockingIOError:
            return  # it has more news than it can read: there is no need for these
        except (OSError, ValueError):
            self._ended = True
            _log.warning("the process that makes forecasts has ended (code %s)", self._process.poll())


def _news(events: Sequence[Event]) -> bytes:
    """Return what a turn means for forecasts.

    >>> _news([TrialStopped(1.0, "t0"), WorkerLost(1.0, "w0")]), _news([])
    (b'c', b'')
    """
    done = sum(isinstance(event, UnitFinished) for event in events)
    return UNITS * done + (CHANGED if any(isinstance(event, _CHANGES) for event in events) else b"")
