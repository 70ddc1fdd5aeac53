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
    why_none: Callable[[], str] = lambda: "",
) -> Forecast:
    """Ask, and return the first answer to come; the question is withdrawn then, or when no answer will come in time.

    Args:
        store: The store of the run.
        run: The id of the run.
        command: The command.
        timeout: The seconds to wait at most.
        clock: Seconds that never go back.
        sleep: Waits for some seconds.
        why_none: Says why no answer will come as things stand; "" if one may. By default one may.

    Raises:
        NoAnswerYet: No answer came in time, or none will come.
    """
    label = label_of(command)
    before = read_latest(store, run)
    _check_hope(label, before, why_none())
    question = ask(store, run, command)
    began = clock()
    try:
        while True:
            newest = read_latest(store, run)
            if newest is not None and newest != before and label in newest.what_if:
                return newest.what_if[label]
            _check_hope(label, newest, why_none())
            if clock() - began >= timeout:
                raise NoAnswerYet(
                    f"{label!r} has no forecast after {timeout:g} s: {_why(newest)}. Forecasts are made by the driver"
                    " of a run that has gone on for some seconds"
                )
            sleep(EVERY)
    finally:
        store.delete(question)


def _check_hope(label: str, newest: Forecast | None, why_none: str) -> None:
    """Raise NoAnswerYet if it is known that no answer will come."""
    reason = why_none or (newest.reason if newest is not None and newest.hopeless else "")
    if reason:
        raise NoAnswerYet(f"{label!r} has no forecast: {reason}")


def _why(newest: Forecast | None) -> str:
    if newest is None:
        return "the run has no forecast at all"
    return newest.reason or "no forecast was made since it was asked for"
