"""A follower returns what the log has, each event once, whatever is joined, sealed or deleted while it reads."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stepping import Driver, Memory, Pool, Stepped, Steps, judged

from cerebro_spark import eventlog
from cerebro_spark.errors import EventLogError, NotFoundInStore, StoreError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, WorkerLost
from cerebro_spark.following import LogFollower
from cerebro_spark.turns import Turn, events_of

RUN = "r1"
FOLDER = "runs/r1/log"
RACES = int(os.environ.get("CEREBRO_RACES", "100"))


def facts(first: int, count: int) -> list[Event]:
    return [WorkerLost(float(n), f"w{n}") for n in range(first, first + count)]


class Counting(Memory):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0
        self.opened: Counter[str] = Counter()

    def list(self, folder: str = "") -> list[str]:
        self.listed += 1
        return super().list(folder)

    def read(self, name: str) -> bytes:
        self.opened[name] += 1
        return super().read(name)


class AtOnce:
    """Joins segments before `append` returns."""

    def submit(self, act: object, *arguments: object) -> object:
        act(*arguments)  # type: ignore[operator]
        return type("Done", (), {"done": lambda self: True})()


class Following(RuleBasedStateMachine):
    """One follower beside drivers that append, join, and take the log over from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Counting()
        self.follower = LogFollower(self.store, RUN)
        self.got: list[Turn] = []
        self.written: list[Turn] = []
        self.small = eventlog._SEGMENTS_BEFORE_COMPACTION
        self._new_driver()

    def _new_driver(self) -> None:
        self.log = EventLog(self.store, RUN)
        self.log._pool = AtOnce()  # type: ignore[assignment]

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), join=st.booleans())
    def append(self, sizes: list[int], join: bool) -> None:
        turns = [Turn(facts(10 * len(self.written) + n, size), []) for n, size in enumerate(sizes)]
        eventlog._SEGMENTS_BEFORE_COMPACTION = 2 if join else 1000
        try:
            self.log.append(*turns)
        finally:
            eventlog._SEGMENTS_BEFORE_COMPACTION = self.small
        self.written += turns

    @precondition(lambda self: self.written)
    @rule()
    def take_over(self) -> None:
        self._new_driver()
        self.log.claim()

    @precondition(lambda self: self.log._own)
    @rule()
    def cut_by_a_crash(self) -> None:
        """What a copied store may have: a segment without a whole line ends the term of its driver."""
        self.store.blobs.setdefault(self.log._next_name(), b'{"n":')
        self._new_driver()

    @rule(most=st.sampled_from([1, 3, 5000]))
    def follow(self, most: int) -> None:
        self.got += self.follower.read(most)

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.got == self.written[: len(self.got)]

    def teardown(self) -> None:
        while new := self.follower.read():
            self.got += new
        assert self.got == self.written == list(EventLog(self.store, RUN).turns())
        follower, self.store.opened = LogFollower(self.store, RUN), Counter()
        while follower.read(1):
            pass
        assert max(self.store.opened.values(), default=0) <= 1, "every segment is read once"
        self.store.listed, self.store.opened = 0, Counter()
        assert follower.read() == []
        assert (self.store.listed, self.store.opened.total()) == (1, 0)


Following.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
test_a_follower_has_what_the_log_has = Following.TestCase


def test_what_comes_after_a_part_was_read_is_not_missed() -> None:
    store = Memory()
    log, follower = EventLog(store, RUN), LogFollower(store, RUN)
    first, second = (Turn(facts(number, 1), []) for number in (0, 1))
    log.append(first)
    assert follower.read(1) == [first]
    log.append(second)
    assert follower.read(1) == [second]
    assert follower.read(1) == []


def race(seed: int, store: Memory) -> tuple[list[Event], int]:
    """Drivers who fight for a log, one store call at a time, and followers beside them."""
    steps = Steps(seed)
    stepped = Stepped(store, steps)
    drivers = [Driver(f"driver {number}", EventLog(stepped, RUN)) for number in range(3)]
    for driver in drivers:
        driver.log._pool = Pool(steps)  # type: ignore[assignment]
    followers = [LogFollower(stepped, RUN) for _ in range(2)]
    views: list[list[Event]] = [[], []]

    def follow(number: int) -> None:
        for _ in range(6):
            views[number] += events_of(followers[number].read())

    steps.add(lambda: drivers[0].start(steps.chance), 0.01)
    for driver in drivers[1:]:
        steps.add(lambda driver=driver: driver.take_over(steps.chance), 0.01)  # type: ignore[misc]
    for number in range(2):
        steps.add(lambda number=number: follow(number))  # type: ignore[misc]
    steps.run()
    seen = sum(map(len, views))
    for follower, view in zip(followers, views, strict=True):
        view += events_of(follower.read())
        assert view == list(EventLog(store, RUN).read())
    return judged(store, RUN, drivers, views), seen


def test_followers_and_three_drivers_in_many_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 2)
    seen = 0
    for seed in range(RACES):
        try:
            seen += race(seed, Memory())[1]
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
    assert seen > RACES, "they read while the log was written"


def test_nothing_new_costs_one_listing_and_no_read() -> None:
    store = Counting()
    log, follower = EventLog(store, RUN), LogFollower(store, RUN)
    assert follower.read() == []
    log.append(Turn(facts(0, 3)), Turn(facts(3, 1)))
    assert [len(turn.events) for turn in follower.read()] == [3, 1]
    assert follower.events == 4
    store.listed, store.opened = 0, Counter()
    assert follower.read() == []
    assert (store.listed, store.opened.total()) == (1, 0)
    log.append(Turn(facts(4, 1)))
    assert events_of(follower.read()) == facts(4, 1)
    assert (store.listed, store.opened.total()) == (2, 1), "only the new segment was read"


