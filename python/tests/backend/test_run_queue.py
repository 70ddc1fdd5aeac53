"""Runs wait for each other in the order in which they came, and never for themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from cerebro_spark.backend.run_queue import RunQueue
from cerebro_spark.backend.tenancy import Tenancy
from cerebro_spark.errors import BackendError

LONG = 60.0


class Waiting(logging.Handler):
    """Counts the runs that say that they wait."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = threading.Semaphore(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.runs.release()


@pytest.fixture
def waiting() -> Iterator[threading.Semaphore]:
    """Is released once for each run that begins to wait."""
    handler, log = Waiting(), logging.getLogger("cerebro_spark.backend.run_queue")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler.runs
    log.removeHandler(handler)
    log.setLevel(level)


class Taking:
    """A thread that takes a turn, and leaves it when it is told to."""

    def __init__(self, name: str, turn: AbstractContextManager[None], order: list[str]) -> None:
        self._turn, self._order = turn, order
        self.inside, self.leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._take, name=name, daemon=True)
        self.thread.start()

    def _take(self) -> None:
        with self._turn:
            self._order.append(self.thread.name)
            self.inside.set()
            assert self.leave.wait(LONG)

    def end(self) -> None:
        self.leave.set()
        self.thread.join(LONG)
        assert not self.thread.is_alive()


def test_turns_follow_in_the_order_in_which_they_came(waiting: threading.Semaphore) -> None:
    queue, order = RunQueue(), list[str]()
    first = Taking("a", queue.turn(), order)
    assert first.inside.wait(LONG)
    others = []
    for name in "bcd":
        others.append(Taking(name, queue.turn(), order))
        assert waiting.acquire(timeout=LONG)
    assert order == ["a"]
    for thread in (first, *others):
        assert thread.inside.wait(LONG)
        assert order[-1] == thread.thread.name, "nobody else is inside"
        thread.end()
    assert order == ["a", "b", "c", "d"]


def test_a_turn_within_a_turn_is_refused_and_changes_nothing(waiting: threading.Semaphore) -> None:
    queue = RunQueue()
    with queue.turn():
        with pytest.raises(BackendError, match="running already: this thread drives a run"), queue.turn():
            pass
        later = Taking("later", queue.turn(), [])
        assert waiting.acquire(timeout=LONG), "the first turn still counts"
    assert later.inside.wait(LONG)
    later.end()


def test_whoever_is_interrupted_while_it_waits_is_in_nobodys_way(
    waiting: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = RunQueue()
    first = Taking("first", queue.turn(), [])
    assert first.inside.wait(LONG)
    with monkeypatch.context() as patched:

        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        patched.setattr(queue._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), queue.turn():
            pass
    assert waiting.acquire(timeout=LONG)
    first.end()
    with queue.turn():
        pass


def test_what_goes_wrong_in_a_turn_ends_it() -> None:
    queue = RunQueue()
    with pytest.raises(ZeroDivisionError), queue.turn():
        _ = 1 / 0
    later = Taking("later", queue.turn(), [])
    assert later.inside.wait(LONG)
    later.end()


# -- with the runs of a backend


@pytest.mark.parametrize("kept_by_waiting", [True, False])
def test_a_backend_that_is_kept_for_a_run_is_refused_to_others(kept_by_waiting: bool) -> None:
    tenancy = Tenancy()
    keeper = Taking("keeper", tenancy.turn(wait=kept_by_waiting), [])
    assert keeper.inside.wait(LONG)
    taken = "running already: thread keeper drives a run"
    for refused in (tenancy.begin, tenancy.check_free):
        with pytest.raises(BackendError, match=taken):
            refused()
    with pytest.raises(BackendError, match=taken), tenancy.turn(wait=False):
        pass
    keeper.end()
    with tenancy.turn(wait=False):
        pass


def test_a_run_that_waits_for_nobody_is_not_waited_for() -> None:
    tenancy = Tenancy()
    started = Taking("started", tenancy.turn(wait=False), [])
    assert started.inside.wait(LONG)
    with pytest.raises(BackendError, match="running already: thread started drives a run"), tenancy.turn(wait=True):
        pass
    started.end()
    with tenancy.turn(wait=True):
        pass


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_whoever_keeps_a_backend_begins_one_run_there_and_none_within_it(outer: bool, inner: bool) -> None:
    tenancy = Tenancy()
    mine = "running already: this thread drives a run"
    with tenancy.turn(wait=outer):
        tenancy.check_free()
        with pytest.raises(BackendError, match=mine), tenancy.turn(wait=inner):
            pass
        tenancy.begin()
        with pytest.raises(BackendError, match=mine), tenancy.turn(wait=inner):
            pass
        tenancy.end()
        tenancy.begin()
        tenancy.end()


def test_backends_may_share_a_queue(waiting: threading.Semaphore) -> None:
    queue, order = RunQueue(), list[str]()
    first = Taking("first", Tenancy(queue).turn(wait=True), order)
    assert first.inside.wait(LONG)
    second = Taking("second", Tenancy(queue).turn(wait=True), order)
    assert waiting.acquire(timeout=LONG)
    alone = Taking("alone", Tenancy().turn(wait=True), order)
    assert alone.inside.wait(LONG)
    assert order == ["first", "alone"]
    first.end()
    assert second.inside.wait(LONG)
    second.end()
    alone.end()
