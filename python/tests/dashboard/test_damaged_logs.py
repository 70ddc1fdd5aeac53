"""A damaged log stays as it is until it is replaced: then whoever looks sees the new one, without a restart."""

from __future__ import annotations

import json
import math

import pytest
from dashboard_runs import small_turns, write
from hubs import Clock, Moody, drained, run, turn

from cerebro_spark.dashboard.feeds import RunFeed
from cerebro_spark.dashboard.hub import Hub, Subscription
from cerebro_spark.errors import StoreError

TURNS = small_turns()
FIRST = "runs/r1/log/000000000000.jsonl"


class Watched(Moody):
    """Counts how often the first segment of the log is read, and fails to read it when it is told to."""

    reads = 0
    unreachable = False

    def read(self, name: str) -> bytes:
        if name == FIRST:
            self.reads += 1
            if self.unreachable:
                raise StoreError("no route to host")
        return super().read(name)


def spoil(store: Moody, number: int) -> None:
    """Let the first event of a segment be one that no version knows."""
    name = sorted(store.blobs)[number]
    spoilt = store.blobs[name].replace(b'"event":"', b'"event":"Mind', 1)
    assert spoilt != store.blobs[name]
    store.blobs[name] = spoilt


def unknown_event(store: Moody) -> None:
    write(store, TURNS[:9], each=True)
    spoil(store, 5)


def unknown_first_event(store: Moody) -> None:
    write(store, TURNS[:9], each=True)
    spoil(store, 0)


def no_beginning(store: Moody) -> None:
    """Events, but not those of a run from its start: no reader of lines can see that."""
    write(store, TURNS[1:9], each=True)


def unsigned(store: Moody) -> None:
    """A log of a release whose drivers did not sign what they wrote."""
    unknown_event(store)
    for name, data in store.blobs.items():
        lines = [json.loads(line) for line in data.splitlines()]
        for line in lines:
            line.pop("by", None)
        store.blobs[name] = b"".join(json.dumps(line).encode() + b"\n" for line in lines)


DAMAGES = (unknown_event, unknown_first_event, no_beginning, unsigned)


def said(client: Subscription) -> list[str]:
    return [news.event for news in drained(client) if news is not None]


async def pass_seconds(hub: Hub, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        await turn(hub, clock)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_that_is_made_anew_is_noticed(damage: object) -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        damage(store)  # type: ignore[operator]
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            before = await hub.open("r1")
            assert before.condition.problem is not None
            assert said(client) == ["hello"]
            names = set(store.blobs)
            store.blobs.clear()
            write(store, TURNS[:9], each=True)
            assert damage is no_beginning or set(store.blobs) == names, "the listing is the same"
            await pass_seconds(hub, clock, 8)
            assert said(client) == ["gone", "hello"]
            after = await hub.open("r1")
            assert after.index.generation != before.index.generation
            assert after.condition.problem is None
            assert after.index.version == sum(len(one.events) for one in TURNS[:9])

    run(test)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_that_is_deleted_is_said_to_be_gone(damage: object) -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        damage(store)  # type: ignore[operator]
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            store.blobs.clear()
            await pass_seconds(hub, clock, 6)
            assert "gone" in said(client)

    run(test)


def test_a_damaged_log_that_stays_is_shown_and_its_first_segment_read_now_and_then() -> None:
    async def test(hub: Hub, store: Watched, clock: Clock) -> None:
        log = write(store, TURNS[:7], each=True)
        spoil(store, 5)
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            store.reads = 0
            feed = await hub.open("r1")
            for one in TURNS[7:]:  # a driver of a newer version goes on, so the names change all the time
                log.append(one)
                await turn(hub, clock)
            await pass_seconds(hub, clock, 60 - len(TURNS[7:]))
            assert 1 <= store.reads <= 13
            assert await hub.open("r1") is feed
            assert (feed.gone, feed.condition.problem is not None) == (None, True)
            assert said(client) == ["hello"]

    run(test, Watched)


@pytest.mark.parametrize("first", [{}, {FIRST: b"garbage"}])
def test_a_log_whose_first_segment_is_no_more_is_shown_as_far_as_it_can_be(first: dict[str, bytes]) -> None:
    """Joined segments have all that the first one had."""

    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:9], each=True)
        spoil(store, 5)
        joined = b"".join(store.blobs.values())
        store.blobs = {"runs/r1/log/000000000000-000000000099.jsonl": joined, **first}
        with hub.subscribe("r1") as client:
            await pass_seconds(hub, clock, 20)
            assert (await hub.open("r1")).condition.problem is not None
            assert said(client) == ["hello"]

    run(test)


def test_a_store_that_fails_does_not_make_a_damaged_log_another() -> None:
    async def test(hub: Hub, store: Watched, clock: Clock) -> None:
        unknown_event(store)
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            store.unreachable = True
            await pass_seconds(hub, clock, 12)
            store.unreachable = False
            await pass_seconds(hub, clock, 12)
            assert said(client) == ["hello"]
            assert (await hub.open("r1")).gone is None

    run(test, Watched)


def test_a_log_that_is_made_anew_while_the_store_cannot_be_read_is_noticed() -> None:
    class Failing(Watched):
        """Fails at the second read of the first segment, and from then on."""

        def read(self, name: str) -> bytes:
            self.unreachable = self.unreachable or (name == FIRST and self.reads == 1)
            return super().read(name)

    store, clock = Failing(), Clock()
    unknown_event(store)
    store.reads = 0
    feed = RunFeed(store, "r1", clock)
    feed.refresh()
    assert feed.condition.problem is not None
    assert store.unreachable
    store.blobs.clear()
    write(store, TURNS[:9], each=True)
    store.unreachable, store.reads = False, 2
    clock.now += 6.0
    feed.refresh()
    assert feed.gone is not None


def test_a_stray_file_in_the_folder_of_a_log_can_be_taken_away_again() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        log = write(store, TURNS[:7])
        with hub.subscribe("r1"):
            await turn(hub, clock)
            feed = await hub.open("r1")
            store.write("runs/r1/log/notes.txt", b"mine")
            await turn(hub, clock)
            assert "notes.txt does not belong" in str(feed.condition.problem)
            assert feed.stale_after < math.inf
            store.delete("runs/r1/log/notes.txt")
            log.append(*TURNS[7:])
            await turn(hub, clock)
            assert await hub.open("r1") is feed
            assert feed.condition.problem is None
            assert feed.index.view.finished

    run(test)


def test_the_list_notices_that_a_damaged_log_was_made_anew_although_its_names_are_the_same() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        unknown_event(store)
        with hub.subscribe_runs() as client:
            await pass_seconds(hub, clock, 8)
            assert states(client) == ["unreadable"]
            names = set(store.blobs)
            store.blobs.clear()
            write(store, TURNS[:9], each=True)
            assert set(store.blobs) == names
            await pass_seconds(hub, clock, 70)
            assert states(client) == ["interrupted"]

    run(test)


def test_the_list_has_what_came_after_a_run_that_a_page_found_gone() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        unknown_event(store)
        with hub.subscribe_runs() as client:
            await pass_seconds(hub, clock, 8)
            assert states(client) == ["unreadable"]
            store.blobs.clear()
            write(store, TURNS[:9], each=True)
            feed = hub.index.feed("r1")
            feed.refresh()
            assert feed.gone is not None
            await pass_seconds(hub, clock, 2)
            assert states(client) == ["interrupted"]

    run(test)


def states(client: Subscription) -> list[str]:
    """The states of the runs in the last list that came."""
    last = drained(client)[-1]
    assert last is not None
    return [row["state"] for row in json.loads(last.data)["runs"]]
