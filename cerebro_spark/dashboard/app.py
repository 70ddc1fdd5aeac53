"""The dashboard as an ASGI app: pages, the JSON API, streams, and, unless it is read-only, commands."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.feeds import RunFeed
from cerebro_spark.dashboard.files import charts_library, media_type, static_files
from cerebro_spark.dashboard.guard import Guard
from cerebro_spark.dashboard.hub import POLL_SECONDS, Hub
from cerebro_spark.dashboard.index import StoreIndex
from cerebro_spark.dashboard.json_values import dump
from cerebro_spark.dashboard.routes import Routes, json_answer
from cerebro_spark.dashboard.security import LARGEST_BODY, Access, RateLimit
from cerebro_spark.dashboard.sending import SendCommand, parse_command
from cerebro_spark.dashboard.streaming import Streams
from cerebro_spark.dashboard.views.notes import commands
from cerebro_spark.errors import CerebroError, ConfigurationError, MissingDependency, NotFoundInStore, StoreError

_log = logging.getLogger(__name__)
_A_DAY = "private, max-age=86400"


def make_app(
    index: StoreIndex,
    access: Access,
    send: SendCommand | None = None,
    poll_seconds: float = POLL_SECONDS,
    by: str = "dashboard",
    ask: SendCommand | None = None,
) -> Guard:
    """The whole app.

    Args:
        index: The runs to show.
        access: Who may ask.
        send: Hands commands on. Without it, or if `access` is read-only, there is no route for commands.
        poll_seconds: Seconds between two looks at a run that is watched. Defaults to 1.0.
        by: Who gives commands, as their runs log it. Defaults to "dashboard".
        ask: Asks what a command would change. Without it, or without `send`, there is no route for that.
    """
    hub = Hub(index, poll_seconds)
    routes, streams = Routes(hub, access), Streams(hub)
    run = "/api/runs/{run}"
    table: list[BaseRoute] = [
        Route("/", _page),
        Route("/static/{name:path}", _static),
        Route("/vendor/plotly.min.js", _charts),
        Route("/api/server", routes.server),
        Route("/api/runs", routes.runs),
        Route("/api/stream", streams.runs),
        Route("/api/compare", routes.compare),
        Route(run, routes.run),
        Route(f"{run}/trials", routes.trials),
        Route(f"{run}/trials/{{trial}}", routes.trial),
        Route(f"{run}/curves", routes.curves),
        Route(f"{run}/gantt", routes.gantt),
        Route(f"{run}/workers", routes.workers),
        Route(f"{run}/events", routes.events),
        Route(f"{run}/forecast", routes.forecast),
        Route(f"{run}/stream", streams.run),
        Route(f"{run}/commands", routes.commands, methods=["GET"]),
    ]
    if send is not None and not access.read_only:
        route = CommandRoute(hub, send, by, ask)
        table.append(Route(f"{run}/commands", route.post, methods=["POST"]))
        if ask is not None:
            table.append(Route(f"{run}/questions", route.ask, methods=["POST"]))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with hub.running():
            yield

    app = Starlette(routes=table, lifespan=lifespan, exception_handlers=_HANDLERS)
    app.state.hub = hub
    app.router.redirect_slashes = False
    return Guard(app, access, hub.close)


class CommandRoute:
    """The routes that write something: commands, and questions about them.

    Args:
        hub: Who reads the store.
        send: Hands commands on.
        by: Who gives them.
        ask: Asks what a command would change. Defaults to None: nothing is asked.
        limit: How many may come. Defaults to 10 at once, then one a second.
        clock: The wall clock.
    """

    def __init__(
        self,
        hub: Hub,
        send: SendCommand,
        by: str,
        ask: SendCommand | None = None,
        limit: RateLimit | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._send = send
        self._by = by
        self._ask = ask
        self._limit = limit or RateLimit()
        self._clock = clock

    async def post(self, request: Request) -> Response:
        """Send a command. The answer comes later, by the run's log."""
        feed, command = await self._read(request)

        def send() -> bytes:
            with feed.lock:
                known = feed.index.commands.get(command.id)
            if known and (known.command.verb, known.command.trial) != (command.verb, command.trial):
                raise HTTPException(409, f"the id {command.id!r} is that of another command: {known.command.verb}")
            self._send(feed.run, command)
            with feed.lock:
                row = feed.index.note_sent(command, self._clock())
                return dump({"command": commands([row])[0]})

        return json_answer(await asyncio.to_thread(send), 202)

    async def ask(self, request: Request) -> Response:
        """Ask what a command would change. The answer comes later, in a forecast."""
        assert self._ask is not None
        feed, command = await self._read(request)
        await asyncio.to_thread(self._ask, feed.run, command)
        return json_answer(dump({"asked": True}), 202)

    async def _read(self, request: Request) -> tuple[RunFeed, Command]:
        """Return the command of a request, and the run that it is for."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "a command must have the Content-Type application/json")
        body = await _limited_body(request)
        wait = self._limit.take()
        if wait:
            raise HTTPException(429, "too many commands at once", {"retry-after": str(int(wait) + 1)})
        command = parse_command(body, self._by)
        feed = await self._hub.open(request.path_params["run"])
        if feed.index.view.finished:
            raise HTTPException(409, f"run {feed.run} is over: it takes no commands")
        return feed, command


async def _limited_body(request: Request) -> bytes:
    """The body, if it is not too long; a longer one is not read to its end."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, f"a command has at most {LARGEST_BODY} bytes")
    return bytes(body)


async def _page(request: Request) -> Response:
    return _file(static_files().get("index.html"), "no-store")


async def _static(request: Request) -> Response:
    return _file(static_files().get(request.path_params["name"]), "no-cache")


async def _charts(request: Request) -> Response:
    return _file(charts_library(), _A_DAY)


def _file(path: Path | None, caching: str) -> Response:
    if path is None:
        raise HTTPException(404, "there is no such file")
    return FileResponse(path, headers={"cache-control": caching}, media_type=media_type(path))


async def _say_error(request: Request, error: Exception) -> Response:
    """Every error is JSON with a sentence; what was not expected is logged, and told to nobody."""
    if isinstance(error, HTTPException):
        detail = _DETAILS.get(error.status_code) if error.detail in _BARE else None
        answer = json_answer(dump({"error": detail or str(error.detail)}), error.status_code)
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, CerebroError):
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        return json_answer(dump({"error": str(error)}), status)
    _log.error("a request of the dashboard failed", exc_info=error)
    return json_answer(dump({"error": "this failed: the server's log says why"}), 500)


_BARE = ("Not Found", "Method Not Allowed")
_DETAILS = {404: "there is nothing at this address", 405: "this address does not take such requests"}
_STATUS = ((NotFoundInStore, 404), (StoreError, 503), (ConfigurationError, 400), (MissingDependency, 501))
_HANDLERS = {HTTPException: _say_error, CerebroError: _say_error, Exception: _say_error}
