"""One task that reads the store for all clients, and hands everybody the same news. It never waits for a client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from cerebro_spark.dashboard.feeds import RunFeed, Stamp
from cerebro_spark.dashboard.index import StoreIndex
from cerebro_spark.dashboard.json_values import dump
from cerebro_spark.dashboard.views.updates import update
from cerebro_spark.errors import CerebroError, NotFoundInStore, StoreUnavailable

_log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
"""Seconds between two looks at a run that somebody watches."""
_LIST_SECONDS = 5.0
"""Seconds between two listings of the whole store: it may be large."""
_WATCH_SECONDS = 30.0
"""For so long a run is looked at after somebody asked for it."""
_FIRST_ANSWER_SECONDS = 1.0
_STORE_SECONDS = 5.0
"""For so long a request waits for the store; then it is answered from what is known."""
_QUEUE = 16
_READERS = 8
"""How many threads read the store at once."""
Result = TypeVar("Result")


class News(NamedTuple):
    """One event for a client: its name, and JSON."""

    event: str
    data: bytes


Subscription = asyncio.Queue[News | None]
"""News for one client; None at the end."""


class Hub:
    """Follows runs as long as somebody looks at them. All its methods belong to one event loop.

    Args:
        index: The runs.
        poll_seconds: Seconds between two looks at a run.
        clock: Returns seconds. Defaults to the monotonic clock.
    """

    def __init__(
        self, index: StoreIndex, poll_seconds: float = POLL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.index = index
        self.poll_seconds = poll_seconds
        self._clock = clock
        self._clients: dict[str, set[Subscription]] = {}
        self._all_runs: set[Subscription] = set()
        self._asked: dict[str, float] = {}
        self._watched: dict[str, RunFeed] = {}
        self._failed: set[str] = set()
        """The runs whose last reading failed unexpectedly: they are tried again after a while, not at once."""
        self._sent: dict[str, Stamp] = {}
        self._sent_runs = b""
        self._listed = float("-inf")
        self._listing = asyncio.Lock()
        self._runs_wanted = float("-inf")
        self._wake = asyncio.Event()
        self._refreshing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By run, the lock of whoever reads it, as long as somebody does."""
        self._rows_behind = False
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="dashboard-store")
        self._closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow runs for the length of a block."""
        task = asyncio.create_task(self._follow(), name="dashboard-follower")
        try:
            yield
        finally:
            self.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._readers.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End all streams, so that their connections can end."""
        self._closed = True
        for client in [*self._all_runs, *(one for clients in self._clients.values() for one in clients)]:
            _put(client, None)

    # -- what requests ask

    async def open(self, run: str) -> RunFeed:
        """The feed of a run, as new as it can be in about a second: the start of a long log may be all there is.

        Raises:
            NotFoundInStore: There is no such run.
        """
        feed = await self._read(run)
        if feed.gone is not None:  # one may have been made in its place
            feed = await self._read(run)
        if not feed.known:
            self.index.forget(feed)
            self._asked.pop(run, None)
            raise NotFoundInStore(f"there is no run {run!r:.80} in {self.index.store.url}")
        self.index.make_room(feed)
        return feed

    async def _read(self, run: str) -> RunFeed:
        feed = self.index.feed(run)
        self._asked[run] = self._clock()
        self._wake.set()
        if not self._is_fresh(feed):
            reading = asyncio.ensure_future(self._refresh(feed))
            done, _ = await asyncio.wait({reading}, timeout=_STORE_SECONDS)
            if not done and not feed.known:
                raise StoreUnavailable(f"{self.index.store.url} does not answer: try again later")
        return feed

    def _is_fresh(self, feed: RunFeed) -> bool:
        """Whether it need not be read again. A run that was not there a moment ago may be there now."""
        return feed.known and self._clock() - feed.read_at < self.poll_seconds

    async def runs(self) -> bytes:
        """The list of runs, as JSON; of a store that does not answer, as it was last.

        Raises:
            StoreUnavailable: The store has not answered yet.
        """
        self._runs_wanted = self._clock()
        self._wake.set()
        listing = asyncio.ensure_future(self._list())
        done, _ = await asyncio.wait({listing}, timeout=_STORE_SECONDS)
        if done:
            listing.result()
        elif self._listed == float("-inf"):
            raise StoreUnavailable(f"{self.index.store.url} does not answer: try again later")
        return await asyncio.to_thread(lambda: dump(self.index.rows()))

    @contextmanager
    def subscribe(self, run: str) -> Iterator[Subscription]:
        """News of one run, for the length of a block."""
        client: Subscription = asyncio.Queue(_QUEUE)
        clients = self._clients.setdefault(run, set())
        clients.add(client)
        self._wake.set()
        if self._closed:
            _put(client, None)
        try:
            yield client
        finally:
            clients.discard(client)
            if not clients:
                self._clients.pop(run, None)

    @contextmanager
    def subscribe_runs(self) -> Iterator[Subscription]:
        """The list of runs whenever it changes, for the length of a block."""
        client: Subscription = asyncio.Queue(_QUEUE)
        self._all_runs.add(client)
        self._wake.set()
        if self._closed:
            _put(client, None)
        try:
            yield client
        finally:
            self._all_runs.discard(client)

    # -- the one task

    async def _follow(self) -> None:
        while True:
            if not self._wanted() and not self._lists_runs():
                self._wake.clear()
                await self._wake.wait()
            await self._turn()
            await asyncio.sleep(0.0 if self._is_behind() else self.poll_seconds)

    def _is_behind(self) -> bool:
        """Whether a long log is still being read for the first time: that need not wait."""
        watched = (feed for run, feed in self._watched.items() if run not in self._failed)
        return self._rows_behind or any(feed.reading and feed.gone is None for feed in watched)

    async def _turn(self) -> None:
        wanted = self._wanted()
        for run in set(self._watched) - set(wanted):
            self._watched.pop(run).watched = False
            self._sent.pop(run, None)
            self._failed.discard(run)
        for run in wanted:
            await self._safely(self._look(run), run)
        self._rows_behind = False
        if self._lists_runs():
            await self._safely(self._turn_runs(), "the list of runs")

    async def _safely(self, work: Coroutine[None, None, None], what: str) -> None:
        """Do something for a run. Whatever is wrong there, other runs go on, and this one is tried again."""
        try:
            await work
        except CerebroError as error:
            _log.warning("the dashboard cannot read %s now: %s", what, error)
        except Exception:
            _log.exception("the dashboard failed at %s", what)

    async def _look(self, run: str) -> None:
        feed = self._watched[run] = self.index.feed(run)
        feed.watched = True
        self._failed.add(run)
        await self._refresh(feed)
        self._failed.discard(run)
        await self._publish(feed)

    async def _turn_runs(self) -> None:
        await self._list()
        unread = await asyncio.to_thread(self.index.unread)
        until = self._clock() + self.poll_seconds
        for run in unread:
            await self._safely(self._read_row(run), run)
            if self._rows_behind or self._clock() >= until:
                self._rows_behind = True
                break
        if self._all_runs:
            data = await asyncio.to_thread(lambda: dump(self.index.rows()))
            if data != self._sent_runs:
                self._sent_runs = data
                for client in self._all_runs:
                    _put(client, News("runs", data))

    async def _read_row(self, run: str) -> None:
        async with self._reading(run):  # whoever asks for the run meanwhile waits: it would seem not to be there
            read = await self._from_store(lambda: self.index.read_row(run, self.poll_seconds))
        self._rows_behind = self._rows_behind or not read

    async def _list(self) -> None:
        """Look which runs there are, unless that was just done."""
        async with self._listing:
            if self._clock() - self._listed >= _LIST_SECONDS:
                await self._from_store(self.index.list_runs)
                self._listed = self._clock()

    async def _from_store(self, read: Callable[[], Result]) -> Result:
        """Read in a thread of its own kind: with a store that hangs, what is in memory is still answered."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, read)

    async def _refresh(self, feed: RunFeed) -> None:
        """Read what is new; whoever else wants that meanwhile waits for the same reading."""
        lock = self._reading(feed.run)
        waited = lock.locked()
        async with lock:
            if not (waited and self._is_fresh(feed)):
                await self._from_store(lambda: feed.refresh(_FIRST_ANSWER_SECONDS))

    def _reading(self, run: str) -> asyncio.Lock:
        return self._refreshing.setdefault(run, asyncio.Lock())

    async def _publish(self, feed: RunFeed) -> None:
        clients = self._clients.get(feed.run, set())
        if feed.gone is not None:
            self._sent.pop(feed.run, None)
            _tell(clients, News("gone", dump({"reason": feed.gone})))
            return
        stamp, before = feed.stamp, self._sent.get(feed.run)
        if stamp == before:
            return
        since = before.version if before is not None and before.generation == stamp.generation else None
        if clients and since is not None:
            data, stamp = await asyncio.to_thread(_news, feed, since)
            _tell(clients, News("update", data))
        elif clients:  # nobody knows what they have: they look themselves
            _tell(clients, await asyncio.to_thread(hello, feed))
        self._sent[feed.run] = stamp

    def _wanted(self) -> list[str]:
        now = self._clock()
        self._asked = {run: at for run, at in self._asked.items() if now - at < _WATCH_SECONDS}
        return list(dict.fromkeys([*self._clients, *self._asked]))

    def _lists_runs(self) -> bool:
        return bool(self._all_runs) or self._clock() - self._runs_wanted < _WATCH_SECONDS


def hello(feed: RunFeed) -> News:
    """Says how far a run is."""
    with feed.lock:
        return News("hello", dump({"generation": feed.index.generation, "version": feed.index.version}))


def _news(feed: RunFeed, since: int) -> tuple[bytes, Stamp]:
    with feed.lock:
        changed = update(feed.index, feed.condition, since)
        return dump({**changed, "forecast": feed.forecast}), feed.stamp


def _tell(clients: set[Subscription], news: News) -> None:
    for client in clients:
        _put(client, news)


def _put(client: Subscription, news: News | None) -> None:
    """Hand news to a client. One that is too slow loses what it did not take: it sees that versions do not meet."""
    while True:
        try:
            client.put_nowait(news)
            return
        except asyncio.QueueFull:
            client.get_nowait()
