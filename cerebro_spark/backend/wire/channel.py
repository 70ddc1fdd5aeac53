"""Frames between driver and workers, over TLS 1.3, both sides known by certificates of their run. It does not look into
a frame.

Workers dial the driver. Once both certificates are found good, each side says which version of the protocol it speaks;
then come frames. Nothing can be read, changed, repeated, left out or inserted on the network. A peer that fails a check
is dropped before anything it sent has an effect.
"""

from __future__ import annotations

import ssl
import struct

from cerebro_spark.backend.wire.credentials import DRIVER
from cerebro_spark.errors import BackendError

VERSION = 4
"""To be raised with every change of the messages that an older version would misread."""
_PROTOCOL = b"cerebro-spark wire "
MAGIC = _PROTOCOL + b"%d\n" % VERSION
MOST_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
# The first byte of what a TLS peer says at first: a handshake, or an alert.
_TLS = (0x16, 0x15)
_CHUNK = 1 << 16


class WireError(BackendError):
    """The other side is not of this run, or does not keep to the protocol."""


class Channel:
    """One side of a conversation, without a socket: bytes in, frames out, and the other way round.

    Args:
        context: How this side talks; see `make_context`.
        leads: Whether this side is the driver.

    >>> from cerebro_spark.backend.wire.authority import issue_credentials
    >>> from cerebro_spark.backend.wire.credentials import make_context
    >>> driver, worker = map(make_context, issue_credentials())
    >>> driver, worker = Channel(driver, leads=True), Channel(worker, leads=False)
    >>> while not (driver.open and worker.open):
    ...     _ = driver.receive(worker.to_send()), worker.receive(driver.to_send())
    >>> worker.say(b"hello")
    >>> driver.receive(worker.to_send())
    [b'hello']
    """

    def __init__(self, context: ssl.SSLContext, *, leads: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=leads, server_hostname=None if leads else DRIVER
        )
        self._inbox = bytearray()
        self._heard = self._trusted = self._greeted = False
        self._shake_hands()

    @property
    def open(self) -> bool:
        """Whether the other side has proven itself, and speaks this version."""
        return self._greeted

    def say(self, body: bytes) -> None:
        """Queue a frame; it goes out with the next `to_send`."""
        if not self.open:
            raise WireError("nothing can be said before both sides have proven themselves")
        if len(body) > MOST_BYTES:
            raise WireError(f"a message of {len(body)} bytes is too large: at most {MOST_BYTES}")
        self._write(_LENGTH.pack(len(body)) + body)

    def to_send(self) -> bytes:
        """All bytes that are to go out, once."""
        return self._outgoing.read()

    def receive(self, data: bytes) -> list[bytes]:
        """Take in bytes as they come; returns whole frames. Raises WireError for anything out of order."""
        if data and not self._heard:
            self._heard = True
            if data[0] not in _TLS:
                raise WireError(_misunderstanding(data))
        self._incoming.write(data)
        if not self._trusted and not self._shake_hands():
            return []
        self._read()
        if not self._greeted and not self._read_greeting():
            return []
        frames = []
        while (body := self._frame()) is not None:
            frames.append(body)
        return frames

    def _shake_hands(self) -> bool:
        """Go on with the handshake; return whether both sides have proven themselves."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise WireError(_refusal(error)) from error
        self._trusted = True
        self._write(MAGIC)
        return True

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]

    def _read(self) -> None:
        """Move what can be read into the inbox."""
        try:
            while data := self._tls.read(_CHUNK):
                self._inbox += data
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise WireError(_refusal(error)) from error

    def _read_greeting(self) -> bool:
        said = bytes(self._inbox[: len(MAGIC)])
        if said != MAGIC[: len(said)]:
            raise WireError(_misunderstanding(said))
        self._greeted = len(said) == len(MAGIC)
        if self._greeted:
            del self._inbox[: len(MAGIC)]
        return self._greeted

    def _frame(self) -> bytes | None:
        if len(self._inbox) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        if length > MOST_BYTES:
            raise WireError(f"a frame claims {length} bytes, but at most {MOST_BYTES} are allowed")
        end = _LENGTH.size + length
        if len(self._inbox) < end:
            return None
        body = bytes(self._inbox[_LENGTH.size : end])
        del self._inbox[:end]
        return body


def _refusal(error: ssl.SSLError) -> str:
    """Return in words why TLS cannot go on."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other side has no certificate of this run that is good for its role: {error.verify_message}"
    if any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA")):
        return f"the other side shows no certificate of this run, or does not take ours: {reason}"
    if any(word in reason for word in ("BAD_RECORD", "BAD_DECRYPT", "DECRYPT_ERROR", "BAD_MAC")):
        return f"what came was changed on its way: {reason}"
    return f"the other side does not speak this protocol: {reason}"


def _misunderstanding(said: bytes) -> str:
    """Return why a conversation cannot go on that the other side opened with these bytes."""
    if not said.startswith(_PROTOCOL):
        return "the other side does not speak this protocol"
    theirs = said.removeprefix(_PROTOCOL).partition(b"\n")[0].decode(errors="replace")
    return (
        f"the other side speaks version {theirs} of the protocol, but this one version {VERSION}: install the same"
        " version of cerebro-spark for the driver and for its workers"
    )
