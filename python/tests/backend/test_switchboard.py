"""Sessions of one hub: what is said in one is heard in no other."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cerebro_spark.backend.driver.launcher import HubAddress
from cerebro_spark.backend.driver.switchboard import Listener, Session, Switchboard
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.messages import Heartbeat, Hello, Stop, UnitStarted

SECONDS = 60.0
Dial = Callable[[], DriverConnection]


class Ear:
    """Hears one session."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[int] = queue.SimpleQueue()

    def listener(self) -> Listener:
        return Listener(
            lambda peer, message: self.messages.put((peer, message)),
            lambda peer, reason: self.lost.put(peer),
            lambda reason: None,
        )

    def next(self) -> tuple[int, Any]:
        heard: tuple[int, Any] = self.messages.get(timeout=SECONDS)
        return heard


@pytest.fixture
def board() -> Iterator[Switchboard]:
    made = Switchboard(HubAddress(), silence=120.0)
    yield made
    made.close()


@pytest.fixture
def dial(board: Switchboard) -> Iterator[Dial]:
    made: list[DriverConnection] = []

    def dialled() -> DriverConnection:
        made.append(DriverConnection(board.dialled, board.credentials, SECONDS))
        return made[-1]

    yield dialled
    for connection in made:
        connection.close()


def opened(board: Switchboard) -> tuple[Session, Ear]:
    ear = Ear()
    return board.open(ear.listener()), ear


def test_each_connection_is_heard_in_the_session_that_its_hello_names(board: Switchboard, dial: Dial) -> None:
    (first, first_ear), (second, second_ear) = opened(board), opened(board)
    assert first.name != second.name
    for session, ear, attempt in ((first, first_ear, 1), (second, second_ear, 2)):
        connection = dial()
        connection.send(Hello("w0", session=session.name))
        connection.send(UnitStarted(attempt))
        peer, hello = ear.next()
        assert hello.worker == "w0"
        assert ear.next() == (peer, UnitStarted(attempt))
    assert first_ear.messages.empty()
    assert second_ear.messages.empty()


def test_what_comes_late_of_a_session_that_is_over_is_heard_nowhere(board: Switchboard, dial: Dial) -> None:
    session, ear = opened(board)
    old = dial()
    old.send(Hello("w0", session=session.name))
    peer, _ = ear.next()
    session.send(peer, Stop())
    session.close()
    following, following_ear = opened(board)
    # The old worker hears its last order, and is hung up on; whatever it says meanwhile goes nowhere.
    assert old.receive() == [Stop()]
    with contextlib.suppress(OSError):
        old.send(UnitStarted(1))
    with pytest.raises((WireError, OSError)):
        old.receive()
    new = dial()
    new.send(Hello("w0", session=following.name))
    assert following_ear.next()[1].worker == "w0"
    assert following_ear.messages.empty()
    assert ear.messages.empty()
    assert ear.lost.empty()


@pytest.mark.parametrize("name", ["", "of another time"])
def test_a_hello_in_a_session_that_is_not_open_is_refused(board: Switchboard, dial: Dial, name: str) -> None:
    _, ear = opened(board)
    stranger = dial()
    stranger.send(Hello("w0", session=name))
    with pytest.raises(WireError, match="hung up"):
        stranger.receive()
    assert ear.messages.empty()


def test_a_connection_stays_in_its_session_whatever_it_says(board: Switchboard, dial: Dial) -> None:
    (first, first_ear), (second, second_ear) = opened(board), opened(board)
    worker = dial()
    worker.send(Hello("w0", session=first.name))
    worker.send(Hello("w0", session=second.name))
    worker.send(Heartbeat())
    assert [type(first_ear.next()[1]) for _ in range(3)] == [Hello, Hello, Heartbeat]
    assert second_ear.messages.empty()


def test_the_end_of_one_session_leaves_the_others(board: Switchboard, dial: Dial) -> None:
    (first, _), (second, second_ear) = opened(board), opened(board)
    worker = dial()
    worker.send(Hello("w0", session=second.name))
    peer, _ = second_ear.next()
    first.close()
    second.send(peer, Stop())
    assert worker.receive() == [Stop()]
    worker.close()
    assert second_ear.lost.get(timeout=SECONDS) == peer
