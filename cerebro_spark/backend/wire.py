"""Messages between driver and workers: framed JSON over TCP, both sides proven by a secret. It unpickles nothing.

Workers dial the driver. Before anything else each side shows, by an HMAC over random numbers of both, that it knows the
run's secret; the secret itself never travels. Every later frame carries an HMAC over its place in the conversation:
nothing can be changed, repeated, left out or slipped in. Frames are JSON objects: whoever fails a check is dropped, and
what he sent has changed nothing. What is said is authenticated, not encrypted: who listens on the network can read it.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import socket
import struct
import threading
from hashlib import sha256
from typing import Any

from cerebro_spark.errors import BackendError

Message = dict[str, Any]

MAGIC = b"cerebro-spark wire 1\n"
MOST_BYTES = 64 << 20
_NONCE = 32
_TAG = 32
_LENGTH = struct.Struct(">I")


class WireError(BackendError):
    """The other side is not who it says, or does not keep to the protocol."""


class Seal:
    """Signs what goes one way, frame by frame."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def tag(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, struct.pack(">Q", self._count) + body, sha256)


class Channel:
    """One side of a conversation, without a socket: bytes in, messages out, and the other way round.

    >>> driver, worker = Channel(b"secret", leads=True), Channel(b"secret", leads=False)
    >>> while not (driver.open and worker.open):
    ...     _ = worker.receive(driver.to_send()), driver.receive(worker.to_send())
    >>> worker.say({"type": "hello"})
    >>> driver.receive(worker.to_send())
    [{'type': 'hello'}]
    """

    def __init__(self, secret: bytes, *, leads: bool) -> None:
        self._secret = secret
        self._leads = leads
        self._nonce = os.urandom(_NONCE)
        self._theirs = b""
        self._stage = 0
        self._inbox = bytearray()
        self._outbox = bytearray(MAGIC + self._nonce)
        self._seals: tuple[Seal, Seal] | None = None

    @property
    def open(self) -> bool:
        """Whether the other side has proven itself."""
        return self._stage == 2

    def say(self, message: Message) -> None:
        """Queue a message; it goes out with the next `to_send`."""
        if self._seals is None or not self.open:
            raise WireError("nothing can be said before both sides have proven themselves")
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MOST_BYTES:
            raise WireError(f"a message of {len(body)} bytes is too large: at most {MOST_BYTES}")
        self._outbox += _LENGTH.pack(len(body)) + self._seals[0].tag(body) + body

    def to_send(self) -> bytes:
        """All bytes that are to go out, once."""
        data = bytes(self._outbox)
        self._outbox.clear()
        return data

    def receive(self, data: bytes) -> list[Message]:
        """Take in bytes as they come; returns whole messages. Raises WireError for anything out of order."""
        self._inbox += data
        if (self._stage == 0 and not self._greeted()) or (self._stage == 1 and not self._proven()):
            return []
        messages = []
        while (body := self._frame()) is not None:
            messages.append(_parse(body))
        return messages

    def _take(self, count: int) -> bytes | None:
        if len(self._inbox) < count:
            return None
        taken = bytes(self._inbox[:count])
        del self._inbox[:count]
        return taken

    def _greeted(self) -> bool:
        known = min(len(self._inbox), len(MAGIC))
        if self._inbox[:known] != MAGIC[:known]:
            raise WireError("the other side does not speak this protocol")
        greeting = self._take(len(MAGIC) + _NONCE)
        if greeting is None:
            return False
        self._theirs = greeting[len(MAGIC) :]
        if self._theirs == self._nonce:
            raise WireError("the other side only echoes")
        self._outbox += self._proof(self._leads)
        self._stage = 1
        return True

    def _proven(self) -> bool:
        proof = self._take(_TAG)
        if proof is None:
            return False
        if not hmac.compare_digest(proof, self._proof(not self._leads)):
            raise WireError("the other side does not know the secret of this run")
        self._seals = (Seal(self._key(self._leads)), Seal(self._key(not self._leads)))
        self._stage = 2
        return True

    def _frame(self) -> bytes | None:
        if len(self._inbox) < _LENGTH.size + _TAG:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        if length > MOST_BYTES:
            raise WireError(f"a frame claims {length} bytes, but at most {MOST_BYTES} are allowed")
        if len(self._inbox) < _LENGTH.size + _TAG + length:
            return None
        frame = self._take(_LENGTH.size + _TAG + length) or b""
        tag, body = frame[_LENGTH.size : _LENGTH.size + _TAG], frame[_LENGTH.size + _TAG :]
        assert self._seals is not None
        if not hmac.compare_digest(tag, self._seals[1].tag(body)):
            raise WireError("a frame was changed on its way")
        return body

    def _nonces(self) -> bytes:
        return self._nonce + self._theirs if self._leads else self._theirs + self._nonce

    def _proof(self, by_leader: bool) -> bytes:
        return hmac.digest(self._secret, (b"leader" if by_leader else b"follower") + self._nonces(), sha256)

    def _key(self, from_leader: bool) -> bytes:
        return hmac.digest(self._secret, (b"from leader" if from_leader else b"from follower") + self._nonces(), sha256)


def _parse(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("a frame is not a message")
    return message


def keep_alive(sock: socket.socket, seconds: float) -> None:
    """Have the system notice within so many seconds, about, that the machine at the other end is gone.

    It says no word then, and who only listens would wait for ever.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = 3
    wanted = {"TCP_KEEPIDLE": seconds / 2, "TCP_KEEPINTVL": seconds / (2 * probes), "TCP_KEEPCNT": probes}
    for name, value in wanted.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, math.ceil(value)))
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # what was sent and is not confirmed counts too
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, math.ceil(1000 * seconds)))


class Line:
    """A worker's connection to the driver: blocking reads from one thread, writes from any.

    A driver whose machine is silent for about `silence` seconds has hung up.
    """

    def __init__(self, address: tuple[str, int], secret: bytes, timeout: float, *, silence: float = 60.0) -> None:
        try:
            self._socket = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise WireError(
                f"the driver cannot be reached at {address[0]}:{address[1]} ({error}): workers must be able to dial it;"
                " see spark.driver.host, and `host` and `port` of SparkBackend"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._socket, silence)
        self._channel = Channel(secret, leads=False)
        self._early: list[Message] = []
        self._sending = threading.Lock()
        try:
            self._prove()
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def _prove(self) -> None:
        while not self._channel.open:
            self._socket.sendall(self._channel.to_send())
            self._early += self._channel.receive(self._received())
        self._socket.sendall(self._channel.to_send())

    def send(self, message: Message) -> None:
        """Say something; frames of several threads do not mingle."""
        with self._sending:
            self._channel.say(message)
            self._socket.sendall(self._channel.to_send())

    def receive(self) -> list[Message]:
        """Wait for what the driver says. Raises WireError when it hangs up."""
        messages, self._early = self._early, []
        while not messages:
            messages = self._channel.receive(self._received())
        return messages

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise WireError("the driver hung up")
        return data
