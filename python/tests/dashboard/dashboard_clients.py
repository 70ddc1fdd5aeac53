"""Clients of the dashboard's app: in this process, or over a real port, with a real reverse proxy in between."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from starlette.testclient import TestClient

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.app import make_app
from cerebro_spark.dashboard.index import StoreIndex
from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.serving import Served, listen
from cerebro_spark.store.base import Store

TOKEN = "a-token-of-the-tests-0123456789"
SECONDS = 120.0


Found = TypeVar("Found")


def until(look: Callable[[], Found], right: Callable[[Found], bool]) -> Found:
    """Look until it is right, for at most some seconds."""
    end = time.monotonic() + SECONDS
    while not right(found := look()):
        assert time.monotonic() < end, f"it is still {found!r:.500}"
    return found


@contextlib.contextmanager
def client_of(
    store: Store,
    sent: list[tuple[str, Command]] | None = None,
    asked: list[tuple[str, Command]] | None = None,
    **settings: Any,
) -> Iterator[TestClient]:
    """A browser that has opened the link. Commands go to `sent`, questions to `asked`."""
    access = Access(token=TOKEN, **settings)
    got, wondered = ([] if sent is None else sent), ([] if asked is None else asked)
    app = make_app(
        StoreIndex(store),
        access,
        lambda run, command: got.append((run, command)),
        poll_seconds=0.05,
        ask=lambda run, command: wondered.append((run, command)),
    )
    with TestClient(app, base_url="http://127.0.0.1:8787", follow_redirects=False) as client:
        client.cookies.set(access.cookie, access.session)
        yield client


@contextlib.contextmanager
def serving(store: Store, **settings: Any) -> Iterator[Served]:
    """A real server on a free port of this machine."""
    served = listen(store, Access(token=TOKEN, **settings), 0)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Hands requests on to another port, and may take a prefix off their paths, as proxies do."""

    target = 0
    strips = ""
    keeps_host = True

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        path = self.path[len(self.strips) :] if self.strips and self.path.startswith(self.strips) else self.path
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        if not self.keeps_host:
            headers["Host"] = f"127.0.0.1:{self.target}"
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", self.target, timeout=SECONDS)
        try:
            upstream.request(self.command, path, body or None, headers)
            with upstream.getresponse() as answer:
                self._answer(answer)
        finally:
            upstream.close()

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError, http.client.HTTPException):  # whoever asked has left, or the server has
            while chunk := answer.read1():
                self.wfile.write(chunk)
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _ProxyServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


@contextlib.contextmanager
def proxied(port: int, strips: str = "", keeps_host: bool = True) -> Iterator[int]:
    """The port of a reverse proxy in front of another port."""
    handler = type("Proxy", (_Proxy,), {"target": port, "strips": strips, "keeps_host": keeps_host})
    with _ProxyServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join(SECONDS)


def _read_events(answer: http.client.HTTPResponse, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    name = ""
    while len(found) < count:
        line = answer.readline().rstrip(b"\n")
        if line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"data: "):
            found.append((name, line[6:]))
    return found


class Browser:
    """Keeps cookies as a browser does: by path, and only those that the server set."""

    def __init__(self, port: int, host: str = "") -> None:
        self.port = port
        self.host = host or f"127.0.0.1:{port}"
        self.cookies: dict[str, tuple[str, str]] = {}

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request(method, path, body, {"Host": self.host, **self._cookie(path), **(headers or {})})
            answer = connection.getresponse()
            self._keep(answer)
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def events(self, path: str, count: int) -> list[tuple[str, bytes]]:
        """The first events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", path, None, {"Host": self.host, **self._cookie(path)})
            with connection.getresponse() as answer:
                assert answer.status == 200
                return _read_events(answer, count)
        finally:
            connection.close()

    def _cookie(self, path: str) -> dict[str, str]:
        fitting = [f"{name}={value}" for name, (value, under) in self.cookies.items() if path.startswith(under)]
        return {"Cookie": "; ".join(fitting)} if fitting else {}

    def _keep(self, answer: http.client.HTTPResponse) -> None:
        for header in answer.headers.get_all("set-cookie") or []:
            first, *rest = [part.strip() for part in header.split(";")]
            name, _, value = first.partition("=")
            settings = dict(part.lower().partition("=")[::2] for part in rest)
            assert "httponly" in settings
            assert settings["samesite"] == "strict"
            self.cookies[name] = (value, settings["path"])
