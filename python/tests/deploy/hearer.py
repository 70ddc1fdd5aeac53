"""A server in place of a cluster's front door: it writes down what it is asked, and agrees. It runs nothing."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Hearer:
    """Listens on loopback; `heard` are the method, the path and the JSON of every request that brought some.

    >>> with Hearer({}) as hearer:
    ...     hearer.address.startswith("127.0.0.1:")
    True
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        """`answer` is laid over what came, and sent back."""
        self.heard: list[tuple[str, str, dict[str, Any]]] = []
        hearer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                if body:
                    hearer.heard.append((self.command, self.path, body))
                data = json.dumps({**body, **answer}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_PUT = do_POST

            def log_message(self, *words: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="hearer")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(300)
        self._server.server_close()
