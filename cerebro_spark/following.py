"""Follows the event log of a run in a store while a driver writes it. It writes nothing, and opens no pickle.

A call reads what is new and nothing else: it lists the log once, and reads the segments that it has not read yet, also
where they were joined or another driver went on (`segments.py` says which lines count). What a follower has once
returned never changes, so whoever applies the turns one after another has what `EventLog.turns` would give.
"""

from __future__ import annotations

from collections.abc import Iterator

from cerebro_spark.errors import CerebroError, EventLogError, NotFoundInStore
from cerebro_spark.logged_turns import group_turns
from cerebro_spark.segments import START, Line, SegmentReader, whole_lines
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import Segment
from cerebro_spark.turns import Turn

_TRIES = 5
MOST_EVENTS = 5_000
"""About how many events one call returns at most: a long log comes in parts, and memory stays small."""


class LogFollower:
    """Reads the log of one run, a part at each call. For one thread at a time.

    Args:
        store: The store of the run.
        run: The id of the run. It need not exist yet.

    Examples:
        >>> import tempfile
        >>> from cerebro_spark.eventlog import EventLog
        >>> from cerebro_spark.events import WorkerLost
        >>> from cerebro_spark.store.local import LocalStore
        >>> store = LocalStore(tempfile.mkdtemp())
        >>> log, follower = EventLog(store, "r1"), LogFollower(store, "r1")
        >>> log.append(Turn([WorkerLost(1.0, "w0")]))
        >>> [event.worker for turn in follower.read() for event in turn.events], follower.read()
        (['w0'], [])
    """

    def __init__(self, store: Store, run: str) -> None:
        self._folder = paths.log_folder(run)
        self._reader = _LastingReader(store, run)
        self._turns: Iterator[Turn] | None = None
        self._trouble: CerebroError | None = None
        self._broken: CerebroError | None = None

    @property
    def events(self) -> int:
        """How many events of the log were read so far."""
        return self._reader.place.number

    @property
    def broken(self) -> bool:
        """Whether no call will return more: the log is damaged, from another version, or deleted."""
        return self._broken is not None

    @property
    def author(self) -> str | None:
        """Who began the log, as its lines say; None if none was read that says so."""
        return self._reader.author

    def read(self, most: int = MOST_EVENTS) -> list[Turn]:
        """The turns that were written since the last call.

        Args:
            most: After so many events the rest is left for the next call. Defaults to 5000.

        Returns:
            The new turns, without outcomes where the log has none; none if there is nothing new.

        Raises:
            NotFoundInStore: The run was deleted, and perhaps made anew: follow it with another follower.
            EventLogError: What follows is damaged, or from another version. All that comes before was returned. Call
                again: a log that lacks an event may be whole later.
            StoreError: The store fails. Call again later: nothing is lost.
        """
        if self._broken is not None:
            raise self._broken
        turns = self._take(most) if self._turns is not None else []
        if not turns and self._trouble is None:  # what an earlier call left is used up: look for more
            self._turns = group_turns(self._lines(), self._folder)
            turns = self._take(most)
        trouble, self._trouble = self._trouble, None
        if trouble is not None and not turns:
            raise trouble
        return turns

    def _take(self, most: int) -> list[Turn]:
        assert self._turns is not None
        turns: list[Turn] = []
        count = 0
        try:
            for turn in self._turns:
                turns.append(turn)
                count += len(turn.events)
                if count >= most:
                    return turns
        except EventLogError as error:  # a line that was written is as it is for ever
            self._broken = self._trouble = error
        self._turns = None
        return turns

    def _lines(self) -> Iterator[tuple[int, Line]]:
        """New lines. An error ends them, so that the turn before it is returned whole; it is raised afterwards."""
        try:
            yield from self._reader.signed_lines()
        except NotFoundInStore as error:  # what comes now, if anything, belongs to another log
            self._broken = self._trouble = error
        except CerebroError as error:
            self._trouble = error


class _LastingReader(SegmentReader):
    """Reads a log that may be deleted meanwhile, and made anew under the same name."""

    def __init__(self, store: Store, run: str) -> None:
        super().__init__(store, run)
        self._begins = False
        """Whether the first segment of the log was seen. No driver ever deletes it."""
        self._writers: dict[int, object] = {}
        """By term, who writes in it: one driver only."""

    @property
    def author(self) -> str | None:
        """Who writes in the first term, as far as that was read."""
        writer = self._writers.get(START.term)
        return None if writer is None else str(writer)

    def signed_lines(self) -> Iterator[tuple[int, Line]]:
        """The new lines; NotFoundInStore if they belong to another log than those before."""
        for number, line in self.lines():
            self._check_writer(line)
            yield number, line

    def _read(self, segment: Segment) -> bytes | None:
        """Read a segment. Its first line is signed; the lines that are new may all be within a turn, and are not."""
        data = super()._read(segment)
        for _, line in whole_lines((data or b"").partition(b"\n")[0], 0):
            if line.get("sealed") is not True:  # a seal is by whoever goes on
                self._check_writer(line)
        return data

    def _check_writer(self, line: Line) -> None:
        writer = line.get("by")
        if writer is not None and self._writers.setdefault(self.place.term, writer) != writer:
            raise self._gone("another one was begun in its place")

    def _list(self) -> list[Segment]:
        """List the log. One listing may miss a segment that is joined while it is made."""
        for _ in range(_TRIES):
            listed = super()._list()
            begins = any(segment.first == segment.term == 0 and not segment.joined for segment in listed)
            if self._begins and not begins:
                raise self._gone("its log is no longer there")
            self._begins = begins
            if self._is_known(listed):
                return listed
        raise self._gone("its log does not have what it had")

    def _is_known(self, listed: list[Segment]) -> bool:
        """Whether the listing has the commit that was read last."""
        mine = (segment for segment in listed if segment.term == self.place.term)
        return self._through < 0 or any(segment.first <= self._through <= segment.last for segment in mine)

    def _gone(self, why: str) -> NotFoundInStore:
        return NotFoundInStore(f"the run of {self._folder} in {self._store.url} was deleted: {why}")
