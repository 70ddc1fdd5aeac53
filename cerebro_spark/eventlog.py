"""The event log: append-only, write-once segments of JSON lines in a store. It never rewrites what was written.

A segment holds all events of one turn of the engine and is named by the number of its first event. The log may be cut
at any byte and still reads up to the last whole event: each line carries its number, and a line that was cut does not
parse. Two drivers that believe they own the same run collide on a segment's name, and the second one stops: whoever has
read a log goes on from there, and from nowhere else. The first line of a segment says who wrote it, so that no two
drivers ever write the same bytes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from collections.abc import Iterator, Sequence

from cerebro_spark.codec import decode, encode
from cerebro_spark.errors import AlreadyInStore, EventLogError, NotFoundInStore, StoreError
from cerebro_spark.events import Event
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

_log = logging.getLogger(__name__)
_SEGMENTS_BEFORE_COMPACTION = 256


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

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._folder = paths.log_folder(run)
        self._writer = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex[:12]}"
        self._next: int | None = None
        self._segments: list[str] = []
        self._claim: int | None = None

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
        name = paths.log_segment(self._run, self._next)
        try:
            self._store.write(name, "".join(lines).encode())
        except AlreadyInStore as error:
            raise self._taken(name) from error
        self._next += len(events)
        self._segments.append(name)
        if len(self._segments) >= _SEGMENTS_BEFORE_COMPACTION:
            self._compact()

    def read(self) -> Iterator[Event]:
        """All whole events from the first on; what is appended afterwards follows the last of them, or collides.

        Raises EventLogError where an event is missing or damaged before the end.
        """
        count = 0
        for line in self._lines():
            count += 1
            yield decode(line)
        if self._next is None:
            self._next = count

    def _lines(self) -> Iterator[str]:
        """All whole lines in order. A segment that vanishes while others are read was joined to others: look again."""
        expected = 0
        waiting = sorted(self._store.list(self._folder), key=_place)
        while waiting:
            name = waiting.pop(0)
            try:
                data = self._store.read(name)
            except NotFoundInStore:
                listed = self._store.list(self._folder)
                if name in listed:
                    raise
                waiting = sorted(listed, key=_place)
                continue
            for raw in data.split(b"\n"):
                number = _number(raw)
                if number is None or number < expected:
                    continue
                if number > expected:
                    raise EventLogError(f"the log {self._folder} lacks event {expected}: {name} goes on with {number}")
                expected += 1
                yield raw.decode()

    def _free_name(self) -> None:
        """A segment cut within its first event holds nothing, and only blocks the next name."""
        assert self._next is not None
        blocking = paths.log_segment(self._run, self._next)
        if not self._store.exists(blocking):
            return
        if any(_number(raw) is not None for raw in self._store.read(blocking).split(b"\n")):
            raise self._taken(blocking)
        self._store.delete(blocking)

    def _taken(self, name: str) -> EventLogError:
        return EventLogError(
            f"another driver goes on with run {self._run}: {name} in {self._store.url} was written by"
            f" {_author(self._store.read(name))}. Let only one go on: this one stops here, and nothing is lost"
        )

    def _compact(self) -> None:
        """Join many small segments into one, which is readable beside them until they are gone.

        It only tidies up: where the store fails, the small ones stay, and are read as ever. The first that this driver
        wrote into a log it took over stays too: it is where a driver that was given up for dead, and wakes, collides.
        """
        segments, self._segments = self._segments, []
        claim = paths.log_segment(self._run, self._claim) if self._claim else None
        first, last = _place(segments[0])[0], _place(segments[-1])[0]
        try:
            joined = b"".join(self._store.read(name) for name in segments)
            self._store.write(paths.log_segment(self._run, first, last), joined)
            for segment in segments:
                if segment != claim:
                    self._store.delete(segment)
        except StoreError as error:
            _log.warning("the segments of the log %s could not be joined: %s", self._folder, error)


class DiscardingLog(EventLog):
    """A log that keeps nothing, for runs that nobody will ever resume, such as simulations."""

    def __init__(self) -> None:
        """It needs no store."""

    def append(self, events: Sequence[Event]) -> None:
        """Forget them."""

    def read(self) -> Iterator[Event]:
        return iter(())


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
        body = json.loads(raw)
    except (ValueError, UnicodeDecodeError):
        return None
    return body["n"] if isinstance(body, dict) and isinstance(body.get("n"), int) else None


def _place(name: str) -> tuple[int, int]:
    """Sort key: by first event; of segments that start alike, the longest first."""
    found = paths.segment_range(name)
    if found is None:
        raise EventLogError(f"{name} does not belong into an event log")
    return found[0], -found[1]
