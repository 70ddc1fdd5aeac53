"""Who holds a run: a beat in the store, seen by whoever would go on with it, gone when the driver has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro_spark.errors import EventLogError, StoreError
from cerebro_spark.hold import EVERY, PATIENCE, Hold, Pulse, wait_until_free
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore


class Noting(LocalStore):
    """Says how many beats have been written; fails as long as it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.beats = threading.Semaphore(0)
        self.away = False

    def write(self, name: str, data: bytes | memoryview) -> None:
        if self.away:
            self.beats.release()
            raise StoreError("the store is away")
        super().write(name, data)
        self.beats.release()


class Clock:
    """Time that passes only while somebody sleeps; meanwhile others may do something."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        self.now = 1000.0
        self._meanwhile = list(meanwhile)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._meanwhile:
            self._meanwhile.pop(0)()


class Hasty(LocalStore):
    """Lets something happen between each of its first lists and what is read after that."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.then: list[Callable[[], object]] = []

    def list(self, folder: str = "") -> list[str]:
        names = super().list(folder)
        if self.then:
            self.then.pop(0)()
        return names


def beats(store: LocalStore) -> list[str]:
    return store.list(paths.beats("r1"))


def look(store: LocalStore, clock: Clock) -> None:
    wait_until_free(store, "r1", clock=clock, sleep=clock.sleep)


def test_a_driver_that_lives_beats_and_one_that_ended_has_left_nothing(tmp_path: Path) -> None:
    store = Noting(tmp_path)
    with Hold(store, "r1", "me", every=0.001):
        for _ in range(5):
            assert store.beats.acquire(timeout=300)
        assert beats(store)
    assert beats(store) == []
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if t.name == "beat"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_however_a_driver_ends_its_hold_ends_at_once(error: type[BaseException], tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(error), Hold(store, "r1", "me"):
        raise error(str(beats(store)))
    clock = Clock()
    look(store, clock)
    assert clock.now == 1000.0


def test_a_store_that_is_away_for_a_while_does_not_disturb(tmp_path: Path) -> None:
    store = Noting(tmp_path)
    with Hold(store, "r1", "me", every=0.001):
        assert store.beats.acquire(timeout=300)
        store.away = True
        for _ in range(5):
            assert store.beats.acquire(timeout=300)
        store.away = False
        for _ in range(6):
            assert store.beats.acquire(timeout=300)
    assert beats(store) == []


def test_a_run_that_nobody_holds_is_free_at_once(tmp_path: Path) -> None:
    clock = Clock()
    look(LocalStore(tmp_path), clock)
    assert clock.now == 1000.0


def test_a_driver_that_beats_is_left_alone_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path)
    with Hold(store, "r1", "process 7 on mars", every=3600.0) as hold:
        clock = Clock(lambda: None, lambda: None, hold._beat)
        with pytest.raises(EventLogError, match=r"run r1: process 7 on mars, who holds it since 20.* UTC.*take_over"):
            look(store, clock)
        assert clock.now == 1003.0, "as soon as it is seen"
    assert "process 7 on mars" in caplog.text
    assert "for up to 30 s" in caplog.text


def test_a_driver_that_beats_no_more_is_given_up_after_half_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path)
    store.write(paths.beat("r1", "dead", 7), b'{"by": "process 7 on mars", "since": "yesterday"}')
    store.write(paths.beat("r1", "older", 3), b"no JSON")
    clock = Clock()
    look(store, clock)
    assert clock.now == 1000.0 + PATIENCE
    assert "no sign of life" in caplog.text
    assert beats(store) == [], "who comes next need not wait again"
    assert PATIENCE >= 5 * EVERY


def test_a_driver_that_ends_while_it_is_looked_for_leaves_the_run_free(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    hold = Hold(store, "r1", "me", every=3600.0).__enter__()
    clock = Clock(lambda: None, lambda: hold.__exit__(None, None, None))
    look(store, clock)
    assert clock.now == 1002.0


def test_a_driver_that_beats_between_the_list_and_the_look_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Hasty(tmp_path)
    with Hold(store, "r1", "process 7 on mars", every=3600.0) as hold:
        store.then = [hold._beat] * 4
        with pytest.raises(EventLogError, match=r"run r1: process 7 on mars, who holds it since 20"):
            look(store, Clock())
        assert "held by process 7 on mars" in caplog.text
        pulse = Pulse(store, "r1")
        store.then = [hold._beat]
        assert pulse.beats()
        assert pulse.driver().startswith("process 7 on mars, who holds it")


def test_a_driver_that_ends_between_the_list_and_the_look_leaves_the_run_free(tmp_path: Path) -> None:
    store = Hasty(tmp_path)
    hold = Hold(store, "r1", "me", every=3600.0).__enter__()
    clock = Clock(hold._beat)
    store.then = [lambda: None, lambda: hold.__exit__(None, None, None)]
    look(store, clock)
    assert clock.now == 1002.0, "at the next look there is nobody"
    pulse = Pulse(store, "r1")
    with Hold(store, "r1", "me", every=3600.0):
        assert pulse.beats()
    assert pulse.driver() == ""
