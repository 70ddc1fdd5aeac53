"""The hub, over real sockets: strangers change nothing, the silent are given up, the others go on."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from wire_credentials import ANOTHER, RUN

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import FromWorker, Heartbeat, Hello, OutputLine, Stop, ToWorker, UnitStarted
from cerebro_spark.events import LoadPartition

WAIT = 200.0
HELLO = Hello("w0")
LOAD = LoadPartition("w0", "p0")
BAD = OutputLine("bad")
LONG = OutputLine("takes long")


class Ear:
    """Collects what a hub tells."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[int, FromWorker]] = queue.Queue()
        self.lost: queue.Queue[tuple[int, str]] = queue.Queue()


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def hub(ear: Ear) -> Iterator[Hub]:
    made = Hub(RUN.driver, lambda *m: ear.messages.put(m), lambda *m: ear.lost.put(m), silence=120.0)
    yield made
    made.close()


def greeted(hub: Hub, ear: Ear) -> tuple[DriverConnection, int]:
    """A line that has said hello, and its number."""
    line = DriverConnection(hub.address, RUN.worker, WAIT)
    line.send(HELLO)
    return line, ear.messages.get(timeout=WAIT)[0]


def test_both_ways(hub: Hub, ear: Ear) -> None:
    line = DriverConnection(hub.address, RUN.worker, WAIT)
    line.send(Hello("w0", host="x" * 300_000))
    peer, message = ear.messages.get(timeout=WAIT)
    assert message == Hello("w0", host="x" * 300_000)
    hub.send(peer, LoadPartition("w0", "p" * 300_000))
    assert line.receive() == [LoadPartition("w0", "p" * 300_000)]
    line.close()
    assert ear.lost.get(timeout=WAIT) == (peer, "it hung up")


