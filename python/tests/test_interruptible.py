"""Ctrl-C is heard in every wait without a limit, also when the system hands it to a thread that nobody waits in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cerebro_spark.backend.run_queue import RunQueue
from cerebro_spark.interruptible import InterruptibleEvent


def wait_for_an_event(waits: threading.Event) -> None:
    waits.set()
    InterruptibleEvent().wait()


def wait_for_a_turn(waits: threading.Event) -> None:
    queue, inside, over = RunQueue(), threading.Event(), threading.Event()

    def stay() -> None:
        with queue.turn():
            inside.set()
            over.wait(60)

    other = threading.Thread(target=stay)
    other.start()
    try:
        assert inside.wait(60)
        waits.set()
        with queue.turn():
            raise AssertionError("it was not interrupted")
    finally:
        over.set()
        other.join(60)


@pytest.mark.parametrize("wait", [wait_for_an_event, wait_for_a_turn])
def test_ctrl_c_is_heard_though_it_does_not_wake_the_wait(wait: Callable[[threading.Event], Any]) -> None:
    waits = threading.Event()

    def interrupt() -> None:
        assert waits.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        wait(waits)
    interrupter.join(60)


def test_an_event_that_is_set_ends_the_wait_and_a_limit_is_kept() -> None:
    event = InterruptibleEvent()
    assert not event.wait(0.01)
    event.set()
    assert event.wait()
    assert event.wait(0)
