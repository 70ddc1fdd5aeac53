"""A worker's connection to the driver, and what both ends ask of their sockets. It decides nothing."""

from __future__ import annotations

import math
import socket
import threading

from cerebro_spark.backend.wire.channel import Channel, WireError
from cerebro_spark.backend.wire.credentials import Credentials, make_context
from cerebro_spark.backend.wire.messages import FromWorker, ToWorker, pack, unpack_order


def keep_alive(sock: socket.socket, seconds: float) -> None:
    """Have the system notice within so many seconds, about, that the machine at the other end is gone.

    Such a machine closes no connection, so a side that only reads would wait for ever.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = 3
    wanted = {"TCP_KEEPIDLE": seconds / 2, "TCP_KEEPINTVL": seconds / (2 * probes), "TCP_KEEPCNT": probes}
    for name, value in wanted.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, math.ceil(value)))
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # what was sent and is not confirmed counts too
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, math.ceil(1000 * seconds)))


class DriverConnection:
    """A worker's connection to the driver: blocking reads from one thread, writes from any.

    Args:
        address: Host and port of the driver's hub.
        credentials: What a worker of this run shows.
        timeout: Seconds that connecting and proving may take.
        silence: Seconds, about, after which a driver whose machine does not answer counts as gone.

    Raises:
        WireError: If the driver cannot be reached, or is not of this run.
    """

    def __init__(
        self, address: tuple[str, int], credentials: Credentials, timeout: float, *, silence: float = 60.0
    ) -> None:
        try:
            self._socket = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise WireError(
                f"the driver cannot be reached at {address[0]}:{address[1]} ({error}): workers must be able to dial it;"
                " see spark.driver.host, and `host` and `port` of SparkBackend"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._socket, silence)
        self._channel = Channel(make_context(credentials), leads=False)
        self._early: list[bytes] = []
        # Threads that send wait for each other, one that reads does not wait until others have sent.
        self._sending = threading.Lock()
        self._talking = threading.Lock()
        try:
            self._prove()
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def _prove(self) -> None:
        while not self._channel.open:
            self._socket.sendall(self._channel.to_send())
            self._early += self._received()
        self._socket.sendall(self._channel.to_send())

    def send(self, message: FromWorker) -> None:
        """Say something to the driver; frames of several threads do not mingle."""
        body = pack(message)
        with self._sending:
            with self._talking:
                self._channel.say(body)
                data = self._channel.to_send()
            self._socket.sendall(data)

    def receive(self) -> list[ToWorker]:
        """Wait for what the driver says. Raises WireError when it hangs up, or cannot be understood."""
        frames, self._early = self._early, []
        while not frames:
            frames = self._received()
        return [unpack_order(body) for body in frames]

    def receive_ready(self) -> list[ToWorker]:
        """Read once, and return the orders that are complete, if any: for a caller that waits for several things.

        Raises WireError when the driver hangs up, or cannot be understood.
        """
        frames, self._early = self._early, []
        if not frames:
            frames = self._received()
        return [unpack_order(body) for body in frames]

    @property
    def own_address(self) -> str:
        """The address of this machine by which it reaches the driver."""
        address: str = self._socket.getsockname()[0]
        return address

    def fileno(self) -> int:
        """Return the number of its socket, to wait for; what came with the proof is there before anything is read."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> list[bytes]:
        data = self._socket.recv(1 << 16)
        if not data:
            raise WireError("the driver hung up")
        with self._talking:
            return self._channel.receive(data)