def test_a_worker_of_another_run_is_refused_and_logged_and_changes_nothing(
    hub: Hub, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    good = DriverConnection(hub.address, RUN.worker, WAIT)
    good.send(HELLO)
    peer, _ = ear.messages.get(timeout=WAIT)
    with caplog.at_level(logging.WARNING, "cerebro_spark.backend.wire.hub"):
        with pytest.raises((WireError, OSError)):
            DriverConnection(hub.address, ANOTHER.worker, WAIT).receive()
        hub.send(peer, LOAD)
        assert good.receive() == [LOAD]
    assert "never proved itself" in caplog.text
    assert ear.lost.empty()
    good.close()


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95" + b"\xff" * 500, b"\x00" * 9, b""])
def test_garbage_changes_nothing(hub: Hub, ear: Ear, noise: bytes) -> None:
    stranger = socket.create_connection(hub.address, timeout=WAIT)
    stranger.sendall(noise)
    good = DriverConnection(hub.address, RUN.worker, WAIT)
    good.send(HELLO)
    assert ear.messages.get(timeout=WAIT)[1] == HELLO
    assert ear.messages.empty()
    assert ear.lost.empty()
    stranger.close()
    good.close()


def test_strangers_that_vanish_at_once_do_not_break_the_hub(hub: Hub, ear: Ear) -> None:
    for _ in range(200):
        stranger = socket.create_connection(hub.address, timeout=WAIT)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
    good = DriverConnection(hub.address, RUN.worker, WAIT)
    good.send(HELLO)
    assert ear.messages.get(timeout=WAIT)[1] == HELLO
    good.close()


def test_a_crowd_that_proves_nothing_keeps_nobody_out(hub: Hub, ear: Ear) -> None:
    crowd = [socket.create_connection(hub.address, timeout=WAIT) for _ in range(80)]
    good = DriverConnection(hub.address, RUN.worker, WAIT)
    good.send(HELLO)
    assert ear.messages.get(timeout=WAIT)[1] == HELLO
    good.close()
    for stranger in crowd:
        stranger.close()


def test_many_orders_at_once_block_nobody(hub: Hub, ear: Ear) -> None:
    line = DriverConnection(hub.address, RUN.worker, WAIT)
    line.send(HELLO)
    peer = ear.messages.get(timeout=WAIT)[0]
    for number in range(5000):
        hub.send(peer, LoadPartition("w0", str(number)))
    heard: list[ToWorker] = []
    while len(heard) < 5000:
        heard += line.receive()
    assert heard == [LoadPartition("w0", str(number)) for number in range(5000)]
    line.close()


def test_a_listener_that_raises_costs_one_peer_not_the_hub(ear: Ear) -> None:
    def refuse(peer: int, message: FromWorker) -> None:
        if message == BAD:
            raise OverflowError("too much")
        ear.messages.put((peer, message))

    hub = Hub(RUN.driver, refuse, lambda *m: ear.lost.put(m))
    bad, good = DriverConnection(hub.address, RUN.worker, WAIT), DriverConnection(hub.address, RUN.worker, WAIT)
    bad.send(BAD)
    assert "too much" in ear.lost.get(timeout=WAIT)[1]
    good.send(HELLO)
    assert ear.messages.get(timeout=WAIT)[1] == HELLO
    hub.close()
    bad.close()
    good.close()


@pytest.mark.slow
def test_the_silent_are_given_up(ear: Ear) -> None:
    hub = Hub(RUN.driver, lambda *m: ear.messages.put(m), lambda *m: ear.lost.put(m), silence=12.0)
    silent, lively = DriverConnection(hub.address, RUN.worker, WAIT), DriverConnection(hub.address, RUN.worker, WAIT)
    silent.send(Hello("silent"))
    first = ear.messages.get(timeout=WAIT)[0]
    lively.send(Hello("lively"))
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            lively.send(Heartbeat())

    beating = threading.Thread(target=beat)
    beating.start()
    peer, reason = ear.lost.get(timeout=WAIT)
    stop.set()
    beating.join(WAIT)
    assert peer == first
    assert "silent for" in reason
    assert ear.lost.empty()
    hub.close()
    silent.close()
    lively.close()


class Busy:
    """A listener that is kept by one message until it is let go."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear
        self.kept, self.let_go = threading.Event(), threading.Event()

    def __call__(self, peer: int, message: FromWorker) -> None:
        if message == LONG:
            self.kept.set()
            assert self.let_go.wait(WAIT)
        self._ear.messages.put((peer, message))

    def holding(self, hub: Hub) -> DriverConnection:
        """A line whose message keeps the listener."""
        line = DriverConnection(hub.address, RUN.worker, WAIT)
        line.send(LONG)
        assert self.kept.wait(WAIT)
        return line


@pytest.mark.slow
def test_nobody_is_silent_whom_the_hub_had_no_time_to_hear(ear: Ear) -> None:
    busy = Busy(ear)
    hub = Hub(RUN.driver, busy, lambda *m: ear.lost.put(m), silence=4.0)
    lively, peer = greeted(hub, ear)
    holding = busy.holding(hub)
    lively.send(Heartbeat())
    assert not busy.let_go.wait(5.0), "longer than anybody may be silent"
    busy.let_go.set()
    heard = {ear.messages.get(timeout=WAIT)[1] for _ in range(2)}
    assert heard == {LONG, Heartbeat()}
    hub.send(peer, LOAD)
    assert lively.receive() == [LOAD]
    hub.close()
    holding.close()
    lively.close()


def test_what_came_in_before_a_worker_is_called_lost_counts(ear: Ear) -> None:
    busy = Busy(ear)
    hub = Hub(RUN.driver, busy, lambda *m: ear.lost.put(m))
    dying, peer = greeted(hub, ear)
    holding = busy.holding(hub)
    dying.send(UnitStarted(1))
    hub.lose(peer, "its process ended")
    busy.let_go.set()
    assert ear.lost.get(timeout=WAIT) == (peer, "its process ended")
    told = [ear.messages.get_nowait()[1] for _ in range(ear.messages.qsize())]
    assert told == [LONG, UnitStarted(1)], "all of it before the loss"
    hub.close()
    holding.close()
    dying.close()


def test_what_is_said_while_somebody_is_lost_is_said_at_once(ear: Ear) -> None:
    """The hub looks a second time before it loses somebody; whoever calls it in that moment must not be overheard."""
    hub = Hub(RUN.driver, lambda *m: ear.messages.put(m), lambda *m: ear.lost.put(m))
    (staying, stays), (dying, dies) = greeted(hub, ear), greeted(hub, ear)
    serve = hub._serve_ready

    def interrupted(timeout: float, woken: bool = True) -> None:
        if timeout == 0.0:
            hub.send(stays, LOAD)
        serve(timeout, woken)

    hub._serve_ready = interrupted  # type: ignore[method-assign]
    hub.lose(dies, "its process ended")
    staying._socket.settimeout(WAIT)
    assert staying.receive() == [LOAD]
    hub.close()
    assert not hub._thread.is_alive()
    staying.close()
    dying.close()


def test_a_worker_that_is_given_up_sees_that_the_driver_hung_up(hub: Hub, ear: Ear) -> None:
    line = DriverConnection(hub.address, RUN.worker, WAIT)
    line.send(HELLO)
    peer = ear.messages.get(timeout=WAIT)[0]
    hub.lose(peer, "stuck")
    with pytest.raises(WireError, match="hung up"):
        line.receive()
    assert ear.lost.get(timeout=WAIT) == (peer, "stuck")
    line.close()


def test_closing_sends_the_last_orders(ear: Ear) -> None:
    hub = Hub(RUN.driver, lambda *m: ear.messages.put(m), lambda *m: ear.lost.put(m))
    line = DriverConnection(hub.address, RUN.worker, WAIT)
    line.send(HELLO)
    hub.send(ear.messages.get(timeout=WAIT)[0], Stop())
    hub.close()
    hub.close()
    assert line.receive() == [Stop()]
    line.close()


def test_who_knocks_very_often_is_told_of_a_few_times(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cerebro_spark.backend.wire.hub"):
        hub = Hub(RUN.driver, lambda *_: None, lambda *_: None)
        for _ in range(30):
            with socket.create_connection(hub.address, timeout=WAIT) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(4096):  # until it hangs up
                        pass
        hub.close()

    refusals = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(refusals) == 11
    assert "refused a connection from 127.0.0.1:" in refusals[0]
    assert refusals[-1].endswith("not told of one by one: 20")
