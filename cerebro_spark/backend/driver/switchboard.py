"""One hub for several sessions: each connection belongs to the session that its Hello names, and to no other.

A run is a session, and so are the parents that outlast it. What is said over a connection of one session never reaches
another: so no late message of a run is taken for one of the next, whose attempts have the same numbers.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cerebro_spark.backend.driver.launcher import HubAddress
from cerebro_spark.backend.wire.authority import issue_credentials
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import FromWorker, Hello, ToWorker


class Listener(NamedTuple):
    """What is called, by the hub's thread, for what happens in a session; see Hub."""

    on_message: Callable[[int, FromWorker], None]
    on_lost: Callable[[int, str], None]
    on_broken: Callable[[str], None]


class Switchboard:
    """The driver's end of all connections, and the sessions that they belong to.

    Args:
        address: Where to listen, and the host that workers dial.
        silence: Seconds after which a worker that says nothing at all is lost.

    Attributes:
        credentials: What workers and parents show when they dial.
        dialled: Host and port that they dial.
    """

    def __init__(self, address: HubAddress, silence: float) -> None:
        credentials = issue_credentials()
        self.credentials = credentials.worker
        self._lock = threading.Lock()
        self._listeners: dict[str, Listener] = {}
        self._sessions: dict[int, str] = {}
        self._hub = Hub(
            credentials.driver,
            self._receive,
            self._lost,
            self._broken,
            host=address.host,
            port=address.port,
            silence=silence,
        )
        self.dialled = (address.dialled, self._hub.address[1])

    def open(self, listener: Listener, name: str | None = None) -> Session:
        """Open a session.

        Args:
            listener: What is called for its connections.
            name: Its name. Default: one that no other session ever has.
        """
        name = secrets.token_hex(8) if name is None else name
        with self._lock:
            self._listeners[name] = listener
        return Session(name, self, self._hub)

    def close(self) -> None:
        """Send what is still to be sent, hang up on all, and stop listening."""
        self._hub.close()

    def end(self, name: str) -> None:
        """Hang up on all of a session, once they were sent what is still to be sent; it hears of nothing any more."""
        with self._lock:
            self._listeners.pop(name, None)
            peers = [peer for peer, session in self._sessions.items() if session == name]
        for peer in peers:
            self._hub.lose(peer, "the run is over")

    # -- called by the hub

    def _receive(self, peer: int, message: FromWorker) -> None:
        with self._lock:
            if isinstance(message, Hello):
                self._sessions.setdefault(peer, message.session)
            listener = self._listeners.get(self._sessions.get(peer, ""))
        if listener is not None:
            listener.on_message(peer, message)
        elif isinstance(message, Hello):
            raise WireError(f"{message.worker} says Hello in a session that is over")

    def _lost(self, peer: int, reason: str) -> None:
        with self._lock:
            listener = self._listeners.get(self._sessions.pop(peer, ""))
        if listener is not None:
            listener.on_lost(peer, reason)

    def _broken(self, reason: str) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener.on_broken(reason)


@dataclass(frozen=True, slots=True)
class Session:
    """The connections of one run, or of the parents. Any thread may call it, and nothing blocks.

    Attributes:
        name: What a Hello must name to belong to it.
        switchboard: Where it was opened.
    """

    name: str
    switchboard: Switchboard
    _hub: Hub

    def send(self, peer: int, message: ToWorker) -> None:
        """Say something to a worker; nothing happens if it is gone. Raises ConfigurationError for what cannot be."""
        self._hub.send(peer, message)

    def lose(self, peer: int, reason: str) -> None:
        """Hang up on a worker and call it lost, unless it is already; what has come in from it counts."""
        self._hub.lose(peer, reason)

    def close(self) -> None:
        """Hang up on all of its connections; the hub goes on."""
        self.switchboard.end(self.name)
