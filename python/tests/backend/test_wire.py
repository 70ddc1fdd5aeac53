"""The wire: whole frames out of any chunks of bytes, and nothing at all from a peer that does not know the secret."""

from __future__ import annotations

import socket

import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.wire.channel import MAGIC, VERSION, Channel, WireError
from cerebro_spark.backend.wire.connection import DriverConnection

SECRET = b"s" * 32
frames = st.lists(st.binary(max_size=80), max_size=6)


def pair(secret: bytes = SECRET) -> tuple[Channel, Channel]:
    """A driver's and a worker's channel that have proven themselves to each other."""
    driver, worker = Channel(SECRET, leads=True), Channel(secret, leads=False)
    while not (driver.open and worker.open):
        worker.receive(driver.to_send())
        driver.receive(worker.to_send())
    return driver, worker


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


def test_a_worker_with_a_wrong_secret_is_refused() -> None:
    with pytest.raises(WireError, match="does not know the secret"):
        pair(b"x" * 32)


def test_a_driver_with_a_wrong_secret_is_refused() -> None:
    impostor, worker = Channel(b"x" * 32, leads=True), Channel(SECRET, leads=False)
    greeting = worker.to_send()
    worker.receive(impostor.to_send())
    impostor.receive(greeting)
    with pytest.raises(WireError, match="does not know the secret"):
        worker.receive(impostor.to_send())


def test_an_echo_is_no_proof() -> None:
    channel = Channel(SECRET, leads=True)
    with pytest.raises(WireError, match="echoes"):
        channel.receive(channel.to_send())


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


@settings(max_examples=drawn(150), deadline=None)
@given(st.binary(max_size=400))
def test_garbage_opens_nothing_and_says_nothing(noise: bytes) -> None:
    channel = Channel(SECRET, leads=True)
    try:
        assert channel.receive(noise) == []
        assert channel.receive(MAGIC + noise) == []
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
        assert place < 4
    except WireError:
        pass


def test_frames_have_a_limit() -> None:
    driver, _ = pair()
    with pytest.raises(WireError, match="claims"):
        driver.receive(b"\xff" * 200)


def test_talk_without_proof_is_cut_short() -> None:
    channel = Channel(SECRET, leads=True)
    channel.receive(MAGIC + b"n" * 32)
    with pytest.raises(WireError, match="does not know the secret"):
        channel.receive(b"z" * 32)


def test_proof_and_a_long_message_may_come_together() -> None:
    driver, worker = Channel(SECRET, leads=True), Channel(SECRET, leads=False)
    worker.receive(driver.to_send())
    greeting_and_proof = worker.to_send()
    driver.receive(greeting_and_proof[:53])
    worker.receive(driver.to_send())
    worker.say(b"x" * 300_000)
    assert len(driver.receive(greeting_and_proof[53:] + worker.to_send())) == 1


def test_nothing_is_said_before_the_proof() -> None:
    with pytest.raises(WireError, match="before both sides"):
        Channel(SECRET, leads=True).say(b"load")


def test_a_driver_that_cannot_be_reached_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    with pytest.raises(WireError, match=rf"cannot be reached at 127.0.0.1:{address[1]} \(.*spark.driver.host"):
        DriverConnection(address, SECRET, 5.0)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, 10 * VERSION])
def test_another_version_is_named_with_what_to_do(version: int) -> None:
    channel = Channel(SECRET, leads=True)
    said = rf"speaks version {version} of the protocol, but this one version {VERSION}: install the same version"
    with pytest.raises(WireError, match=said):
        channel.receive(b"cerebro-spark wire %d\n" % version + b"n" * 32)
    assert not channel.open


def test_another_protocol_is_no_version_of_this_one() -> None:
    with pytest.raises(WireError, match="does not speak this protocol"):
        Channel(SECRET, leads=False).receive(b"SSH-2.0-OpenSSH_9.6\r\n")
