"""One task follows runs for all clients: it survives failing stores and slow clients, and rests if nobody looks."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from dashboard_runs import small_turns, write
from hubs import Clock, Hesitant, Moody, drained, run, turn

from cerebro_spark.dashboard.hub import Hub
from cerebro_spark.dashboard.streaming import Streams
from cerebro_spark.errors import NotFoundInStore, StoreUnavailable

TURNS = small_turns()


def test_news_come_once_to_everybody() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        log = write(store, TURNS[:7])
        with hub.subscribe("r1") as one, hub.subscribe("r1") as two:
            await turn(hub, clock)
            assert [news.event for news in drained(one) if news] == ["hello"], "nobody knows yet what they have"
            drained(two)
            log.append(*TURNS[7:9])
            await turn(hub, clock)
            await turn(hub, clock)
            (first,), (second,) = drained(one), drained(two)
            assert first is second
            assert first is not None
            assert first.event == "update"
            news = json.loads(first.data)
            assert news["version"] > news["from"] > 0

    run(test)


def test_a_store_that_fails_is_asked_again() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        log = write(store, TURNS[:7])
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            store.failing = True
            await turn(hub, clock)
            (_, update) = drained(client)
            assert update is not None
            assert json.loads(update.data)["run"]["problem"] == "no route to host"
            store.failing = False
            log.append(*TURNS[7:])
            await turn(hub, clock)
            (update,) = drained(client)
            assert update is not None
            about = json.loads(update.data)["run"]
            assert (about["problem"], about["state"]) == (None, "finished")

    run(test)


def test_a_run_that_begins_just_after_somebody_looked_is_there() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        with hub.subscribe("r1"):
            await turn(hub, clock)
            write(store, TURNS[:7])
            assert (await hub.open("r1")).known

    run(test)


def test_a_run_that_was_made_anew_since_somebody_looked_is_there() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS, each=True)
        before = (await hub.open("r1")).index
        store.blobs.clear()
        write(store, TURNS[:7])
        clock.now += 1.0
        after = await hub.open("r1")
        assert after.known
        assert after.index.version < before.version

    run(test)


def test_a_run_that_is_just_being_read_for_the_list_is_there_for_others() -> None:
    async def test(hub: Hub, store: Hesitant, clock: Clock) -> None:
        write(store, TURNS[:7])
        listing = asyncio.ensure_future(hub._turn_runs())
        assert await asyncio.to_thread(store.asked.wait, 20)
        opening = asyncio.ensure_future(hub.open("r1"))
        await asyncio.wait({opening}, timeout=0.1)
        store.go.set()
        assert (await opening).known
        await listing

    run(test, Hesitant)


def test_a_slow_client_loses_news_and_sees_it() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        log = write(store, TURNS[:3])
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            for one in TURNS[3:]:
                log.append(one)
                await turn(hub, clock)
            kept = [json.loads(news.data) for news in drained(client) if news]
        assert 1 < len(kept) < len(TURNS) - 3
        assert kept[0]["from"] > 5, "the first of them are lost: versions do not meet"
        assert all(earlier["version"] == later["from"] for earlier, later in itertools.pairwise(kept))

    run(test)


def test_nobody_looks_nobody_reads() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS)
        await hub.open("r1")
        clock.now += 31.0
        asked = store.listed
        await turn(hub, clock)
        assert store.listed == asked
        with pytest.raises(NotFoundInStore):
            await hub.open("r2")
        with pytest.raises(NotFoundInStore):
            await hub.open("../r1")

    run(test)


def test_many_ask_at_once_and_the_store_is_read_once() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:7])
        store.listed = 0
        feeds = await asyncio.gather(*(hub.open("r1") for _ in range(50)))
        assert len(set(map(id, feeds))) == 1
        assert store.listed <= 4, "the log, beats, forecasts"

    run(test)


def test_a_deleted_run_is_said_to_be_gone() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:7])
        with hub.subscribe("r1") as client:
            await turn(hub, clock)
            store.blobs.clear()
            await turn(hub, clock)
            assert [news.event for news in drained(client) if news] == ["hello", "gone"]

    run(test)


def test_streams_end_with_the_server() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        with hub.subscribe("r1") as client, hub.subscribe_runs() as runs:
            hub.close()
            assert (await client.get(), await runs.get()) == (None, None)
        with hub.subscribe("r1") as late:
            assert await late.get() is None

    run(test)


def test_the_driver_of_a_run_is_alive_silent_or_gone() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:7])

        async def driver() -> str:
            clock.now += 10.0
            return (await hub.open("r1")).condition.driver

        assert await driver() == "gone"
        store.write("runs/r1/beats/x-1.json", b"{}")
        assert await driver() == "alive"
        assert [await driver() for _ in range(4)] == ["alive", "alive", "silent", "silent"]
        store.write("runs/r1/beats/x-2.json", b"{}")
        assert await driver() == "alive"
        store.delete("runs/r1/beats/x-1.json")
        store.delete("runs/r1/beats/x-2.json")
        assert await driver() == "gone"

    run(test)


def test_memory_stays_bounded_and_forgotten_runs_are_still_listed() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        for number in range(5):
            write(store, TURNS, f"r{number}")
        with hub.subscribe_runs() as client:
            for _ in range(8):
                await turn(hub, clock)
            (*_, last) = drained(client)
        assert last is not None
        assert [row["state"] for row in json.loads(last.data)["runs"]] == ["finished"] * 5
        assert len(hub.index._feeds) < 5
        for number in range(5):
            clock.now += 1.0
            assert (await hub.open(f"r{number}")).index.view.finished
        assert len(hub.index._feeds) < 5, "also when nobody looks at the list"

    events = sum(len(turn.events) for turn in TURNS)
    run(test, most_events=2 * events)


def test_a_failure_at_one_run_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:7], "r1")
        write(store, TURNS[:7], "r2")

        def fail(seconds: float = 1.0) -> bool:
            raise ZeroDivisionError("a bug")

        hub.index.feed("r1").refresh = fail  # type: ignore[method-assign]
        with hub.subscribe("r1"), hub.subscribe("r2") as other:
            await turn(hub, clock)
            assert drained(other)
            assert not hub._is_behind(), "it is not tried again without a rest"

    run(test)
    assert "a bug" in caplog.text


def test_a_long_log_is_read_without_a_rest_and_a_deleted_run_does_not_keep_it_awake() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS, "r1")
        write(store, TURNS, "r2")
        feed = hub.index.feed("r1")
        with hub.subscribe("r1"), hub.subscribe_runs():
            feed.watched = True
            hub._watched["r1"] = feed
            assert hub._is_behind(), "nothing was read yet"
            await turn(hub, clock)
            assert not hub._is_behind()
            store.blobs = {name: data for name, data in store.blobs.items() if "/r2/" not in name}
            hub.index.feed("r2")
            hub.index._read_logs.clear()
            await turn(hub, clock)
            assert not hub._is_behind()

    run(test)


def test_what_comes_before_a_stream_begins_is_in_its_first_words() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        log = write(store, TURNS[:7])
        asked: Any = SimpleNamespace(path_params={"run": "r1"})
        answer: Any = await Streams(hub).run(asked)
        log.append(*TURNS[7:])
        await turn(hub, clock)
        chunks = answer.body_iterator
        first = [await anext(chunks), await anext(chunks)][1]
        assert json.loads(first.partition(b"data: ")[2])["version"] == sum(len(one.events) for one in TURNS)
        await chunks.aclose()

    run(test)


class Stuck(Moody):
    """A store whose listings of runs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def list(self, folder: str = "") -> list[str]:
        assert self.go.wait(60)
        return super().list(folder)


def test_a_store_that_hangs_holds_no_answer_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.dashboard.hub._STORE_SECONDS", 0.05)

    async def test(hub: Hub, store: Stuck, clock: Clock) -> None:
        write(store, TURNS)
        store.go.clear()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await hub.runs()
        store.go.set()
        await hub._turn_runs()
        store.go.clear()
        clock.now += 60.0
        try:
            assert [row["run"] for row in json.loads(await hub.runs())["runs"]] == ["r1"], "as it was last"
            assert (await hub.open("r1")).known
        finally:
            store.go.set()

    run(test, Stuck)
