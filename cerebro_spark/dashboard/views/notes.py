"""Events in words, and commands with their answers. PURE."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from cerebro_spark.dashboard.json_values import finite, plain
from cerebro_spark.dashboard.records import CommandRow, Note
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.words import command_words


def events(
    index: RunIndex, since: int = 0, limit: int = 200, before: int | None = None, trial: str = "", worker: str = ""
) -> dict[str, Any]:
    """The newest notable events, the newest last: those after a version, and before the one of a number.

    They are numbered by themselves, from 0: one event of the log may be worth several lines.
    """
    first = bisect_left(index.notes, since, key=_version)
    last = len(index.notes) if before is None else min(before, len(index.notes))
    found: list[tuple[int, Note]] = []
    place = last
    while place > first and len(found) <= limit:
        place -= 1
        note = index.notes[place]
        if (not trial or note.words.trial == trial) and (not worker or note.words.worker == worker):
            found.append((place, note))
    more = len(found) > limit
    return {"from": since, "events": [_note(*each) for each in reversed(found[:limit])], "more": more}


def commands(rows: Iterable[CommandRow]) -> list[dict[str, Any]]:
    """Commands with their answers."""
    return [_command(row) for row in rows]


def _version(note: Note) -> int:
    return note.version


def _note(number: int, note: Note) -> dict[str, Any]:
    return {
        "n": number,
        "at": finite(note.at),
        "clock": finite(note.clock),
        "kind": note.kind,
        "level": note.words.level,
        "text": note.words.text,
        "trial": note.words.trial or None,
        "worker": note.words.worker or None,
    }


def _command(row: CommandRow) -> dict[str, Any]:
    command = row.command
    return {
        "id": command.id,
        "verb": command.verb,
        "by": command.by,
        "trial": command.trial,
        "worker": command.worker,
        "workers": command.workers,
        "epochs": command.epochs,
        "params": plain(command.params),
        "warm_start": command.warm_start,
        "state": row.state,
        "reason": row.reason,
        "made": row.made or None,
        "sent_clock": finite(row.sent_clock),
        "at": finite(row.at),
        "clock": finite(row.clock),
        "answered_at": finite(row.answered_at),
        "words": command_words(command),
    }
