"""A run's event log as it lies in a store: which segments there are, and which of them count. It writes nothing.

A segment is a write-once blob of numbered JSON lines, named by the number of its first event and by the *term* of the
driver that wrote it: a driver's time in office. In its term a driver alone writes events, each segment under the name
that follows its last one, so at every moment one name is contested, the next of the newest term. Whoever writes it
decides: the driver, how the log goes on; or another one, who writes a *seal* there, and whose term is the next, from
that event on. So a seal fixes for ever what a term holds: events that were written before it, all of them; and a
driver whose term is sealed finds the name taken when it writes, whenever it wakes.

Only joining small segments frees names: those of a term's driver, never its next one. The joined segment is written
before the first name is freed, and stays. So a seal that a slow newcomer writes under a freed name is void, and known
by it: a joined segment of its term holds that event. Whoever sees a seal lists once more, since one listing may show
what came late, and not what came early. The very first name of a log, under which no seal was before, is never freed.

It follows, on a store that keeps its contract (a name is written once; what is written is seen by every later listing):
  * what a driver has written counts for ever: no valid seal can come before it. A newcomer whose seal is valid has read
    all of it, or reads it before it writes;
  * of several drivers only that of the newest term can write, and the others learn of it by their next write;
  * what a reader has once seen never changes: it follows the seals, and each of them ends its term at one event.

Logs without terms are those of older releases: they are the term 0. The log may be cut at any byte and still reads up
to the last whole event: each line carries its number, and a line that was cut does not parse. A segment at the end
without a whole line ends its term, as a seal does: nobody can have acted on it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from cerebro_spark.errors import EventLogError, NotFoundInStore
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import Segment


class Place(NamedTuple):
    """Where a log goes on: in which term, and with which event."""

    term: int
    number: int


START = Place(0, 0)
Line = dict[str, Any]
"""A line of a log as JSON: an event, its number `n`, and who wrote it and what came of it."""
_TRIES = 5


class Walk:
    """Reads a log from one place on to its end; `place` is where it has got to, `last` the name that it read last."""

    def __init__(self, store: Store, run: str, place: Place = START) -> None:
        self._store = store
        self._folder = paths.log_folder(run)
        self.place = place
        self.last: str | None = None

    def lines(self) -> Iterator[tuple[int, Line]]:
        """All whole lines with their numbers, in order. Raises EventLogError where one is missing before the end."""
        listed = self._list()
        while True:
            again = yield from self._term(listed)
            if again is None:
                return
            listed = again

    def _term(self, listed: list[Segment]) -> Generator[tuple[int, Line], None, list[Segment] | None]:
        """What these segments hold of the term; returns the listing to go on with, or None at the end of the log."""
        blocked = False
        for segment in self._waiting(listed):
            if segment.first > self.place.number:
                return self._listed_again(listed, segment)
            data = self._read(segment)
            if data is None:
                return self._list()
            self.last = segment.name
            if sealed_by(data) is not None:
                if segment.first < self.place.number:
                    continue
                return self._behind_seal()
            blocked = segment.first == self.place.number
            for number, line in whole_lines(data, self.place.number):
                if number > self.place.number:
                    raise self._hole(segment.name, number)
                if number == self.place.number:
                    self.place = self.place._replace(number=number + 1)
                    blocked = False
                    yield number, line
        if not blocked:
            return None
        self.place = self.place._replace(term=self.place.term + 1)
        return listed

    def _waiting(self, listed: list[Segment]) -> list[Segment]:
        """Those of this term that may hold the next event, or one after it; of some that start alike, longest first."""
        mine = [segment for segment in listed if segment.term == self.place.term]
        begun = max((segment.first for segment in mine if segment.first <= self.place.number), default=0)
        return sorted((s for s in mine if s.last >= begun), key=lambda s: (s.first, -s.last))

    def _behind_seal(self) -> list[Segment]:
        """A seal ends its term, unless what a listing begun by now shows makes it void."""
        listed = self._list()
        if not covered(listed, self.place):
            self.place = self.place._replace(term=self.place.term + 1)
        return listed

    def _read(self, segment: Segment) -> bytes | None:
        """None for a segment that has been joined to others since it was listed.

        A listing may still show what vanishes while it is made, or a void seal in its place.
        """
        for _ in range(_TRIES):
            try:
                return self._store.read(segment.name)
            except NotFoundInStore as error:
                gone = error
                if segment not in self._list():
                    return None
        raise gone

    def _listed_again(self, earlier: list[Segment], later: Segment) -> list[Segment]:
        """A segment that seems never to have been was joined meanwhile, or came while the listing was made.

        A listing takes time, and may see neither it nor what it became.
        """
        for _ in range(_TRIES):
            listed = self._list()
            fresh = (segment for segment in listed if segment not in earlier and segment.term == self.place.term)
            if any(segment.first <= self.place.number for segment in fresh):
                return listed
        raise self._hole(later.name, later.first)

    def _list(self) -> list[Segment]:
        return segments(self._store, self._folder)

    def _hole(self, name: str, found: int) -> EventLogError:
        return EventLogError(f"the log {self._folder} lacks event {self.place.number}: {name} goes on with {found}")


def segments(store: Store, folder: str) -> list[Segment]:
    """All segments of a log, in no order. Raises EventLogError for a file that is none."""
    return [_segment(name) for name in store.list(folder)]


def covered(listed: Sequence[Segment], place: Place) -> bool:
    """Whether joined segments hold this event in this term: then its own name was freed, and means nothing any more."""
    mine = (segment for segment in listed if segment.term == place.term)
    return any(segment.first <= place.number <= segment.last for segment in mine if segment.joined)


def seal(number: int, writer: str) -> bytes:
    """What ends a term before event `number`. The signature makes it unlike what anybody else may write there."""
    return f'{{"by":{json.dumps(writer)},"n":{number},"sealed":true}}\n'.encode()


def sealed_by(data: bytes) -> str | None:
    """Who sealed a term with these bytes; None if they are no seal."""
    body = _body(data.split(b"\n")[0])
    return str(body.get("by")) if body.get("sealed") is True else None


def author(data: bytes) -> str:
    """Who wrote a segment, as far as it says so."""
    return str(_body(data.split(b"\n")[0]).get("by", "somebody who left no name"))


def signed(line: str, writer: str, clock: float | None = None) -> str:
    """A line that says who wrote it, and when: the first one of a turn."""
    when = "" if clock is None else f'"clock":{clock:.3f},'
    return f'{{"by":{json.dumps(writer)},{when}{line[1:]}'


def whole_lines(segment: bytes, first: int) -> list[tuple[int, Line]]:
    """The lines of a segment that are whole, from event `first` on, with their numbers."""
    bodies = [_body(raw) for raw in segment.split(b"\n")]
    return [(body["n"], body) for body in bodies if isinstance(body.get("n"), int) and body["n"] >= first]


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
