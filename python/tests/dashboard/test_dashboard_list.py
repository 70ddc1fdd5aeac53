"""The list of runs: one that died is not running, and one that is odd or fails hides no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dashboard_runs import small_turns, write
from hubs import Clock, Moody, drained, run, turn

from cerebro_spark.dashboard.hub import Hub, Subscription

TURNS = small_turns()


def states(client: Subscription) -> dict[str, str]:
    """The states of the runs in the last list that came."""
    last = drained(client)[-1]
    assert last is not None
    return {row["run"]: row["state"] for row in json.loads(last.data)["runs"]}


async def listed(hub: Hub, clock: Clock) -> dict[str, Any]:
    """All runs, after a while in which they were looked at."""
    with hub.subscribe_runs():
        for _ in range(8):
            await turn(hub, clock)
    return {row["run"]: row for row in json.loads(await hub.runs())["runs"]}


def test_a_run_whose_driver_dies_is_not_running_for_ever() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS[:7])
        store.write("runs/r1/beats/x-1.json", b"{}")
        with hub.subscribe_runs() as client:
            await turn(hub, clock)
            assert states(client) == {"r1": "running"}
            for _ in range(60):
                await turn(hub, clock)
            assert states(client) == {"r1": "silent"}
            store.write("runs/r1/beats/x-2.json", b"{}")
            for _ in range(70):
                await turn(hub, clock)
            assert "running" in [
                row["state"] for news in [*drained(client)] if news is not None for row in json.loads(news.data)["runs"]
            ], "it was heard of again"

    run(test)


@pytest.mark.parametrize("name", ["_old", "r1 copy", "r" * 300])
def test_folders_that_are_no_runs_hide_none(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS)
        store.blobs.update({key.replace("r1", name): data for key, data in store.blobs.items()})
        assert {name: row["state"] for name, row in (await listed(hub, clock)).items()} == {"r1": "finished"}

    run(test)
    assert caplog.text == ""


def test_a_run_that_fails_unexpectedly_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS, "r1")
        write(store, TURNS, "r2")

        def fail(seconds: float = 1.0) -> bool:
            raise ZeroDivisionError("a bug")

        hub.index.feed("r2").refresh = fail  # type: ignore[method-assign]
        assert (await listed(hub, clock))["r1"]["state"] == "finished"

    run(test)
    assert "a bug" in caplog.text


def test_a_store_that_failed_once_is_asked_again() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS)
        await turn(hub, clock)
        hub.index.list_runs()
        store.failing = True
        hub.index.read_row("r1")
        store.failing = False
        assert hub.index.rows()["runs"][0]["state"] == "unreadable"
        assert (await listed(hub, clock))["r1"]["state"] == "finished"

    run(test)


def test_a_run_that_was_made_anew_has_its_own_row() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS, each=True)
        before = (await listed(hub, clock))["r1"]
        store.blobs.clear()
        write(store, TURNS[:7])
        after = (await listed(hub, clock))["r1"]
        assert (before["state"], after["state"]) == ("finished", "interrupted")
        assert after["version"] < before["version"]

    run(test)


def test_a_run_that_was_deleted_is_not_listed() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS)
        write(store, TURNS[:7], "r2")
        await listed(hub, clock)
        store.blobs = {name: data for name, data in store.blobs.items() if "/r2/" not in name}
        assert list(await listed(hub, clock)) == ["r1"]

    run(test)


def test_a_run_that_is_deleted_between_listing_and_reading_is_dropped() -> None:
    async def test(hub: Hub, store: Moody, clock: Clock) -> None:
        write(store, TURNS)
        hub.index.list_runs()
        store.blobs.clear()
        assert hub.index.read_row("r1")
        assert hub.index.rows()["runs"] == []

    run(test)
