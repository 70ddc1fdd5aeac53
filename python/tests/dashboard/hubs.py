"""A hub over a store in memory, moved on by hand: its clock stands still until a test moves it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from stepping import Memory

from cerebro_spark.dashboard.hub import Hub, News, Subscription
from cerebro_spark.dashboard.index import StoreIndex
from cerebro_spark.errors import StoreError


class Moody(Memory):
    """A store that fails when it is told to, and counts listings."""

    failing = False
    listed = 0

    def list(self, folder: str = "") -> list[str]:
        self.listed += 1
        if self.failing:
            raise StoreError("no route to host")
        return super().list(folder)


class Hesitant(Moody):
    """A store that does not answer its first reader until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def read(self, name: str) -> bytes:
        if not self.asked.is_set():
            self.asked.set()
            assert self.go.wait(120)
        return super().read(name)


class Clock:
    """Stands still until it is moved on."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def run(
    test: Callable[[Hub, Any, Clock], Awaitable[None]], make_store: Callable[[], Moody] = Moody, **settings: Any
) -> None:
    async def main() -> None:
        store, clock = make_store(), Clock()
        hub = Hub(StoreIndex(store, clock=clock, **settings), poll_seconds=0.01, clock=clock)
        await asyncio.wait_for(_as_coroutine(test(hub, store, clock)), 30)

    asyncio.run(main())


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


async def turn(hub: Hub, clock: Clock) -> None:
    clock.now += 1.0
    await hub._turn()


def drained(client: Subscription) -> list[News | None]:
    found = []
    while not client.empty():
        found.append(client.get_nowait())
    return found
