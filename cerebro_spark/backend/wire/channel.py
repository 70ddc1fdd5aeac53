"""Frames between driver and workers, over TCP, both sides authenticated by a secret. It does not look into a frame.

Workers dial the driver. Each side first says which version of the protocol it speaks. Then each shows, by an HMAC over
random numbers of both, that it knows the run's secret; the secret itself never travels. Every later frame carries an
HMAC over its number in the conversation: no frame can be changed, repeated, left out or inserted. A peer that fails a
check is dropped before anything it sent has an effect. Frames are authenticated, not encrypted: they can be read on the
network.
"""

from __future__ import annotations

import hmac
import os
import struct
from hashlib import sha256

from cerebro_spark.errors import BackendError

VERSION = 3
"""To be raised with every change of the messages that an older version would misread."""
_PROTOCOL = b"cerebro-spark wire "
MAGIC = _PROTOCOL + b"%d\n" % VERSION
MOST_BYTES = 64 << 20
_NONCE = 32
_TAG = 32
_LENGTH = struct.Struct(">I")


class WireError(BackendError):
    """The other side does not know the secret, or does not keep to the protocol."""


class Seal:
    """Signs what goes one way, frame by frame."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def tag(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, struct.pack(">Q", self._count) + body, sha256)


class Channel:
    """One side of a conversation, without a socket: bytes in, frames out, and the other way round.

    >>> driver, worker = Channel(b"secret", leads=True), Channel(b"secret", leads=False)
    >>> while not (driver.open and worker.open):
    ...     _ = worker.receive(driver.to_send()), driver.receive(worker.to_send())
    >>> worker.say(b"hello")
    >>> driver.receive(worker.to_send())
    [b'hello']
    """

    def __init__(self, secret: bytes, *, leads: bool) -> None:
        self._secret = secret
        self._leads = leads
        self._nonce = os.urandom(_NONCE)
        self._theirs = b""
        self._inbox = bytearray()
        self._outbox = bytearray(MAGIC + self._nonce)
        self._seals: tuple[Seal, Seal] | None = None

    @property
    def open(self) -> bool:
        """Whether the other side has proven itself."""
        return self._seals is not None

    def say(self, body: bytes) -> None:
        """Queue a frame; it goes out with the next `to_send`."""
        if self._seals is None:
            raise WireError("nothing can be said before both sides have proven themselves")
        if len(body) > MOST_BYTES:
            raise WireError(f"a message of {len(body)} bytes is too large: at most {MOST_BYTES}")
        self._outbox += _LENGTH.pack(len(body)) + self._seals[0].tag(body) + body

    def to_send(self) -> bytes:
        """All bytes that are to go out, once."""
        data = bytes(self._outbox)
        self._outbox.clear()
        return data

    def receive(self, data: bytes) -> list[bytes]:
        """Take in bytes as they come; returns whole frames. Raises WireError for anything out of order."""
        self._inbox += data
        if (not self._theirs and not self._greeted()) or (not self.open and not self._proven()):
            return []
        frames = []
        while (body := self._frame()) is not None:
            frames.append(body)
        return frames

    def _take(self, count: int) -> bytes | None:
        if len(self._inbox) < count:
            return None
        taken = bytes(self._inbox[:count])
        del self._inbox[:count]
        return taken

    def _greeted(self) -> bool:
        said = bytes(self._inbox[: len(MAGIC)])
        if said != MAGIC[: len(said)]:
            raise WireError(_misunderstanding(said))
        greeting = self._take(len(MAGIC) + _NONCE)
        if greeting is None:
            return False
        self._theirs = greeting[len(MAGIC) :]
        if self._theirs == self._nonce:
            raise WireError("the other side only echoes")
        self._outbox += self._proof(self._leads)
        return True

    def _proven(self) -> bool:
        proof = self._take(_TAG)
        if proof is None:
            return False
        if not hmac.compare_digest(proof, self._proof(not self._leads)):
            raise WireError("the other side does not know the secret of this run")
        self._seals = (Seal(self._key(self._leads)), Seal(self._key(not self._leads)))
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


def _misunderstanding(said: bytes) -> str:
    """Return why a conversation cannot go on that the other side opened with these bytes."""
    if not said.startswith(_PROTOCOL):
        return "the other side does not speak this protocol"
    theirs = said.removeprefix(_PROTOCOL).partition(b"\n")[0].decode(errors="replace")
    return (
        f"the other side speaks version {theirs} of the protocol, but this one version {VERSION}: install the same"
        " version of cerebro-spark for the driver and for its workers"
    )
