"""A hub under fire: bytes that no worker of its run has said, before and after the handshake, over real connections.

Each attack has a connection of its own, since one bad frame is the end of it. Meanwhile honest workers come and go.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cerebro_spark.backend.wire.authority import RunCredentials, issue_credentials
from cerebro_spark.backend.wire.channel import Channel, WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.credentials import make_context
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    Heartbeat,
    Hello,
    MessageError,
    OutputLine,
    UnitStarted,
    pack,
    unpack_report,
)

_WAIT = 60.0
_HONEST = "honest"
_FORGED = OutputLine("forged")
_BODIES = (pack(_FORGED), pack(Hello("w0", "host", 7)), pack(UnitStarted(3)))


class Siege(NamedTuple):
    """What came of an attack.

    Attributes:
        before: The attacks before the handshake was over.
        after: The attacks after it.
        acted: What the hub took for a message of a worker, though no honest one had sent it.
        admitted: How many honest workers came meanwhile; all were heard.
        slowest: The seconds that the slowest of them waited.
        growth: By how many bytes the process of the hub has grown since a tenth of the attacks was over.
    """

    before: int
    after: int
    acted: list[FromWorker]
    admitted: int
    slowest: float
    growth: int


def besiege(before: int, after: int, seed: int) -> Siege:
    """Attack a hub so many times before and after the handshake, and return what came of it."""
    credentials = issue_credentials()
    heard: queue.Queue[FromWorker] = queue.Queue()
    acted: list[FromWorker] = []

    def hear(peer: int, message: FromWorker) -> None:
        if isinstance(message, Hello) and message.worker == _HONEST:
            heard.put(message)
        elif not isinstance(message, Heartbeat):
            acted.append(message)

    hub = Hub(credentials.driver, hear, lambda peer, reason: None)
    context = multiprocessing.get_context("spawn")
    done = context.Value("q", 0)
    attacker = context.Process(target=attack, args=(hub.address, credentials, before, after, seed, done))
    attacker.start()
    waits: list[float] = []
    settled = None
    while True:
        over = not attacker.is_alive()
        waits.append(_admit(hub, credentials, heard))
        if settled is None and done.value >= (before + after) // 10:
            settled = _memory()
        if over:
            break
        attacker.join(0.5)
    grown = _memory() - (settled or _memory())
    hub.close()
    if attacker.exitcode != 0 or done.value != before + after:
        raise RuntimeError(f"only {done.value} of {before + after} attacks were made: exit code {attacker.exitcode}")
    return Siege(before, after, acted, len(waits), max(waits), grown)


def _admit(hub: Hub, credentials: RunCredentials, heard: queue.Queue[FromWorker]) -> float:
    """Let an honest worker come and go; return how long it took until it was heard."""
    began = time.monotonic()
    line = DriverConnection(hub.address, credentials.worker, _WAIT)
    line.send(Hello(_HONEST))
    heard.get(timeout=_WAIT)
    line.close()
    return time.monotonic() - began


def _memory() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def attack(
    address: tuple[str, int], credentials: RunCredentials, before: int, after: int, seed: int, done: object
) -> None:
    """Attack a hub at this address, and count in `done`. It runs in a process of its own."""
    attacks = Attacks(credentials, seed)
    chances = random.Random(f"{seed}/order")
    left = {attacks.stranger: before, attacks.traitor: after}
    while any(left.values()):
        (kind,) = chances.choices(list(left), list(left.values()))
        left[kind] -= 1
        _one(address, kind)
        done.value += 1  # type: ignore[attr-defined]


def _one(address: tuple[str, int], kind: Callable[[socket.socket], None]) -> None:
    """Make one attack, and wait until the hub has hung up."""
    with socket.create_connection(address, timeout=_WAIT) as sock:
        # No port stays taken for a minute.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            kind(sock)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # the hub hung up before all was said


class Attacks:
    """Draws attacks.

    Args:
        credentials: Those of the run; a stranger has none of them, but may have seen what workers send.
        seed: What is drawn.
    """

    def __init__(self, credentials: RunCredentials, seed: int) -> None:
        self._random = random.Random(seed)
        self._worker = make_context(credentials.worker)
        self._foreign = make_context(issue_credentials().worker)
        self._foreign.check_hostname, self._foreign.verify_mode = False, ssl.CERT_NONE
        self._hello = Channel(self._worker, leads=False).to_send()

    def stranger(self, sock: socket.socket) -> None:
        """Say something without any credentials."""
        draw, hello = self._random, self._hello
        match draw.randrange(6):
            case 0:
                sock.sendall(draw.randbytes(draw.randint(1, 2000)))
            case 1:
                sock.sendall(b"\x16\x03\x01" + draw.randbytes(draw.randint(1, 2000)))
            case 2:
                sock.sendall(b"cerebro-spark wire %d\n" % draw.randint(1, 9) + draw.randbytes(64))
            case 3:
                sock.sendall(self._mutated(hello))
            case 4:
                sock.sendall(hello + self._mutated(hello) + b"\x17\x03\x03\x00\x20" + draw.randbytes(32))
            case _:
                body = draw.choice(_BODIES)
                sock.sendall(hello + b"\x17\x03\x03" + struct.pack(">H", len(body)) + body)

    def traitor(self, sock: socket.socket) -> None:
        """Spoil a conversation whose handshake is over; now and then, begin one with the keys of another run."""
        draw = self._random
        foreign = draw.randrange(20) == 0
        channel = Channel(self._foreign if foreign else self._worker, leads=False)
        self._begin(sock, channel)
        if foreign:
            channel.say(pack(_FORGED))
            sock.sendall(channel.to_send())
            return
        match draw.randrange(5):
            case 0:  # a bit is flipped
                channel.say(pack(_FORGED))
                sock.sendall(self._flipped(channel.to_send()))
            case 1:  # a frame is left out
                channel.say(pack(Heartbeat()))
                channel.to_send()
                channel.say(pack(_FORGED))
                sock.sendall(channel.to_send())
            case 2:  # a frame is repeated
                channel.say(pack(Heartbeat()))
                twice = channel.to_send()
                channel.say(pack(_FORGED))
                sock.sendall(twice + twice + channel.to_send())
            case 3:  # a frame is inserted
                body = draw.randbytes(draw.randint(1, 400))
                channel.say(pack(_FORGED))
                sock.sendall(b"\x17\x03\x03" + struct.pack(">H", len(body)) + body + channel.to_send())
            case _:  # a worker says what is no message
                channel.say(self._no_message())
                sock.sendall(channel.to_send())

    def _begin(self, sock: socket.socket, channel: Channel) -> None:
        while not channel.open:
            sock.sendall(channel.to_send())
            said = sock.recv(1 << 16)
            if not said:
                raise ConnectionError("refused")
            try:
                channel.receive(said)
            except WireError as error:
                raise ConnectionError(str(error)) from error
        sock.sendall(channel.to_send())

    def _no_message(self) -> bytes:
        while True:
            body = self._mutated(self._random.choice(_BODIES))
            try:
                unpack_report(body)
            except MessageError:
                return body

    def _flipped(self, said: bytes) -> bytes:
        changed = bytearray(said)
        changed[self._random.randrange(5, len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _mutated(self, said: bytes) -> bytes:
        """Return bytes like these: some are changed, left out or added."""
        draw, changed = self._random, bytearray(said)
        for _ in range(draw.randint(1, 8)):
            place = draw.randrange(len(changed) + 1)
            match draw.randrange(3):
                case 0:
                    changed[place : place + 1] = draw.randbytes(1)
                case 1:
                    del changed[place : place + draw.randint(1, 40)]
                case _:
                    changed[place:place] = draw.randbytes(draw.randint(1, 40))
        return bytes(changed)
