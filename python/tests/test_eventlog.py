"""The log reads back what was written, up to the last whole event, whatever byte it was cut at."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from cerebro_spark.errors import EventLogError, StoreError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, WorkerLost
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn, events_of

RUN = "r1"
FOLDER = "runs/r1/log"


def facts(first: int, count: int) -> list[Event]:
    return [WorkerLost(float(n), f"wörker {n}", 'ä{"n":7}') for n in range(first, first + count)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_reads_what_was_written(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    log.append(Turn(facts(0, 3)))
    log.append(Turn([]))
    log.append(Turn(facts(3, 2)))
    assert list(EventLog(store, RUN).read()) == facts(0, 5)
    assert len(store.list(FOLDER)) == 2, "one segment for all events of a turn"


def test_cut_at_every_byte_it_reads_to_the_last_whole_event(tmp_path: Path) -> None:
    whole = LocalStore(tmp_path / "whole")
    log = EventLog(whole, RUN)
    log.append(Turn(facts(0, 2)))
    log.append(Turn(facts(2, 2)))
    last = whole.list(FOLDER)[-1]
    data = whole.read(last)
    line = len(data.splitlines(keepends=True)[0])
    for cut in range(len(data) + 1):
        store = LocalStore(tmp_path / f"cut{cut}")
        store.write(whole.list(FOLDER)[0], whole.read(whole.list(FOLDER)[0]))
        store.write(last, data[:cut])
        survived = list(EventLog(store, RUN).read())
        assert survived == facts(0, 2 + (cut >= line - 1) + (cut >= len(data) - 1))
        more = EventLog(store, RUN)
        more.append(Turn(facts(9, 1)))
        assert list(EventLog(store, RUN).read()) == survived + facts(9, 1)


def test_a_log_goes_on_after_a_segment_that_lost_all_its_events(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    log.append(Turn(facts(0, 2)))
    store.write(f"{FOLDER}/{2:012d}.jsonl", b'{"n":2,"event":"Wor')
    again = EventLog(store, RUN)
    again.append(Turn(facts(2, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_two_drivers_cannot_both_go_on(store: LocalStore) -> None:
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(Turn(facts(0, 1)))
    two.append(Turn(facts(1, 1)))
    with pytest.raises(EventLogError, match="another driver"):
        one.append(Turn(facts(1, 1)))


def test_whoever_read_a_log_goes_on_from_there_or_not_at_all(store: LocalStore) -> None:
    """What the first driver wrote after the second had read must not be skipped unseen."""
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(Turn(facts(0, 2)))
    assert list(two.read()) == facts(0, 2)
    one.append(Turn(facts(2, 1)))
    with pytest.raises(
        EventLogError, match=rf"another driver goes on with run r1.*written by process {os.getpid()} on"
    ):
        two.append(Turn(facts(2, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_a_driver_that_wakes_up_late_collides_although_segments_were_joined(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 3)
    sleeper, successor = EventLog(store, RUN), EventLog(store, RUN)
    sleeper.append(Turn(facts(0, 2)))
    assert list(successor.read()) == facts(0, 2)
    for n in range(2, 9):
        successor.append(Turn(facts(n, 1)))
    successor.close()
    with pytest.raises(EventLogError, match="another driver"):
        sleeper.append(Turn(facts(2, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 9)


def test_two_drivers_never_write_the_same_bytes(tmp_path: Path) -> None:
    """A store that tries again takes equal bytes for its own: they must not be another driver's."""
    stores = [LocalStore(tmp_path / name) for name in "ab"]
    for store in stores:
        EventLog(store, RUN).append(Turn(facts(0, 2)))
    one, two = (store.read(store.list(FOLDER)[0]) for store in stores)
    assert one != two


class Untidy(LocalStore):
    """A store that cannot delete."""

    def delete(self, name: str) -> None:
        raise StoreError(f"{name!r} cannot be deleted today")


