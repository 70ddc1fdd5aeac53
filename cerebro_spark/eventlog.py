"""The event log: append-only, write-once segments of JSON lines in a store. It never rewrites what was written.

A segment holds one turn of the engine: a line an event, with what the scheduler made of it (its `outcome`), of which
the first says when it was written (`clock`). What its name means, and why two drivers that believe they own
the same run cannot both go on with it, is in `segments.py`: whoever has read a log goes on from there, and from nowhere
else. The first line of a segment says who wrote it, so that no two drivers ever write the same bytes.

Many small segments are joined into one now and then, by a thread of their own: whoever appends waits for one write, and
never for the tidying up.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from cerebro_spark.codec import encode
from cerebro_spark.errors import AlreadyInStore, CerebroError, EventLogError, NotFoundInStore
from cerebro_spark.events import Event
from cerebro_spark.logged_turns import group_turns, read_event
from cerebro_spark.segments import (
    START,
    Line,
    LogPosition,
    SegmentReader,
    is_covered,
    list_segments,
    make_seal,
    read_author,
    sign,
)
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import Segment
from cerebro_spark.turns import Outcome, Turn, outcome_to_plain

_log = logging.getLogger(__name__)
_SEGMENTS_BEFORE_COMPACTION = 256
_SECONDS_TO_CLOSE = 30.0
_TRIES_TO_SEAL = 1000
_as_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class EventLog:
    """The log of one run in a store.

    >>> import tempfile
    >>> from cerebro_spark.events import WorkerLost
    >>> from cerebro_spark.store.local import LocalStore
    >>> log = EventLog(LocalStore(tempfile.mkdtemp()), "r1")
    >>> log.append(Turn([WorkerLost(1.0, "w0"), WorkerLost(2.0, "w1")]))
    >>> [event.worker for event in log.read()]
    ['w0', 'w1']
    """

    _pool: ThreadPoolExecutor | None = None

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._folder = paths.log_folder(run)
        self._writer = signature()
        self._place: LogPosition | None = None
        """Where the log goes on, as far as this driver has read it, or written it itself."""
        self._own = False
        self._segments: list[tuple[Segment, bytes]] = []
        """What this driver wrote and nobody has joined yet: it is small, and need not be read again."""
        self._joins: list[Future[None]] = []
        self._hurry = threading.Event()

    @property
    def writer(self) -> str:
        """Who writes here, as others will read it."""
        return self._writer

    def append(self, *turns: Turn) -> None:
        """Make turns last before anything is done about them; one write for all of them.

        Args:
            turns: The turns that follow what was read or written so far; those without events are left out.

        Raises:
            EventLogError: Another driver has gone on with the log since it was read; nothing is written.
        """
        turns = tuple(turn for turn in turns if turn.events)
        if not turns:
            return
        if not self._own:
            self._take(from_others=False)
        assert self._place is not None
        number = self._place.number
        lines = self._lines(turns, number)
        name, data = self._next_name(), "".join(lines).encode()
        try:
            self._store.write(name, data)
        except AlreadyInStore as error:
            raise self._taken(name) from error
        self._place = self._place._replace(number=number + len(lines))
        self._segments.append((Segment(name, self._place.term, number, number, joined=False), data))
        if len(self._segments) >= _SEGMENTS_BEFORE_COMPACTION:
            self._compact()

    def read(self) -> Iterator[Event]:
        """All whole events from the first on; what is appended afterwards follows the last of them, or collides.

        Raises:
            EventLogError: An event is missing or damaged before the end.
        """
        for number, line in self._walk():
            yield read_event(number, line, self._folder)

    def turns(self) -> Iterator[Turn]:
        """The same as `read`, as turns: with outcomes and wall clocks, where the log has them.

        Raises:
            EventLogError: An event is missing or damaged before the end.
        """
        return group_turns(self._walk(), self._folder)

    def claim(self) -> list[Turn]:
        """Make the log this driver's own, even if another writes it now; returns what has come since it was read.

        From then on no events of others follow, and the driver that wrote before learns of it by its next write.
        """
        return [] if self._own else self._take(from_others=True)

    def is_mine(self) -> bool:
        """Whether nobody has taken this driver's log over by now."""
        return self._own and not self._store.exists(self._next_name())

    def close(self, seconds: float = _SECONDS_TO_CLOSE) -> None:
        """Wait until segments that are being joined are tidied up, but not for ever: what stays does no harm.

        A closed log can be read and appended to as before.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if wait(self._joins, seconds).not_done:
            self._hurry.set()
            _log.warning("segments of the log %s are not tidied up after %g s; nothing is lost", self._folder, seconds)
        pool.shutdown(wait=False, cancel_futures=True)
        self._joins, self._hurry = [], threading.Event()

    def _lines(self, turns: Sequence[Turn], number: int) -> list[str]:
        lines: list[str] = []
        for turn in turns:
            first = len(lines)
            outcomes = turn.outcomes if turn.recorded else [None] * len(turn.events)
            for event, outcome in zip(turn.events, outcomes, strict=True):
                lines.append(_numbered(number + len(lines), event, outcome))
            lines[first] = sign(lines[first], self._writer, turn.wall_clock)
        return lines

    def _walk(self) -> Iterator[tuple[int, Line]]:
        walk = SegmentReader(self._store, self._run)
        yield from walk.lines()
        if self._place is None:
            self._place = walk.place

    def _take(self, from_others: bool) -> list[Turn]:
        """Begin a term of one's own where the log ends; an empty log is the one's who writes first.

        Where somebody is quicker again and again, each time the log has gone on.
        """
        if self._place is None and not from_others:
            self._place = self._end()
        walk = SegmentReader(self._store, self._run, self._place or START)
        unread: list[Turn] = []
        for _ in range(_TRIES_TO_SEAL):
            unread += group_turns(walk.lines(), self._folder)
            if unread and not from_others:
                raise self._taken(walk.last or self._folder)
            self._place = walk.place
            if walk.place == START or self._seal(walk.place):
                self._own = True
                return unread
        raise EventLogError(f"run {self._run} is under way and cannot be taken over: end the driver that writes it")

    def _end(self) -> LogPosition:
        walk = SegmentReader(self._store, self._run)
        for _ in walk.lines():
            pass
        return walk.place

    def _seal(self, place: LogPosition) -> bool:
        """End the newest term here, if its driver has not gone on; then the next one is ours."""
        try:
            self._store.write(self._next_name(), make_seal(place.number, self._writer))
        except AlreadyInStore:
            return False
        if is_covered(list_segments(self._store, self._folder), place):
            return False
        self._place = place._replace(term=place.term + 1)
        return True

    def _next_name(self) -> str:
        assert self._place is not None
        return paths.log_segment(self._run, self._place.number, term=self._place.term)

    def _taken(self, name: str) -> EventLogError:
        try:
            who = read_author(self._store.read(name))
        except NotFoundInStore:
            who = "somebody whose segments have been joined since"
        return EventLogError(
            f"another driver goes on with run {self._run}: {name} in {self._store.url} was written by {who}. Let only"
            " one go on: this one stops here, and nothing is lost"
        )

    def _compact(self) -> None:
        """Have many small segments joined into one, in the background."""
        segments, self._segments = self._segments, []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "log")
        self._joins = [join for join in self._joins if not join.done()]
        self._joins.append(self._pool.submit(self._join, segments, self._hurry))

    def _join(self, small: Sequence[tuple[Segment, bytes]], hurry: threading.Event) -> None:
        """Write small segments as one, which is readable beside them until they are gone.

        It only tidies up: where the store fails, the small ones stay, and are read as ever. The very first of a log
        stays too: it is where others who found the log empty collide.
        """
        first, last = small[0][0], small[-1][0]
        whole = paths.log_segment(self._run, first.first, last.first, first.term)
        try:
            self._store.write(whole, b"".join(data for _, data in small))
            for segment, _ in small:
                if hurry.is_set():
                    return
                if (segment.term, segment.first) != START:
                    self._store.delete(segment.name)
        except Exception as error:  # nobody looks at what this thread ends with
            _log.warning("the segments of the log %s could not be joined: %s", self._folder, error)


class DiscardingLog(EventLog):
    """A log that keeps nothing, for runs that nobody will ever resume, such as simulations."""

    def __init__(self) -> None:
        """It needs no store."""

    def append(self, *turns: Turn) -> None:
        """Forget them."""

    def read(self) -> Iterator[Event]:
        return iter(())

    def turns(self) -> Iterator[Turn]:
        return iter(())

    def claim(self) -> list[Turn]:
        """No other driver can have it."""
        return []

    def is_mine(self) -> bool:
        """It is."""
        return True


@contextmanager
def taken_from_log(event: Event) -> Iterator[None]:
    """Around what a scheduler makes of a logged event: one that it cannot make sense of is the log's fault.

    Logs are written by other versions too, and edited by hand; a bare KeyError would say nothing of that.
    """
    try:
        yield
    except CerebroError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        raise EventLogError(
            f"the log has {event}, which does not follow from what it has before ({type(error).__name__}: {error}): it"
            " is damaged, foreign, or from another version"
        ) from error


def signature() -> str:
    """Who writes, for people, with a token that makes it unlike every other."""
    return f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex[:12]}"


def _numbered(number: int, event: Event, outcome: Outcome | None) -> str:
    line = f'{{"n":{number},{encode(event)[1:]}'
    if outcome is None:
        return f"{line}\n"
    return f'{line[:-1]},"outcome":{_as_json(outcome_to_plain(outcome))}}}\n'
