"""The wire: whole frames out of any chunks of bytes, and nothing at all from a peer that is not of the same run."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_credentials import ANOTHER, RUN

from cerebro_spark.backend.wire.channel import MAGIC, MOST_BYTES, VERSION, Channel, WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.credentials import Credentials, make_context

DRIVER, WORKER = make_context(RUN.driver), make_context(RUN.worker)
frames = st.lists(st.binary(max_size=80), max_size=6)


def shake(driver: Channel, worker: Channel) -> None:
    """Let both sides speak in turn until each has proven itself to the other."""
    while not (driver.open and worker.open):
        driver.receive(worker.to_send())
        worker.receive(driver.to_send())


def pair(driver: ssl.SSLContext = DRIVER, worker: ssl.SSLContext = WORKER) -> tuple[Channel, Channel]:
    """A driver's and a worker's channel that have proven themselves to each other."""
    made = Channel(driver, leads=True), Channel(worker, leads=False)
    shake(*made)
    return made


@settings(deadline=None)
@given(frames, frames, st.data())
def test_frames_arrive_whole_however_the_bytes_are_cut(down: list[bytes], up: list[bytes], data: st.DataObject) -> None:
    driver, worker = pair()
    for sender, receiver, said in ((driver, worker, down), (worker, driver, up)):
        for body in said:
            sender.say(body)
        stream = sender.to_send()
        heard = []
        while stream:
            cut = data.draw(st.integers(1, len(stream)))
            heard += receiver.receive(stream[:cut])
            stream = stream[cut:]
        assert heard == said


def test_it_is_tls_and_nothing_of_a_frame_can_be_read() -> None:
    driver, worker = pair()
    assert driver._tls.version() == worker._tls.version() == "TLSv1.3"
    worker.say(b"finished unit 7 of trial t3")
    said = worker.to_send()
    assert b"finished" not in said
    assert b"trial" not in said
    assert driver.receive(said) == [b"finished unit 7 of trial t3"]


def test_older_tls_is_refused() -> None:
    older = make_context(RUN.worker)
    older.minimum_version, older.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(WireError, match="does not speak this protocol"):
        pair(worker=older)


def without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=RUN.driver.authority)
    return context


def as_driver(given: Credentials) -> Credentials:
    return Credentials("driver", given.authority, given.certificate, given.key)


def as_worker(given: Credentials) -> Credentials:
    return Credentials("worker", given.authority, given.certificate, given.key)


@pytest.mark.parametrize(
    ("driver", "worker"),
    [
        pytest.param(DRIVER, make_context(ANOTHER.worker), id="worker of another run"),
        pytest.param(make_context(ANOTHER.driver), WORKER, id="driver of another run"),
        pytest.param(DRIVER, without_certificate(), id="nobody"),
        pytest.param(make_context(as_driver(RUN.worker)), WORKER, id="worker as driver"),
        pytest.param(DRIVER, make_context(as_worker(RUN.driver)), id="driver as worker"),
    ],
)
def test_only_the_other_role_of_the_same_run_is_trusted(driver: ssl.SSLContext, worker: ssl.SSLContext) -> None:
    with pytest.raises(WireError, match="certificate of this run"):
        pair(driver, worker)


def test_a_certificate_without_its_key_proves_nothing() -> None:
    stolen = Credentials("worker", RUN.worker.authority, RUN.worker.certificate, ANOTHER.worker.key)
    with pytest.raises(ssl.SSLError):
        make_context(stolen)


def test_a_worker_trusts_nobody_before_the_driver_does() -> None:
    """A worker's handshake is over before the driver has looked at its certificate."""
    driver, worker = Channel(DRIVER, leads=True), Channel(make_context(RUN.worker), leads=False)
    driver.receive(worker.to_send())
    worker.receive(driver.to_send())
    assert not worker.open
    with pytest.raises(WireError, match="before both sides"):
        worker.say(b"hello")


def test_an_echo_is_no_proof() -> None:
    channel = Channel(WORKER, leads=False)
    with pytest.raises(WireError):
        channel.receive(channel.to_send())
    assert not channel.open


def test_another_workers_conversation_cannot_be_played_back() -> None:
    driver, worker = pair()
    worker.say(b"finished")
    recorded = worker.to_send()
    assert driver.receive(recorded) == [b"finished"]
    with pytest.raises(WireError, match="changed on its way"):
        driver.receive(recorded)
    other, _ = pair()
    with pytest.raises(WireError, match="changed on its way"):
        other.receive(recorded)


