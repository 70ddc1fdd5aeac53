"""The segments of an event log in a store: which there are, and which of them count. It writes nothing.

A segment is a write-once blob of numbered JSON lines. Its name has the number of its first event and the *term* of the
driver that wrote it. In its term only this driver writes events, each segment under the name that follows the last one.
So at any moment one name is contested: the next name of the newest term. The first write to it decides. If the driver
writes it, the log goes on. If another driver writes a *seal* there, the term ends, and the other driver's term begins
with that event. So a seal fixes for ever what a term holds: all events that were written before it. A driver whose term
is sealed finds the name taken at its next write, however late that is.

Names become free only when small segments are joined: names of the driver's own term, never its next one. The joined
segment is written before the first name is freed, and stays. So a seal that a slow driver writes under a freed name is
void, and can be recognized: a joined segment of its term has that event. A reader that sees a seal lists the log once
more, since one listing may show a late segment and miss an early one. The first name of a log is never freed.

It follows, on a store that keeps its contract (a name is written once; what is written is in every later listing):
  * what a driver has written counts for ever: no valid seal can come before it. A driver whose seal is valid has read
    all of it, or reads it before it writes;
  * of several drivers only that of the newest term can write, and the others learn of it by their next write;
  * what a reader has once seen never changes: it follows the seals, and each of them ends its term at one event.

Logs of older releases have no terms: they are the term 0. A log may be cut at any byte and is still read up to the last
whole event: each line has its number, and a line that was cut does not parse. A segment at the end without a whole line
ends its term, as a seal does: no driver can have acted on it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from cerebro_spark.errors import EventLogError, NotFoundInStore
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import Segment


class LogPosition(NamedTuple):
    """A position in a log: the term, and the number of the next event."""

    term: int
    number: int


START = LogPosition(0, 0)
Line = dict[str, Any]
"""A line of a log as JSON: an event, its number `n`, and who wrote it and what came of it."""
_TRIES = 5


class SegmentReader:
    """Reads a log from a position to its end; `place` is the present position, `last` the name that was read last."""

    def __init__(self, store: Store, run: str, place: LogPosition = START) -> None:
        self._store = store
        self._folder = paths.log_folder(run)
        self.place = place
        self.last: str | None = None
        self._through = -1
        """Where the last commit of this term begins that was read: what ends there or before has nothing new."""

    def lines(self) -> Iterator[tuple[int, Line]]:
        """All whole lines from here on with their numbers, in order; called again, those that have come since then.

        Raises EventLogError where one is missing before the end.
        """
        listed = self._list()
        while True:
            again = yield from self._read_term(listed)
            if again is None:
                return
            listed = again

    def _read_term(self, listed: list[Segment]) -> Generator[tuple[int, Line], None, list[Segment] | None]:
        """What these segments hold of the term; returns the listing to go on with, or None at the end of the log."""
        blocked = False
        for segment in self._waiting(listed):
            if segment.first > self.place.number:
                return self._list_again(listed, segment)
            data = self._read(segment)
            if data is None:
                return self._list()
            self.last = segment.name
            if read_seal(data) is not None:
                if segment.first < self.place.number:
                    continue
                return self._pass_seal()
            blocked = segment.first == self.place.number
            for number, line in whole_lines(data, self.place.number):
                if number > self.place.number:
                    raise self._missing_event(segment.name, number)
                if number == self.place.number:
                    self.place = self.place._replace(number=number + 1)
                    blocked = False
                    yield number, line
            self._through = max(self._through, segment.last)
        if not blocked:
            return None
        self._next_term()
        return listed

    def _next_term(self) -> None:
        self.place = self.place._replace(term=self.place.term + 1)
        self._through = -1

    def _waiting(self, listed: list[Segment]) -> list[Segment]:
        """Return the segments of this term from the next event on; of those with the same start, the longest first."""
        mine = [segment for segment in listed if segment.term == self.place.term and segment.last > self._through]
        begun = max((segment.first for segment in mine if segment.first <= self.place.number), default=0)
        return sorted((s for s in mine if s.last >= begun), key=lambda s: (s.first, -s.last))

    def _pass_seal(self) -> list[Segment]:
        """End the term that is sealed, unless a new listing shows that the seal is void."""
        listed = self._list()
        if not is_covered(listed, self.place):
            self._next_term()
        return listed

    def _read(self, segment: Segment) -> bytes | None:
        """Return a segment; None if it was joined to others since it was listed.

        A listing may still show a name that is freed while it is made, or a void seal in its place.
        """
        for _ in range(_TRIES):
            try:
                return self._store.read(segment.name)
            except NotFoundInStore as error:
                gone = error
                if segment not in self._list():
                    return None
        raise gone

    def _list_again(self, earlier: list[Segment], later: Segment) -> list[Segment]:
        """List again for a missing segment: it was joined meanwhile, or was written while the listing was made.

        A listing takes time, and may have neither the segment nor the joined one.
        """
        for _ in range(_TRIES):
            listed = self._list()
            fresh = (segment for segment in listed if segment not in earlier and segment.term == self.place.term)
            if any(segment.first <= self.place.number for segment in fresh):
                return listed
        raise self._missing_event(later.name, later.first)

    def _list(self) -> list[Segment]:
        return list_segments(self._store, self._folder)

    def _missing_event(self, name: str, found: int) -> EventLogError:
        return EventLogError(f"the log {self._folder} lacks event {self.place.number}: {name} goes on with {found}")


def list_segments(store: Store, folder: str) -> list[Segment]:
    """Return all segments of a log, in no order. Raises EventLogError for a file that is none."""
    return [_segment(name) for name in store.list(folder)]


def is_covered(listed: Sequence[Segment], place: LogPosition) -> bool:
    """Whether joined segments have this event of this term: then its own name was freed, and no longer counts."""
    mine = (segment for segment in listed if segment.term == place.term)
    return any(segment.first <= place.number <= segment.last for segment in mine if segment.joined)


def make_seal(number: int, writer: str) -> bytes:
    """Return the bytes that end a term before event `number`. The writer's name makes them unique."""
    return f'{{"by":{json.dumps(writer)},"n":{number},"sealed":true}}\n'.encode()


def read_seal(data: bytes) -> str | None:
    """Return who sealed a term with these bytes; None if they are no seal."""
    body = _body(data.split(b"\n")[0])
    return str(body.get("by")) if body.get("sealed") is True else None


def read_author(data: bytes) -> str:
    """Return who wrote a segment, as far as it says so."""
    return str(_body(data.split(b"\n")[0]).get("by", "a driver without a name"))


def sign(line: str, writer: str, clock: float | None = None) -> str:
    """A line that says who wrote it, and when: the first one of a turn."""
    when = "" if clock is None else f'"clock":{clock:.3f},'
    return f'{{"by":{json.dumps(writer)},{when}{line[1:]}'


def whole_lines(segment: bytes, first: int) -> Iterator[tuple[int, Line]]:
    """The lines of a segment that are whole, from event `first` on, with their numbers. One is read at a time."""
    for raw in segment.split(b"\n"):
        body = _body(raw)
        if isinstance(body.get("n"), int) and body["n"] >= first:
            yield body["n"], body


def _body(raw: bytes) -> Line:
    try:
        body = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _segment(name: str) -> Segment:
    found = paths.segment(name)
    if found is None:
        raise EventLogError(f"{name} does not belong into an event log")
    return found
