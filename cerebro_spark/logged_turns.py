"""Turns from the lines of an event log. It reads values only: no pickle is ever opened, and nothing is imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cerebro_spark.codec import from_plain
from cerebro_spark.errors import CerebroError, EventLogError
from cerebro_spark.events import EVENTS, Event
from cerebro_spark.segments import Line
from cerebro_spark.turns import Outcome, Turn, outcome_from_plain

_BESIDE = ("n", "by", "clock", "outcome")
"""What a line says beside its event."""
_STRANGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading JSON of another shape than expected may raise."""


def group_turns(lines: Iterable[tuple[int, Line]], folder: str) -> Iterator[Turn]:
    """Lines as turns, each of which begins with a line that says who wrote it.

    Args:
        lines: The lines of a log with their numbers, in order.
        folder: The folder of the log, for messages.

    Raises:
        EventLogError: A line is no event that this version knows.
    """
    turn: list[tuple[int, Line]] = []
    for number, line in lines:
        if turn and "by" in line:
            yield _turn(turn, folder)
            turn = []
        turn.append((number, line))
    if turn:
        yield _turn(turn, folder)


def read_event(number: int, line: Line, folder: str) -> Event:
    """The event of one line of the log in `folder`. Raises EventLogError if it is none that this version knows."""
    try:
        fields = line.copy()
        for name in _BESIDE:
            fields.pop(name, None)
        event: Event = from_plain(EVENTS[fields.pop("event")], fields)
    except (CerebroError, *_STRANGE) as error:
        raise _unreadable(number, line, error, folder) from error
    return event


def _turn(lines: Sequence[tuple[int, Line]], folder: str) -> Turn:
    events = [read_event(number, line, folder) for number, line in lines]
    recorded = all("outcome" in line for _, line in lines)
    outcomes = [_outcome(number, line, folder) for number, line in lines] if recorded else []
    clock = lines[0][1].get("clock")
    return Turn(events, outcomes, clock if isinstance(clock, float) else None)


def _outcome(number: int, line: Line, folder: str) -> Outcome:
    try:
        return outcome_from_plain(line["outcome"])
    except (CerebroError, *_STRANGE) as error:
        raise _unreadable(number, line["outcome"], error, folder) from error


def _unreadable(number: int, found: Any, error: Exception, folder: str) -> EventLogError:
    said = str(error) if isinstance(error, CerebroError) else f"{type(error).__name__}: {error}"
    return EventLogError(
        f"event {number} of the log {folder} cannot be read: {json.dumps(found)[:80]!r} is not an event that"
        f" this version knows ({said})"
    )
