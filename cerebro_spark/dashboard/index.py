"""The runs of one store: one reader for all who look at them. Any thread may ask it; it writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cerebro_spark.dashboard.feeds import RunFeed
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.views.runs import Condition, run_row
from cerebro_spark.errors import ConfigurationError, NotFoundInStore
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

MOST_EVENTS = 600_000
"""How many events of all runs are kept in memory; beyond that, runs that nobody looks at are read again if needed."""


class StoreIndex:
    """Feeds by run, and a row for each run that there is.

    Args:
        store: The store.
        most_events: How many events to keep in memory at most. Defaults to 600,000, about 250 MB.
        clock: Returns seconds. Defaults to the monotonic clock.
    """

    def __init__(
        self, store: Store, most_events: int = MOST_EVENTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self._most_events = most_events
        self._clock = clock
        self._lock = threading.Lock()
        self._feeds: dict[str, RunFeed] = {}
        """The one asked for last comes last."""
        self._rows: dict[str, dict[str, Any]] = {}
        self._logs: dict[str, tuple[int, str]] = {}
        """By run, how many segments its log has and which is the last: that changes when it grows."""
        self._read_logs: dict[str, tuple[int, str]] = {}

    def feed(self, run: str) -> RunFeed:
        """The feed of a run, which may not exist: see `RunFeed.known`.

        Raises:
            NotFoundInStore: This can be no run's id.
        """
        try:
            paths.check_id(run)
        except ConfigurationError as error:
            raise NotFoundInStore(f"there is no run {run!r:.80}") from error
        with self._lock:
            feed = self._feeds.pop(run, None)
            if feed is None or feed.gone is not None:
                feed = RunFeed(self.store, run, self._clock)
            self._feeds[run] = feed
            return feed

    def forget(self, feed: RunFeed) -> None:
        """Forget a feed of a run that does not exist."""
        with self._lock:
            if self._feeds.get(feed.run) is feed:
                del self._feeds[feed.run]

    def _drop(self, feed: RunFeed) -> None:
        """Forget a run that was deleted since it was listed."""
        self.forget(feed)
        with self._lock:
            self._logs = {run: log for run, log in self._logs.items() if run != feed.run}
            self._rows.pop(feed.run, None)

    def list_runs(self) -> None:
        """Look which runs there are, and which of their logs have grown."""
        logs: dict[str, tuple[int, str]] = {}
        for name in self.store.list(paths.RUNS):
            parts = name.split("/")
            if len(parts) == 4 and parts[2] == "log" and paths.is_id(parts[1]):  # a copy by hand may be called anything
                count, _ = logs.get(parts[1], (0, ""))
                logs[parts[1]] = (count + 1, name)
        with self._lock:
            self._logs = logs
            self._rows = {run: row for run, row in self._rows.items() if run in logs}

    def unread(self) -> list[str]:
        """The runs whose logs were never read, or have grown since, or that may be another way now; newest first."""
        with self._lock:
            behind = [run for run, log in self._logs.items() if self._read_logs.get(run) != log or self._is_due(run)]
        return sorted(behind, reverse=True)

    def _is_due(self, run: str) -> bool:
        feed = self._feeds.get(run)
        return feed is not None and self._clock() - feed.read_at >= feed.stale_after

    def read_row(self, run: str, seconds: float = 1.0) -> bool:
        """Read what is new in a run, for its row; returns whether it is read to its end."""
        with self._lock:
            log = self._logs.get(run)
        feed = self.feed(run)
        feed.refresh(seconds)
        if feed.gone is not None:  # another one may have been made in its place
            feed = self.feed(run)
            feed.refresh(seconds)
        if not feed.known:
            self._drop(feed)
            return True
        with feed.lock:
            row = run_row(feed.index, feed.condition)
        whole = not feed.reading
        with self._lock:
            self._rows[run] = row
            if whole and log is not None:
                self._read_logs[run] = log
        self.make_room(feed)
        return whole

    def rows(self) -> dict[str, Any]:
        """All runs, the newest first, as far as they are known."""
        with self._lock:
            runs, feeds, rows = sorted(self._logs), dict(self._feeds), dict(self._rows)
        found = []
        for run in runs:
            feed = feeds.get(run)
            if feed is not None and feed.known:
                with feed.lock:
                    rows[run] = run_row(feed.index, feed.condition)
            found.append(rows.get(run) or run_row(RunIndex(run), Condition(reading=True)))
        found.sort(key=lambda row: (row.get("started_clock") or float("inf"), row["run"]), reverse=True)
        return {"runs": found, "reading": sum(row["state"] == "reading" for row in found)}

    def make_room(self, kept: RunFeed) -> None:
        """Forget the runs that nobody has asked for longest, if there is too much in memory; never this one."""
        with self._lock:
            total = sum(feed.index.version for feed in self._feeds.values())
            for run, feed in list(self._feeds.items()):
                if total <= self._most_events:
                    return
                if feed is not kept and not feed.watched:
                    total -= feed.index.version
                    del self._feeds[run]
