"""Server-sent events: what changed, pushed to browsers. What is sent is made once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cerebro_spark.dashboard.hub import Hub, News, Subscription, hello
from cerebro_spark.dashboard.json_values import dump

_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
KEEP_ALIVE_SECONDS = 15.0
"""Seconds of silence after which a comment is sent: proxies close what seems dead."""
MOST_STREAMS = 200


class Streams:
    """The routes that stream.

    Args:
        hub: Who has the news.
        keep_alive: Seconds of silence after which a comment is sent. Defaults to 15.0.
    """

    def __init__(self, hub: Hub, keep_alive: float = KEEP_ALIVE_SECONDS) -> None:
        self._hub = hub
        self._keep_alive = keep_alive
        self._open = 0

    async def run(self, request: Request) -> Response:
        """What changes in one run."""
        name = request.path_params["run"]
        feed = await self._hub.open(name)
        return self._respond(self._hub.subscribe(name), lambda: asyncio.to_thread(hello, feed))

    async def runs(self, request: Request) -> Response:
        """The list of runs, whenever it changes."""
        await self._hub.runs()  # an error is an answer of its own

        async def first() -> News:
            return News("runs", await self._hub.runs())

        return self._respond(self._hub.subscribe_runs(), first)

    def _respond(
        self, subscribing: AbstractContextManager[Subscription], first: Callable[[], Awaitable[News]]
    ) -> Response:
        if self._open >= MOST_STREAMS:
            return Response(dump({"error": f"{MOST_STREAMS} pages watch already"}), 503, _HEADERS, "application/json")
        return StreamingResponse(self._stream(subscribing, first), 200, _HEADERS, "text/event-stream")

    async def _stream(
        self, subscribing: AbstractContextManager[Subscription], first: Callable[[], Awaitable[News]]
    ) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            with subscribing as client:
                yield b"retry: 2000\n\n"
                yield as_event(await first())  # as things are now: what comes later is in the subscription
                while True:
                    try:
                        got = await asyncio.wait_for(client.get(), self._keep_alive)
                    except TimeoutError:
                        yield b": still there\n\n"
                        continue
                    if got is None:
                        return
                    yield as_event(got)
        finally:
            self._open -= 1


def as_event(news: News) -> bytes:
    """One event as it is sent. JSON has no line breaks, so it is one line.

    >>> as_event(News("hello", b'{"version":1}'))
    b'event: hello\\ndata: {"version":1}\\n\\n'
    """
    return b"event: " + news.event.encode() + b"\ndata: " + news.data + b"\n\n"
