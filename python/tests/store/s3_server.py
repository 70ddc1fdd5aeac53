"""An S3 server for tests: moto, with conditional writes that are one step, as S3's own are.

Moto looks whether a name is free and then writes, so of requests that come at the same time two may succeed. Here
requests that write wait for each other.

    python s3_server.py [PORT]

It prints the port when it can be asked; without one it takes any that is free.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

WRITING = ("DELETE", "POST", "PUT")


class OneWriteAtATime:
    """A WSGI app that lets requests pass that only read, and the others one after another.

    Args:
        app: The app that answers.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in WRITING:
            return self._app(environ, start_response)
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))  # nobody waits for a slow sender
        with self._lock:
            return self._app(environ, start_response)


def main() -> None:
    app = OneWriteAtATime(DomainDispatcherApplication(create_backend_app))
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=MotoRequestHandler)
    os.environ["MOTO_PORT"] = str(server.port)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
