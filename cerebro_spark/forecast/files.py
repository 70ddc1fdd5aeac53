"""Forecasts and questions about them in a store. No pickle is ever opened here.

A question is a command that is not given: "what if I stopped t7?". Its answer is in every forecast that is made while
the question lies there. Forecasts are those of one driver: the next one deletes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cerebro_spark.commands import Command
from cerebro_spark.errors import AlreadyInStore, CerebroError, NotFoundInStore
from cerebro_spark.forecast.values import Forecast, from_json, to_json
from cerebro_spark.inbox import read_command
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

_MOST_QUESTIONS = 16
_TRIES = 5


def read_latest(store: Store, run: str) -> Forecast | None:
    """Return the newest forecast of a run; None if there is none.

    Args:
        store: The store of the run.
        run: The id of the run.

    Raises:
        ConfigurationError: If the newest file is no forecast.
    """
    for _ in range(_TRIES):
        names = sorted(store.list(paths.forecasts(run)))
        if not names:
            return None
        try:
            return from_json(store.read(names[-1]))
        except NotFoundInStore:
            continue  # a newer one has taken its place
    return None


class ForecastFolder:
    """The forecasts of one run, as its driver and the process see them that makes them.

    Args:
        store: The store of the run.
        run: The id of the run.
        clock: The wall clock, in nanoseconds since 1970.
        lasts: Seconds after which a question is dropped: who still wants to know asks again.
    """

    def __init__(self, store: Store, run: str, clock: Callable[[], int] = time.time_ns, lasts: float = 600.0) -> None:
        self._store = store
        self._run = run
        self._clock = clock
        self._lasts = lasts
        self._number: int | None = None

    def clear(self) -> None:
        """Delete what an earlier driver foresaw, and old questions: nobody may be there to answer them."""
        self._store.delete(paths.forecasts(self._run))
        self.questions()

    def write(self, forecast: Forecast) -> None:
        """Make a forecast the newest one, and delete those before it."""
        data = to_json(forecast).encode()
        for _ in range(_TRIES):
            earlier = self._store.list(paths.forecasts(self._run))
            number = max([self._number or 0, *map(_number, earlier)]) + 1
            try:
                self._store.write(paths.forecast(self._run, number), data)
            except AlreadyInStore:
                continue  # the process of an earlier driver was quicker
            self._number = number
            for name in earlier:
                self._store.delete(name)
            return

    def questions(self) -> list[Command]:
        """Return what is asked, the newest questions last; old ones, and what is none, is deleted."""
        found: list[Command] = []
        for name in sorted(self._store.list(paths.questions(self._run))):
            command = None if self._is_old(name) else self._read(name)
            if command is None:
                self._store.delete(name)
            else:
                found.append(command)
        return _newest(found)

    def _read(self, name: str) -> Command | None:
        try:
            return read_command(self._store.read(name))
        except CerebroError:
            return None

    def _is_old(self, name: str) -> bool:
        question = paths.read_question(name)
        return question is None or self._clock() - question.sent > self._lasts * 1e9


def _newest(commands: Sequence[Command]) -> list[Command]:
    return list(commands)[-_MOST_QUESTIONS:]


def _number(name: str) -> int:
    """Return the number of a forecast by its name; 0 for another file.

    >>> _number("runs/r1/forecasts/000000000007.json")
    7
    """
    digits = name.rpartition("/")[2].removesuffix(".json")
    return int(digits) if digits.isdecimal() else 0
