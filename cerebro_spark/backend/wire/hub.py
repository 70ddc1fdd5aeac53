"""The driver's end of all connections: one thread, one selector, any number of workers. It never blocks its callers.

A peer has ten seconds to prove that it is a worker of this run; what it sends before that is bounded and never looked
into. A worker that hangs up, breaks the protocol or is silent for longer than the heartbeat allows is lost.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.backend.wire.channel import Channel, WireError
from cerebro_spark.backend.wire.connection import keep_alive
from cerebro_spark.backend.wire.credentials import Credentials, make_context
from cerebro_spark.backend.wire.messages import FromWorker, ToWorker, pack, unpack_report
from cerebro_spark.backend.wire.refusals import RefusalLog

_log = logging.getLogger(__name__)
_SECONDS_TO_PROVE = 10.0
_MOST_UNPROVEN = 64


@dataclass(slots=True)
class _Peer:
    number: int
    address: str
    socket: socket.socket
    channel: Channel
    heard: float
    outgoing: bytearray = field(default_factory=bytearray)
    announced: bool = False


class Hub:
    """Listens for workers, and passes on what they say.

    All callbacks are called from the hub's own thread and must not block.

    Args:
        credentials: What the driver of this run shows.
        on_message: Called with a peer's number and its message.
        on_lost: Called with a peer's number and the reason, once, for a peer that has said something before.
        on_broken: Called with the reason if the hub itself breaks down; no other callback is called after that.
        host: The address to listen on.
        port: The port to listen on; 0 for any free one.
        silence: Seconds after which a worker that says nothing at all is given up.
    """

    def __init__(
        self,
        credentials: Credentials,
        on_message: Callable[[int, FromWorker], None],
        on_lost: Callable[[int, str], None],
        on_broken: Callable[[str], None] = _log.error,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        silence: float = 30.0,
    ) -> None:
        self._context = make_context(credentials)
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._silence = silence
        self._refusals = RefusalLog(_log.warning)
        self._peers: dict[int, _Peer] = {}
        self._count = 0
        self._closing = False
        self._lock = threading.Lock()
        self._said: list[tuple[int, bytes | str]] = []  # a frame to send, or a reason to lose
        self._listener = socket.create_server((host, port), backlog=128)
        self._wake_in, self._wake_out = socket.socketpair()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="cerebro-hub", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where workers dial."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def send(self, peer: int, message: ToWorker) -> None:
        """Say something to a worker; nothing happens if it is gone. Raises ConfigurationError for what cannot be."""
        self._post(peer, pack(message))

    def lose(self, peer: int, reason: str) -> None:
        """Hang up on a worker and call it lost, unless it is already; what has come in from it counts."""
        self._post(peer, reason)

    def close(self) -> None:
        """Send what is still to be sent, hang up on all workers, and stop listening."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake()
        self._thread.join(timeout=10.0)

    def _post(self, peer: int, message: bytes | str) -> None:
        with self._lock:
            if self._closing:
                return
            self._said.append((peer, message))
            self._wake()

    def _wake(self) -> None:
        """Wake the hub; with the lock held, or it may see the news by itself and be gone already."""
        with contextlib.suppress(BlockingIOError):  # so many calls are waiting then that the hub will look anyway
            self._wake_in.send(b"x")

    # -- the hub's own thread

    def _run(self) -> None:
        try:
            self._serve_all()
        except Exception as error:
            _log.exception("the hub of this run broke down")
            self._on_broken(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._closing = True
            self._hang_up()

    def _serve_all(self) -> None:
        while True:
            deadline = self._next_deadline()
            self._serve_ready(max(0.0, deadline - time.monotonic()))
            with self._lock:
                said, self._said = self._said, []
                closing = self._closing
            late = time.monotonic() >= deadline
            if late or any(isinstance(message, str) for _, message in said):
                # What has come in meanwhile counts: this process may have slept, or been busy, longer than they.
                self._serve_ready(0.0, woken=False)
            for peer in self._silent() if late else ():
                self._lose(peer, f"silent for {time.monotonic() - peer.heard:.1f} s")
            for number, message in said:
                if number in self._peers:
                    self._speak(self._peers[number], message)
            if closing:
                return

    def _serve_ready(self, timeout: float, woken: bool = True) -> None:
        """Serve all sockets that are ready. Calls of other threads are left for the next turn unless `woken`."""
        for key, ready in self._selector.select(None if timeout == math.inf else timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_out:
                if woken:
                    self._wake_out.recv(4096)
            elif key.data.number in self._peers:
                self._guarded(self._converse, key.data, ready)

    def _next_deadline(self) -> float:
        """Return the time before which no peer can be silent for too long: each message of a peer moves its own on."""
        return min(map(self._deadline, self._peers.values()), default=math.inf)

    def _deadline(self, peer: _Peer) -> float:
        return peer.heard + (self._silence if peer.channel.open else _SECONDS_TO_PROVE)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            self._refusals.add(f"a connection could not be accepted: {error}")
            return
        caller = f"{address[0]}:{address[1]}"
        unproven = [peer for peer in self._peers.values() if not peer.channel.open]
        if len(unproven) >= _MOST_UNPROVEN:
            self._lose(unproven[0], f"too many connections that have proven nothing, and now {caller}")
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock, self._silence)
        self._count += 1
        peer = _Peer(self._count, caller, sock, Channel(self._context, leads=True), time.monotonic())
        self._peers[peer.number] = peer
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._guarded(self._flush, peer)

    def _converse(self, peer: _Peer, ready: int) -> None:
        if ready & selectors.EVENT_READ:
            data = peer.socket.recv(1 << 18)
            if not data:
                raise WireError("it hung up")
            frames = peer.channel.receive(data)
            if peer.channel.open:
                peer.heard = time.monotonic()
            for body in frames:
                message = unpack_report(body)
                peer.announced = True
                self._on_message(peer.number, message)
        if peer.number in self._peers:
            self._flush(peer)

    def _guarded(self, talk: Callable[..., None], peer: _Peer, *arguments: Any) -> None:
        """Lose a peer with which anything goes wrong, and no other."""
        try:
            talk(peer, *arguments)
        except BlockingIOError:
            return
        except (WireError, OSError) as error:
            self._say_why(peer)
            self._lose(peer, str(error))
        except Exception as error:
            _log.exception("a message of peer %d could not be dealt with", peer.number)
            self._lose(peer, f"{type(error).__name__}: {error}")

    def _say_why(self, peer: _Peer) -> None:
        """Send what TLS has to say to a peer that is refused, if it can be sent at once."""
        with contextlib.suppress(OSError):
            peer.socket.send(peer.channel.to_send())

    def _speak(self, peer: _Peer, message: bytes | str) -> None:
        if isinstance(message, str):
            self._lose(peer, message)
        else:
            self._guarded(self._say, peer, message)

    def _say(self, peer: _Peer, body: bytes) -> None:
        peer.channel.say(body)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        peer.outgoing += peer.channel.to_send()
        try:
            while peer.outgoing:
                del peer.outgoing[: peer.socket.send(peer.outgoing)]
        except BlockingIOError:
            pass  # the rest goes when the selector says that there is room
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self._selector.modify(peer.socket, wanted, peer)

    def _silent(self) -> list[_Peer]:
        """Return the peers that have said nothing for too long."""
        now = time.monotonic()
        return [peer for peer in self._peers.values() if self._deadline(peer) <= now]

    def _lose(self, peer: _Peer, reason: str) -> None:
        self._forget(peer)
        if peer.announced:
            self._on_lost(peer.number, reason)
        else:
            lacking = "said hello" if peer.channel.open else "proved itself"
            self._refusals.add(f"refused a connection from {peer.address} that never {lacking}: {reason}")

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.number, None) is not None:
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def _hang_up(self) -> None:
        for peer in list(self._peers.values()):
            peer.socket.settimeout(1.0)
            try:
                peer.socket.sendall(peer.outgoing)
            except OSError as error:
                _log.debug("a worker did not take its last orders: %s", error)
            self._forget(peer)
        self._refusals.close()
        for resource in (self._selector, self._listener, self._wake_in, self._wake_out):
            resource.close()