def test_a_whole_conversation_cannot_be_played_back() -> None:
    driver, worker = Channel(DRIVER, leads=True), Channel(WORKER, leads=False)
    recorded = []
    while not (driver.open and worker.open):
        recorded.append(worker.to_send())
        driver.receive(recorded[-1])
        worker.receive(driver.to_send())
    worker.say(b"finished")
    victim = Channel(DRIVER, leads=True)
    heard: list[bytes] = []
    with pytest.raises(WireError):
        heard += [body for said in [*recorded, worker.to_send()] for body in victim.receive(said)]
    assert not heard
    assert not victim.open


@settings(max_examples=drawn(150), deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_garbage_opens_nothing_and_says_nothing(noise: bytes, leads: bool) -> None:
    channel = Channel(DRIVER if leads else WORKER, leads=leads)
    try:
        assert channel.receive(noise) == []
        assert channel.receive(b"\x16\x03\x01" + noise) == []
    except WireError:
        pass
    assert not channel.open


@settings(max_examples=drawn(150), deadline=None)
@given(st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    driver, worker = pair()
    worker.say(b"loaded train-00000")
    stream = bytearray(worker.to_send())
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert driver.receive(bytes(stream)) == [], "only an altered length may leave it waiting"
        assert place < 5
    except WireError:
        pass


def record_versions(said: bytes) -> set[int]:
    """Where the records of TLS name its version, which TLS 1.3 ignores there."""
    found, place = set(), 0
    while place < len(said):
        found |= {place + 1, place + 2}
        place += 5 + int.from_bytes(said[place + 3 : place + 5], "big")
    return found


# A handshake has signatures of random lengths: no number may be drawn that depends on them.
@settings(max_examples=drawn(150), deadline=None)
@given(st.integers(0, 2), st.integers(0, 1 << 20), st.integers(0, 7))
def test_a_bit_flipped_in_the_handshake_is_noticed(turn: int, drawn_place: int, bit: int) -> None:
    driver, worker = Channel(DRIVER, leads=True), Channel(WORKER, leads=False)
    ignored = False
    try:
        for number in range(4):
            speaker, listener = (worker, driver) if number % 2 == 0 else (driver, worker)
            said = bytearray(speaker.to_send())
            if number == turn:
                place = drawn_place % len(said)
                ignored = place in record_versions(bytes(said))
                said[place] ^= 1 << bit
            listener.receive(bytes(said))
    except WireError:
        return
    assert ignored or not (driver.open and worker.open)


def test_frames_have_a_limit() -> None:
    driver, worker = pair()
    with pytest.raises(WireError, match="too large"):
        worker.say(b"x" * (MOST_BYTES + 1))
    worker._write((MOST_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match="claims"):
        driver.receive(worker.to_send())


def test_the_last_of_the_handshake_and_a_long_message_may_come_together() -> None:
    driver, worker = Channel(DRIVER, leads=True), Channel(WORKER, leads=False)
    driver.receive(worker.to_send())
    worker.receive(driver.to_send())
    proof = worker.to_send()
    driver.receive(proof[:53])
    driver.receive(proof[53:])
    driver.say(b"x" * 300_000)
    assert worker.receive(driver.to_send()) == [b"x" * 300_000]


def test_nothing_is_said_before_the_proof() -> None:
    with pytest.raises(WireError, match="before both sides"):
        Channel(DRIVER, leads=True).say(b"load")


def test_a_driver_that_cannot_be_reached_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(WireError, match=rf"cannot be reached at 127.0.0.1:{address[1]} \(.*spark.driver.host"):
        DriverConnection(address, RUN.worker, 5.0)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, 10 * VERSION])
def test_another_version_is_named_with_what_to_do(version: int) -> None:
    said = rf"speaks version {version} of the protocol, but this one version {VERSION}: install the same version"
    driver, worker = Channel(DRIVER, leads=True), Channel(WORKER, leads=False)
    # Up to version 3 it was said in the open.
    with pytest.raises(WireError, match=said):
        driver.receive(b"cerebro-spark wire %d\n" % version + b"n" * 32)
    assert not driver.open
    driver = Channel(DRIVER, leads=True)
    write = worker._write
    worker._write = lambda data: write(data.replace(MAGIC, b"cerebro-spark wire %d\n" % version))  # type: ignore[method-assign]
    with pytest.raises(WireError, match=said):
        shake(driver, worker)
    assert not driver.open


def test_another_protocol_is_no_version_of_this_one() -> None:
    for leads in (True, False):
        with pytest.raises(WireError, match="does not speak this protocol"):
            Channel(DRIVER if leads else WORKER, leads=leads).receive(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_keys_are_shown_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RUN.worker.key.splitlines()[1] not in repr(RUN)
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def noted(context: ssl.SSLContext, path: str, *rest: Any) -> None:
        modes.append(stat.S_IMODE(Path(path).stat().st_mode))
        load(context, path, *rest)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", noted)
    make_context(RUN.worker)
    assert modes == [0o600]
    assert not list(tmp_path.iterdir()), "nothing is left"