def test_a_log_that_cannot_be_tidied_up_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 3)
    log = EventLog(Untidy(tmp_path), RUN)
    for n in range(8):
        log.append(Turn(facts(n, 1)))
    log.close()
    assert "could not be joined" in caplog.text
    assert list(EventLog(LocalStore(tmp_path), RUN).read()) == facts(0, 8)


def test_many_segments_are_joined_and_still_read(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    log = EventLog(store, RUN)
    for n in range(10):
        log.append(Turn(facts(n, 1)))
    log.close()
    assert len(store.list(FOLDER)) == 5, "two joined ones, two more, and the very first, which is never freed"
    assert list(EventLog(store, RUN).read()) == facts(0, 10)


def test_a_compaction_that_was_interrupted_does_no_harm(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    for n in range(3):
        log.append(Turn(facts(n, 1)))
    names = store.list(FOLDER)
    store.write(f"{FOLDER}/{0:012d}-{2:012d}.jsonl", b"".join(store.read(name) for name in names))
    store.delete(names[1])
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_a_log_can_be_read_while_it_is_joined(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 6)
    log = EventLog(store, RUN)
    for n in range(5):
        log.append(Turn(facts(n, 1)))
    reading = EventLog(store, RUN).read()
    seen = [next(reading), next(reading)]
    log.append(Turn(facts(5, 1)))
    log.close()
    assert len(store.list(FOLDER)) == 2
    assert seen + list(reading) == facts(0, 6)


class Counting(LocalStore):
    """Counts who calls it, and for what."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[tuple[int, str]] = Counter()

    def by(self, thread: int) -> int:
        return sum(count for (caller, _), count in self.calls.items() if caller == thread)

    def _count(self, what: str) -> None:
        self.calls[threading.get_ident(), what] += 1

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._count("write")
        super().write(name, data)

    def read(self, name: str) -> bytes:
        self._count("read")
        return super().read(name)

    def list(self, folder: str = "") -> list[str]:
        self._count("list")
        return super().list(folder)

    def exists(self, name: str) -> bool:
        self._count("exists")
        return super().exists(name)

    def delete(self, name: str) -> None:
        self._count("delete")
        super().delete(name)


def test_whoever_appends_is_not_kept_waiting_while_segments_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 8)
    store = Counting(tmp_path)
    log = EventLog(store, RUN)
    for n in range(7):
        log.append(Turn(facts(2 * n, 2)))
    before = store.by(threading.get_ident())
    log.append(Turn(facts(14, 2)))
    assert store.by(threading.get_ident()) - before <= 2
    log.close()
    assert store.list(FOLDER) == [f"{FOLDER}/{0:012d}-{14:012d}.jsonl", f"{FOLDER}/{0:012d}.jsonl"]
    assert not [calls for calls in store.calls if calls[1] == "read"], "what was just written is known"
    assert list(EventLog(LocalStore(tmp_path), RUN).read()) == facts(0, 16)
    log.append(Turn(facts(16, 1)))
    log.close()
    assert list(EventLog(LocalStore(tmp_path), RUN).read()) == facts(0, 17), "a closed log can go on"


class Gated(LocalStore):
    """Deletes only once it may; says when somebody wants it to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked = threading.Event()
        self.gate = threading.Event()

    def delete(self, name: str) -> None:
        self.asked.set()
        assert self.gate.wait(300)
        super().delete(name)


def test_a_log_is_whole_before_during_and_after_segments_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    store = Gated(tmp_path)
    log = EventLog(store, RUN)
    for n in range(4):
        log.append(Turn(facts(n, 1)))
    assert store.asked.wait(300)
    assert len(store.list(FOLDER)) == 5, "the joined segment is there before any of its parts goes"
    assert list(EventLog(store, RUN).read()) == facts(0, 4)
    log.append(Turn(facts(4, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 5), "nobody waits for the joining"
    store.gate.set()
    log.close()
    assert list(EventLog(store, RUN).read()) == facts(0, 5)
    assert len(store.list(FOLDER)) == 3


def test_a_store_that_hangs_keeps_nobody_from_closing_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    store = Gated(tmp_path)
    log = EventLog(store, RUN)
    for n in range(4):
        log.append(Turn(facts(n, 1)))
    assert store.asked.wait(300)
    log.close(seconds=0.1)
    assert "nothing is lost" in caplog.text
    assert list(EventLog(store, RUN).read()) == facts(0, 4)
    store.gate.set()


def test_segments_that_a_listing_saw_neither_joined_nor_apart_are_looked_for_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing takes time: the joined segment may come after, and a part go before, the listing gets to its place."""
    log = EventLog(store, RUN)
    for n in range(4):
        log.append(Turn(facts(n, 1)))
    names = store.list(FOLDER)
    listings = [[names[0], names[3]], names]
    monkeypatch.setattr(store, "list", lambda folder="": listings.pop(0) if len(listings) > 1 else names)
    assert list(EventLog(store, RUN).read()) == facts(0, 4)


def test_a_driver_collides_also_with_what_was_written_and_joined_since_it_read(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment that it would collide with is gone: it was joined by the driver that still lives."""
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    alive, late = EventLog(store, RUN), EventLog(store, RUN)
    alive.append(Turn(facts(0, 2)))
    assert list(late.read()) == facts(0, 2)
    for n in range(2, 7):
        alive.append(Turn(facts(n, 1)))
    alive.close()
    assert f"{FOLDER}/{2:012d}.jsonl" not in store.list(FOLDER)
    with pytest.raises(EventLogError, match=rf"another driver.*written by process {os.getpid()} on"):
        late.append(Turn(facts(2, 1)))
    alive.append(Turn(facts(7, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 8)


def test_who_has_claimed_a_log_has_it_and_knows_all_that_came_before(store: LocalStore) -> None:
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(Turn(facts(0, 2)))
    assert list(two.read()) == facts(0, 2)
    one.append(Turn(facts(2, 1)))
    assert one.is_mine()
    assert events_of(two.claim()) == facts(2, 1)
    assert events_of(two.claim()) == []
    assert (one.is_mine(), two.is_mine()) == (False, True)
    assert list(EventLog(store, RUN).read()) == facts(0, 3), "a claim is no event"
    with pytest.raises(EventLogError, match=rf"another driver goes on with run r1.*process {os.getpid()} on"):
        one.append(Turn(facts(3, 1)))
    two.append(Turn(facts(3, 1)))
    assert events_of(EventLog(store, RUN).claim()) == facts(0, 4), "who has read nothing hears all of it"
    with pytest.raises(EventLogError, match="another driver"):
        two.append(Turn(facts(4, 1)))


def test_a_newcomer_who_listed_before_and_writes_after_segments_were_joined_is_not_accepted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name that it saw free has been taken and freed since: its seal there is void, and the driver goes on."""
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 3)
    alive, late = EventLog(store, RUN), EventLog(store, RUN)
    alive.append(Turn(facts(0, 2)))
    assert list(late.read()) == facts(0, 2)
    writing = store.write

    def meanwhile(name: str, data: bytes | memoryview) -> None:
        monkeypatch.setattr(store, "write", writing)
        for n in range(2, 8):
            alive.append(Turn(facts(n, 1)))
        alive.close()
        assert name not in store.list(FOLDER), "freed"
        writing(name, data)

    monkeypatch.setattr(store, "write", meanwhile)
    with pytest.raises(EventLogError, match="another driver"):
        late.append(Turn(facts(2, 1)))
    alive.append(Turn(facts(8, 1)))
    assert list(EventLog(store, RUN).read()) == facts(0, 9)
    assert events_of(EventLog(store, RUN).claim()) == facts(0, 9)
    assert not alive.is_mine()


def test_a_hole_is_an_error(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    for n in range(3):
        log.append(Turn(facts(n, 1)))
    store.delete(store.list(FOLDER)[1])
    with pytest.raises(EventLogError, match="lacks event 1"):
        list(EventLog(store, RUN).read())


def test_a_foreign_file_is_an_error(store: LocalStore) -> None:
    store.write(f"{FOLDER}/notes.txt", b"hello")
    with pytest.raises(EventLogError, match="does not belong"):
        list(EventLog(store, RUN).read())
