"""Starts the dashboard's server on a port of this machine. It logs no request: a link has the token in it."""

from __future__ import annotations

import errno
import getpass
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from cerebro_spark.dashboard.index import StoreIndex
from cerebro_spark.dashboard.security import LOOPBACK, Access
from cerebro_spark.dashboard.sending import SendCommand, mailbox_asker, mailbox_sender
from cerebro_spark.errors import ConfigurationError, MissingDependency
from cerebro_spark.store.base import Store

if TYPE_CHECKING:
    import uvicorn

PORT = 8787
_PORTS = 20
_SECONDS_TO_END = 2
MISSING = "the dashboard needs a few more packages: pip install 'cerebro-spark[dashboard]'"


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    server: uvicorn.Server
    listening: tuple[socket.socket, ...]
    access: Access

    @property
    def port(self) -> int:
        return int(self.listening[0].getsockname()[1])

    def link(self, run: str = "") -> str:
        """The address with the token, for the browser; of one run, if it is named."""
        return link_of(self.access, self.port, run)

    def run(self) -> None:
        """Serve until the process is told to stop."""
        self.server.run(sockets=[*self.listening])

    def stop(self) -> None:
        """Have `run`, in whatever thread, return soon."""
        self.server.should_exit = True


def listen(
    store: Store,
    access: Access,
    port: int | None = None,
    send: Callable[[Store], SendCommand] = mailbox_sender,
) -> Served:
    """Open the port. Nothing is answered before `run` is called.

    Args:
        store: The store whose runs are shown.
        access: Where to listen, and who may ask.
        port: The port; 0 for any that is free. Defaults to None: 8787, or one after it that is free.
        send: Makes what hands commands on.

    Raises:
        ConfigurationError: The port is taken, or the host is none of this machine's.
        MissingDependency: The extra `dashboard` is not installed.
    """
    try:
        import uvicorn

        from cerebro_spark.dashboard.app import make_app
    except ImportError as error:
        raise MissingDependency(f"{MISSING} ({error})") from error
    app = make_app(
        StoreIndex(store),
        access,
        None if access.read_only else send(store),
        by=_who(),
        ask=None if access.read_only else mailbox_asker(store),
    )
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_SECONDS_TO_END,
    )
    server = uvicorn.Server(config)
    server.shutdown = partial(_shut_down, server.shutdown, app.end_streams)  # type: ignore[method-assign]
    return Served(server, _bound(access.host, port), access)


async def _shut_down(
    shut_down: Callable[..., Awaitable[None]],
    end_streams: Callable[[], None],
    sockets: list[socket.socket] | None = None,
) -> None:
    """End the streams first: a server waits for all that it has begun to answer."""
    end_streams()
    await shut_down(sockets)


def link_of(access: Access, port: int, run: str = "") -> str:
    """The link with which a browser of this machine opens the dashboard.

    >>> link_of(Access(token="x" * 16), 8787, "r1")
    'http://127.0.0.1:8787/?token=xxxxxxxxxxxxxxxx&run=r1'
    """
    host = f"[{access.known_as}]" if ":" in access.known_as else access.known_as
    about = f"&run={quote(run)}" if run else ""
    return f"http://{host}:{port}{access.base_path}/?token={quote(access.token)}{about}"


def is_open_to_others(access: Access) -> bool:
    """Whether other machines can reach it."""
    return access.host not in LOOPBACK


def _bound(host: str, port: int | None) -> tuple[socket.socket, ...]:
    ports = range(PORT, PORT + _PORTS) if port is None else [port] if port else [0] * _PORTS
    for number in ports:
        try:
            return _bound_at(host, number)
        except (OSError, OverflowError) as error:
            trouble = error
    raise ConfigurationError(
        f"the dashboard cannot listen on {host}, port {port or f'{PORT} to {PORT + _PORTS - 1}'} ({trouble}): give"
        " another --port, 0 for any that is free"
    )


def _bound_at(host: str, port: int) -> tuple[socket.socket, ...]:
    """Listen; on the loopback, under both addresses that `localhost` may mean, so that nobody else gets the token."""
    first = socket.create_server((host, port), family=_family(host), backlog=128)
    if host not in LOOPBACK:
        return (first,)
    other = "::1" if first.family == socket.AF_INET else "127.0.0.1"
    try:
        return (first, socket.create_server((other, first.getsockname()[1]), family=_family(other), backlog=128))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # the machine has no such address
            return (first,)
        first.close()
        raise


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _who() -> str:
    """Who gives commands, as runs log it."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}, dashboard"
    except (OSError, KeyError):  # a container may run as a user without a name
        return f"{socket.gethostname()}, dashboard"
