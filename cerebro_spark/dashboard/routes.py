"""The answers of the JSON API. Each reads from one feed; none of them reads the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cerebro_spark._version import __version__
from cerebro_spark.commands import VERBS
from cerebro_spark.dashboard.feeds import RunFeed
from cerebro_spark.dashboard.hub import Hub
from cerebro_spark.dashboard.json_values import dump
from cerebro_spark.dashboard.queries import Query
from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.views.compare import compared
from cerebro_spark.dashboard.views.curves import curves
from cerebro_spark.dashboard.views.gantt import gantt
from cerebro_spark.dashboard.views.notes import commands, events
from cerebro_spark.dashboard.views.runs import run_page
from cerebro_spark.dashboard.views.trials import trial_page, trials
from cerebro_spark.dashboard.views.workers import workers
from cerebro_spark.errors import ConfigurationError, NotFoundInStore

_MOST_COMPARED = 20
Asked = tuple[object, Callable[[], dict[str, Any]]]
"""What is asked for, with its arguments, and how the answer is made."""


class Routes:
    """The routes that read.

    Args:
        hub: Who reads the store.
        access: What clients may know of the server.
    """

    def __init__(self, hub: Hub, access: Access) -> None:
        self._hub = hub
        self._access = access

    async def server(self, request: Request) -> Response:
        read_only = self._access.read_only
        return json_answer(
            dump(
                {
                    "store": self._hub.index.store.url,
                    "read_only": read_only,
                    "version": __version__,
                    "csrf": None if read_only else self._access.csrf,
                    "poll_seconds": self._hub.poll_seconds,
                    "verbs": [] if read_only else list(VERBS),
                }
            )
        )

    async def runs(self, request: Request) -> Response:
        return json_answer(await self._hub.runs())

    async def compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(names) <= _MOST_COMPARED:
            raise ConfigurationError(f"{len(names)} runs cannot be compared: name 1 to {_MOST_COMPARED}")
        feeds = [await self._hub.open(name) for name in names]
        return json_answer(await asyncio.to_thread(lambda: dump({"runs": [_compared(feed) for feed in feeds]})))

    async def run(self, request: Request) -> Response:
        return await self._answer(request, lambda feed, query: ("run", lambda: run_page(feed.index, feed.condition)))

    async def trials(self, request: Request) -> Response:
        def ask(feed: RunFeed, query: Query) -> Asked:
            since = query.since(feed)
            return ("trials", since), lambda: trials(feed.index, since)

        return await self._answer(request, ask)

    async def trial(self, request: Request) -> Response:
        name = request.path_params["trial"]

        def ask(feed: RunFeed, query: Query) -> Asked:
            if name not in feed.index.view.trials:
                raise NotFoundInStore(f"run {feed.run} has no trial {name!r:.80}")
            return ("trial", name), lambda: _trial(feed, name)

        return await self._answer(request, ask)

    async def curves(self, request: Request) -> Response:
        def ask(feed: RunFeed, query: Query) -> Asked:
            metric, since = query.text("metric"), query.since(feed)
            return ("curves", metric, since), lambda: curves(feed.index, metric, since)

        return await self._answer(request, ask)

    async def gantt(self, request: Request) -> Response:
        def ask(feed: RunFeed, query: Query) -> Asked:
            window = (query.seconds("from"), query.seconds("to"))
            bins, since = query.whole("bins", 400, 50, 2000) or 400, query.since(feed)
            return ("gantt", window, bins, since), lambda: gantt(feed.index, *window, bins, since)

        return await self._answer(request, ask)

    async def workers(self, request: Request) -> Response:
        return await self._answer(request, lambda feed, query: ("workers", lambda: workers(feed.index)))

    async def events(self, request: Request) -> Response:
        def ask(feed: RunFeed, query: Query) -> Asked:
            since, limit = query.since(feed), query.whole("limit", 200, 1, 2000) or 200
            rest = (query.whole("before", None, 0, 2**53), query.text("trial"), query.text("worker"))
            return ("events", since, limit, rest), lambda: events(feed.index, since, limit, *rest)

        return await self._answer(request, ask)

    async def forecast(self, request: Request) -> Response:
        return await self._answer(request, lambda feed, query: ("forecast", lambda: {"forecast": feed.forecast}))

    async def commands(self, request: Request) -> Response:
        return await self._answer(
            request,
            lambda feed, query: ("commands", lambda: {"commands": commands(feed.index.commands.values())}),
        )

    async def _answer(self, request: Request, ask: Callable[[RunFeed, Query], Asked]) -> Response:
        feed = await self._hub.open(request.path_params["run"])
        query = Query(request.query_params)

        def make() -> bytes:
            with feed.lock:
                return feed.answer(*ask(feed, query))

        return json_answer(await asyncio.to_thread(make))


def json_answer(data: bytes, status: int = 200) -> Response:
    """JSON that no cache keeps."""
    return Response(data, status, {"cache-control": "no-store"}, "application/json")


def _compared(feed: RunFeed) -> dict[str, Any]:
    with feed.lock:
        return compared(feed.index, feed.condition)


def _trial(feed: RunFeed, name: str) -> dict[str, Any]:
    index = feed.index
    about = [row for row in index.commands.values() if row.command.trial == name]
    return {
        **trial_page(index, name),
        "events": events(index, trial=name)["events"],
        "commands": commands(about),
    }