def test_a_long_log_comes_in_parts() -> None:
    store = Memory()
    log, follower = EventLog(store, RUN), LogFollower(store, RUN)
    log.append(*(Turn(facts(2 * n, 2)) for n in range(5)))
    assert [len(events_of(follower.read(most=3))) for _ in range(4)] == [4, 4, 2, 0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"by":"x","n":2,"event":"MindRead","at":1.0}\n', "MindRead"),
        (b'{"by":"x","n":2,"event":"WorkerLost","at":1.0,"worker":7}\n', "event 2"),
        (b'{"by":"x","n":2,"event":"WorkerLost","at":1.0,"worker":"w","outcome":[1]}\n', "event 2"),
        (b'{"by":"x","n":5,"event":"WorkerLost","at":1.0,"worker":"w"}\n', "lacks event 2"),
    ],
)
def test_a_line_that_is_no_event_is_said_after_all_that_comes_before_it(line: bytes, said: str) -> None:
    store = Memory()
    EventLog(store, RUN).append(Turn(facts(0, 2)))
    store.write(
        f"{FOLDER}/{2:012d}.jsonl",
        line.replace(b'"x"', store.blobs[f"{FOLDER}/{0:012d}.jsonl"].split(b'"')[3].join([b'"'] * 2)),
    )
    follower = LogFollower(store, RUN)
    assert events_of(follower.read()) == facts(0, 2)
    for _ in range(2):
        with pytest.raises(EventLogError, match=said):
            follower.read()


def test_a_file_that_is_no_segment_is_named() -> None:
    store = Memory()
    EventLog(store, RUN).append(Turn(facts(0, 2)))
    store.write(f"{FOLDER}/notes.txt", b"mine")
    with pytest.raises(EventLogError, match=r"notes\.txt does not belong"):
        LogFollower(store, RUN).read()


def test_a_store_that_fails_loses_nothing() -> None:
    class Failing(Memory):
        failing: frozenset[int] = frozenset()
        calls = 0

        def read(self, name: str) -> bytes:
            self.calls += 1
            if self.calls in self.failing:
                raise StoreError(f"{name}: no route to host")
            return super().read(name)

    for failing in range(1, 4):
        store = Failing()
        log, follower = EventLog(store, RUN), LogFollower(store, RUN)
        for n in range(3):
            log.append(Turn(facts(2 * n, 2)))
        store.calls, store.failing = 0, frozenset({failing})
        got: list[Event] = []
        failures = 0
        for _ in range(6):
            try:
                got += events_of(follower.read())
            except StoreError:
                failures += 1
        assert got == facts(0, 6)
        assert failures == (failing == 1), "what was read before the failure is returned first"


def test_a_deleted_run_is_said_to_be_gone() -> None:
    store = Memory()
    log, follower = EventLog(store, RUN), LogFollower(store, RUN)
    log.append(Turn(facts(0, 2)))
    follower.read()
    store.blobs.clear()
    for _ in range(2):
        with pytest.raises(NotFoundInStore, match="was deleted"):
            follower.read()


@pytest.mark.parametrize("again", [1, 2, 3, 9])
def test_a_run_that_was_made_anew_is_never_taken_for_the_old_one(again: int) -> None:
    store = Memory()
    log, follower = EventLog(store, RUN), LogFollower(store, RUN)
    for n in range(3):
        log.append(Turn(facts(n, 1)))
    follower.read()
    store.blobs.clear()
    other = EventLog(store, RUN)
    other.append(*(Turn(facts(n, 1)) for n in range(again)))
    for n in range(again, again + 4):
        other.append(Turn(facts(n, 1)))
    for _ in range(3):
        with pytest.raises(NotFoundInStore, match="was deleted"):
            follower.read()


def test_a_log_that_lacks_an_event_and_was_made_anew_is_never_taken_for_the_old_one() -> None:
    """Its first segment is the next one to read again, and only the first line of a turn is signed."""
    store = Memory()
    EventLog(store, RUN).append(Turn(facts(0, 6)))
    (name,) = store.blobs
    lines = store.blobs[name].splitlines(keepends=True)
    store.blobs[name] = b"".join([*lines[:2], b"garbage\n", *lines[3:]])
    follower = LogFollower(store, RUN)
    assert events_of(follower.read()) == facts(0, 2)
    with pytest.raises(EventLogError, match="lacks event 2"):
        follower.read()
    assert not follower.broken, "it may be whole later"
    store.blobs.clear()
    EventLog(store, RUN).append(Turn(facts(10, 6)))
    with pytest.raises(NotFoundInStore, match="was deleted"):
        follower.read()


def test_a_follower_says_who_began_the_log_and_whether_it_can_go_on() -> None:
    store = Memory()
    follower = LogFollower(store, RUN)
    assert (follower.read(), follower.author, follower.broken) == ([], None, False)
    log = EventLog(store, RUN)
    log.append(Turn(facts(0, 2)))
    follower.read()
    assert (follower.author, follower.broken) == (log.writer, False)
    other = EventLog(store, RUN)
    other.claim()
    other.append(Turn(facts(2, 1)))
    store.write(f"{FOLDER}/notes.txt", b"mine")
    with pytest.raises(EventLogError, match="does not belong"):
        follower.read()
    assert not follower.broken, "the file may be taken away"
    store.delete(f"{FOLDER}/notes.txt")
    assert events_of(follower.read()) == facts(2, 1)
    assert (follower.author, follower.broken) == (log.writer, False)
    name = other._next_name()
    store.write(name, f'{{"by":"{other.writer}","n":3,"event":"MindRead","at":1.0}}\n'.encode())
    for _ in range(2):
        with pytest.raises(EventLogError, match="MindRead"):
            follower.read()
        assert follower.broken
