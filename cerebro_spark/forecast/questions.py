"""Asks what a command would change, and waits for the answer. The command is not given."""

from __future__ import annotations

import time
from collections.abc import Callable

from cerebro_spark.commands import Command
from cerebro_spark.errors import NoAnswerYet
from cerebro_spark.forecast.files import read_latest
from cerebro_spark.forecast.values import Forecast, label_of
from cerebro_spark.mailbox import ask
from cerebro_spark.store.base import Store

EVERY = 0.5
"""Seconds from one look at the newest forecast to the next."""


def wait_for_answer(
    store: Store,
    run: str,
    command: Command,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Forecast:
    """Ask, and return the first answer to come; the question is withdrawn then, or when time is up.

    Args:
        store: The store of the run.
        run: The id of the run.
        command: The command.
        timeout: The seconds to wait at most.
        clock: Seconds that never go back.
        sleep: Waits for some seconds.

    Raises:
        NoAnswerYet: No answer came in time.
    """
    before = read_latest(store, run)
    question = ask(store, run, command)
    began = clock()
    try:
        while True:
            newest = read_latest(store, run)
            if newest is not None and newest != before and label_of(command) in newest.what_if:
                return newest.what_if[label_of(command)]
            if clock() - began >= timeout:
                raise NoAnswerYet(
                    f"{label_of(command)!r} has no forecast after {timeout:g} s: {_why(newest)}. Forecasts are made by"
                    " the driver of a run that has gone on for some seconds"
                )
            sleep(EVERY)
    finally:
        store.delete(question)


def _why(newest: Forecast | None) -> str:
    if newest is None:
        return "the run has no forecast at all"
    return newest.reason or "no forecast was made since it was asked for"
