"""The event log: append-only, write-once segments of JSON lines in a store. It never rewrites what was written.

A segment holds all events of one turn of the engine and is named by the number of its first event. The log may be cut
at any byte and still reads up to the last whole event: each line carries its number, and a line that was cut does not
parse. Two drivers that believe they own the same run collide on a segment's name, and the second one stops: whoever has
read a log goes on from there, and from nowhere else. The first line of a segment says who wrote it, so that no two
drivers ever write the same bytes.

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

from cerebro_spark.codec import decode, encode
from cerebro_spark.errors import AlreadyInStore, CerebroError, EventLogError, NotFoundInStore
from cerebro_spark.events import Event
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

_log = logging.getLogger(__name__)
_SEGMENTS_BEFORE_COMPACTION = 256
_SECONDS_TO_CLOSE = 30.0


class EventLog:
    """The log of one run in a store.

    >>> import tempfile
    >>> from cerebro_spark.events import WorkerLost
    >>> from cerebro_spark.store.local import LocalStore
    >>> log = EventLog(LocalStore(tempfile.mkdtemp()), "r1")
    >>> log.append([WorkerLost(1.0, "w0"), WorkerLost(2.0, "w1")])
    >>> [event.worker for event in log.read()]
    ['w0', 'w1']
    """

    _pool: ThreadPoolExecutor | None = None

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._folder = paths.log_folder(run)
        self._writer = signature()
        self._next: int | None = None
        self._segments: list[tuple[str, bytes]] = []
        """What this driver wrote and nobody has joined yet: it is small, and need not be read again."""
        self._claim: int | None = None
        self._joins: list[Future[None]] = []
        self._hurry = threading.Event()

    def append(self, events: Sequence[Event]) -> None:
        """Make these events last before anybody acts on them; one write for all of them."""
        if not events:
            return
        if self._next is None:
            self._next = sum(1 for _ in self._lines())
        if self._claim is None:
            self._free_name()
            self._claim = self._next
        lines = [_numbered(self._next + index, event) for index, event in enumerate(events)]
        lines[0] = _signed(lines[0], self._writer)
        name, data = paths.log_segment(self._run, self._next), "".join(lines).encode()
        try:
            self._store.write(name, data)
        except AlreadyInStore as error:
            raise self._taken(name) from error
        self._next += len(events)
        self._segments.append((name, data))
        if len(self._segments) >= _SEGMENTS_BEFORE_COMPACTION:
            self._compact()

    def read(self) -> Iterator[Event]:
        """All whole events from the first on; what is appended afterwards follows the last of them, or collides.

        Raises EventLogError where an event is missing or damaged before the end.
        """
        count = 0
        for line in self._lines():
            event = self._decoded(count, line)
            count += 1
            yield event
        if self._next is None:
            self._next = count

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

    def _decoded(self, number: int, line: str) -> Event:
        try:
            return decode(line)
        except EventLogError as error:
            raise EventLogError(f"event {number} of the log {self._folder} cannot be read: {error}") from error

    def _lines(self) -> Iterator[str]:
        """All whole lines in order. A segment that vanishes while others are read was joined to others: look again.

        So it was if one seems never to have been: a listing takes time, and may see neither it nor what it became.
        """
        expected = 0
        listed = self._store.list(self._folder)
        waiting = sorted(listed, key=_place)
        while waiting:
            name = waiting.pop(0)
            try:
                whole = _whole_lines(self._store.read(name), expected)
            except NotFoundInStore:
                listed = self._store.list(self._folder)
                if name in listed:
                    raise
                waiting = sorted(listed, key=_place)
                continue
            if whole and whole[0][0] > expected:
                earlier, listed = set(listed), self._store.list(self._folder)
                if not any(_place(other)[0] <= expected for other in listed if other not in earlier):
                    raise _hole(self._folder, expected, name, whole[0][0])
                waiting = sorted(listed, key=_place)
                continue
            for number, line in whole:
                if number > expected:
                    raise _hole(self._folder, expected, name, number)
                if number == expected:
                    expected += 1
                    yield line

    def _free_name(self) -> None:
        """See that nobody else has gone on with the log since it was read, under whatever name.

        A segment cut within its first event holds nothing, and only blocks the next name.
        """
        assert self._next is not None
        blocking = paths.log_segment(self._run, self._next)
        later = [name for name in self._store.list(self._folder) if -_place(name)[1] >= self._next]
        for name in later:
            if _whole_lines(self._store.read(name), self._next):
                raise self._taken(name)
        if blocking in later:
            self._store.delete(blocking)

    def _taken(self, name: str) -> EventLogError:
        return EventLogError(
            f"another driver goes on with run {self._run}: {name} in {self._store.url} was written by"
            f" {_author(self._store.read(name))}. Let only one go on: this one stops here, and nothing is lost"
        )

    def _compact(self) -> None:
        """Have many small segments joined into one, in the background."""
        segments, self._segments = self._segments, []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "log")
        self._joins = [join for join in self._joins if not join.done()]
        self._joins.append(self._pool.submit(self._join, segments, self._hurry))

    def _join(self, segments: Sequence[tuple[str, bytes]], hurry: threading.Event) -> None:
        """Write small segments as one, which is readable beside them until they are gone.

        It only tidies up: where the store fails, the small ones stay, and are read as ever. The first that this driver
        wrote into a log it took over stays too: it is where a driver that was given up for dead, and wakes, collides.
        """
        claim = paths.log_segment(self._run, self._claim) if self._claim else None
        first, last = _place(segments[0][0])[0], _place(segments[-1][0])[0]
        try:
            self._store.write(paths.log_segment(self._run, first, last), b"".join(data for _, data in segments))
            for name, _ in segments:
                if hurry.is_set():
                    return
                if name != claim:
                    self._store.delete(name)
        except Exception as error:  # nobody looks at what this thread ends with
            _log.warning("the segments of the log %s could not be joined: %s", self._folder, error)


class DiscardingLog(EventLog):
    """A log that keeps nothing, for runs that nobody will ever resume, such as simulations."""

    def __init__(self) -> None:
        """It needs no store."""

    def append(self, events: Sequence[Event]) -> None:
        """Forget them."""

    def read(self) -> Iterator[Event]:
        return iter(())


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


def _numbered(number: int, event: Event) -> str:
    return f'{{"n":{number},{encode(event)[1:]}\n'


def _signed(line: str, writer: str) -> str:
    return f'{{"by":{json.dumps(writer)},{line[1:]}'


def _author(segment: bytes) -> str:
    """Who wrote a segment, as far as it says so."""
    try:
        return str(json.loads(segment.split(b"\n")[0])["by"])
    except (ValueError, KeyError, TypeError):
        return "somebody who left no name"


def _number(raw: bytes) -> int | None:
    """The number of a whole line; None for an empty or cut one."""
    try:
        body = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return body["n"] if isinstance(body, dict) and isinstance(body.get("n"), int) else None


def _whole_lines(segment: bytes, first: int) -> list[tuple[int, str]]:
    """The lines of a segment that are whole, from event `first` on, with their numbers."""
    numbered = ((_number(raw), raw) for raw in segment.split(b"\n"))
    return [(number, raw.decode()) for number, raw in numbered if number is not None and number >= first]


def _hole(folder: str, expected: int, name: str, found: int) -> EventLogError:
    return EventLogError(f"the log {folder} lacks event {expected}: {name} goes on with {found}")


def _place(name: str) -> tuple[int, int]:
    """Sort key: by first event; of segments that start alike, the longest first."""
    found = paths.segment_range(name)
    if found is None:
        raise EventLogError(f"{name} does not belong into an event log")
    return found[0], -found[1]
