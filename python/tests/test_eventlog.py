"""The log reads back what was written, up to the last whole event, whatever byte it was cut at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro_spark.errors import EventLogError, StoreError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, WorkerLost
from cerebro_spark.store.local import LocalStore

RUN = "r1"
FOLDER = "runs/r1/log"


def facts(first: int, count: int) -> list[Event]:
    return [WorkerLost(float(n), f"wörker {n}", 'ä{"n":7}') for n in range(first, first + count)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_reads_what_was_written(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    log.append(facts(0, 3))
    log.append([])
    log.append(facts(3, 2))
    assert list(EventLog(store, RUN).read()) == facts(0, 5)
    assert len(store.list(FOLDER)) == 2, "one segment for all events of a turn"


def test_cut_at_every_byte_it_reads_to_the_last_whole_event(tmp_path: Path) -> None:
    whole = LocalStore(tmp_path / "whole")
    log = EventLog(whole, RUN)
    log.append(facts(0, 2))
    log.append(facts(2, 2))
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
        more.append(facts(9, 1))
        assert list(EventLog(store, RUN).read()) == survived + facts(9, 1)


def test_a_log_goes_on_after_a_segment_that_lost_all_its_events(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    log.append(facts(0, 2))
    store.write(f"{FOLDER}/{2:012d}.jsonl", b'{"n":2,"event":"Wor')
    again = EventLog(store, RUN)
    again.append(facts(2, 1))
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_two_drivers_cannot_both_go_on(store: LocalStore) -> None:
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(facts(0, 1))
    two.append(facts(1, 1))
    with pytest.raises(EventLogError, match="another driver"):
        one.append(facts(1, 1))


def test_whoever_read_a_log_goes_on_from_there_or_not_at_all(store: LocalStore) -> None:
    """What the first driver wrote after the second had read must not be skipped unseen."""
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(facts(0, 2))
    assert list(two.read()) == facts(0, 2)
    one.append(facts(2, 1))
    with pytest.raises(
        EventLogError, match=rf"another driver goes on with run r1.*written by process {os.getpid()} on"
    ):
        two.append(facts(2, 1))
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_a_driver_that_wakes_up_late_collides_although_segments_were_joined(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 3)
    sleeper, successor = EventLog(store, RUN), EventLog(store, RUN)
    sleeper.append(facts(0, 2))
    assert list(successor.read()) == facts(0, 2)
    for n in range(2, 9):
        successor.append(facts(n, 1))
    with pytest.raises(EventLogError, match="another driver"):
        sleeper.append(facts(2, 1))
    assert list(EventLog(store, RUN).read()) == facts(0, 9)


def test_two_drivers_never_write_the_same_bytes(tmp_path: Path) -> None:
    """A store that tries again takes equal bytes for its own: they must not be another driver's."""
    stores = [LocalStore(tmp_path / name) for name in "ab"]
    for store in stores:
        EventLog(store, RUN).append(facts(0, 2))
    one, two = (store.read(store.list(FOLDER)[0]) for store in stores)
    assert one != two


class Untidy(LocalStore):
    """A store that cannot delete."""

    def delete(self, name: str) -> None:
        raise StoreError(f"{name!r} cannot be deleted today")


def test_a_log_that_cannot_be_tidied_up_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 3)
    log = EventLog(Untidy(tmp_path), RUN)
    for n in range(8):
        log.append(facts(n, 1))
    assert list(EventLog(LocalStore(tmp_path), RUN).read()) == facts(0, 8)


def test_many_segments_are_joined_and_still_read(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    log = EventLog(store, RUN)
    for n in range(10):
        log.append(facts(n, 1))
    assert len(store.list(FOLDER)) == 4
    assert list(EventLog(store, RUN).read()) == facts(0, 10)


def test_a_compaction_that_was_interrupted_does_no_harm(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    for n in range(3):
        log.append(facts(n, 1))
    names = store.list(FOLDER)
    store.write(f"{FOLDER}/{0:012d}-{2:012d}.jsonl", b"".join(store.read(name) for name in names))
    store.delete(names[1])
    assert list(EventLog(store, RUN).read()) == facts(0, 3)


def test_a_log_can_be_read_while_it_is_joined(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 6)
    log = EventLog(store, RUN)
    for n in range(5):
        log.append(facts(n, 1))
    reading = EventLog(store, RUN).read()
    seen = [next(reading), next(reading)]
    log.append(facts(5, 1))
    assert len(store.list(FOLDER)) == 1
    assert seen + list(reading) == facts(0, 6)


def test_what_another_driver_has_just_written_is_not_deleted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = EventLog(store, RUN), EventLog(store, RUN)
    one.append(facts(0, 1))
    counted = two._lines

    def meanwhile() -> Iterator[str]:
        yield from counted()
        one.append(facts(1, 1))

    monkeypatch.setattr(two, "_lines", meanwhile)
    with pytest.raises(EventLogError, match="another driver"):
        two.append(facts(1, 1))
    assert list(EventLog(store, RUN).read()) == facts(0, 2)


def test_a_hole_is_an_error(store: LocalStore) -> None:
    log = EventLog(store, RUN)
    for n in range(3):
        log.append(facts(n, 1))
    store.delete(store.list(FOLDER)[1])
    with pytest.raises(EventLogError, match="lacks event 1"):
        list(EventLog(store, RUN).read())


def test_a_foreign_file_is_an_error(store: LocalStore) -> None:
    store.write(f"{FOLDER}/notes.txt", b"hello")
    with pytest.raises(EventLogError, match="does not belong"):
        list(EventLog(store, RUN).read())
