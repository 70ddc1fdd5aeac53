"""Several drivers on one event log, one store call at a time: a seed says who is next, who stalls and who is killed.

Everybody is a thread, but only one of them runs at any time, and hands over before and after each call of the store. So
an interleaving is the same every time, and a call may be carried out long before, or after, anybody hears of it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro_spark.errors import AlreadyInStore, EventLogError, NotFoundInStore
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, WorkerLost
from cerebro_spark.store.base import Store
from cerebro_spark.store.streams import StagedBlob


class Killed(BaseException):
    """A driver's end, at any call."""


class Actor:
    def __init__(self, steps: Steps, act: Callable[[], None], mortality: float = 0.0) -> None:
        self.go = threading.Semaphore(0)
        self.mortality = mortality
        self.weight = 1.0
        self.over = False
        self._steps = steps
        self._act = act
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        self._steps.current = self
        try:
            with contextlib.suppress(Killed):
                self._act()
        except BaseException as error:
            self._steps.failure = error
        self.over = True
        self._steps.back.release()


class Steps:
    """Who runs now. `yield_` is called by whoever runs, and returns when its turn comes again."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.back = threading.Semaphore(0)
        self.current: Actor | None = None
        self.failure: BaseException | None = None
        self._actors: list[Actor] = []

    def add(self, act: Callable[[], None], mortality: float = 0.0) -> None:
        self._actors.append(Actor(self, act, mortality))

    def yield_(self) -> None:
        me = self.current
        if me is None:
            return
        self.back.release()
        me.go.acquire()
        self.current = me
        if self.chance.random() < me.mortality:
            raise Killed

    def run(self) -> None:
        """Until everybody is done. Now and then somebody stalls for long: then others are more likely to be next."""
        while alive := [actor for actor in self._actors if not actor.over]:
            if self.chance.random() < 0.1:
                for actor in alive:
                    actor.weight = self.chance.choice([0.02, 1.0, 1.0])
            actor = self.chance.choices(alive, [actor.weight for actor in alive])[0]
            actor.go.release()
            self.back.acquire()
        self.current = None
        for actor in self._actors:
            actor.thread.join()
        if self.failure is not None:
            raise self.failure


class Pool:
    """Joins segments as one more of those who take turns."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def submit(self, act: Callable[..., None], *arguments: Any) -> Future[None]:
        self._steps.add(lambda: act(*arguments))
        return Future()


class Memory(Store):
    """The smallest store that keeps the contract."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return "steps://memory"

    def write(self, name: str, data: bytes | memoryview) -> None:
        if self.blobs.setdefault(name, bytes(data)) != data:
            raise AlreadyInStore(name)

    def read(self, name: str) -> bytes:
        if name not in self.blobs:
            raise NotFoundInStore(name)
        return self.blobs[name]

    def exists(self, name: str) -> bool:
        return name in self.blobs

    def list(self, folder: str = "") -> list[str]:
        return sorted(name for name in self.blobs if name.startswith(folder + "/"))

    def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    def reader(self, name: str) -> Any:
        raise NotImplementedError

    def size(self, name: str) -> int:
        raise NotImplementedError

    def _is_blob(self, name: str) -> bool:
        raise NotImplementedError

    def _stage(self, name: str) -> StagedBlob:
        raise NotImplementedError

    def _fetch_blob(self, name: str, path: Path) -> None:
        raise NotImplementedError


class Stepped(Memory):
    """A store between whose calls, and before whose answers, others take their turns.

    A listing takes time: what it shows of some names is from its beginning, and of the others from its end.
    """

    def __init__(self, store: Store, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    @contextlib.contextmanager
    def _turns(self) -> Iterator[None]:
        self._steps.yield_()
        try:
            yield
        finally:
            self._steps.yield_()

    def write(self, name: str, data: bytes | memoryview) -> None:
        with self._turns():
            self._store.write(name, data)

    def read(self, name: str) -> bytes:
        with self._turns():
            return self._store.read(name)

    def exists(self, name: str) -> bool:
        with self._turns():
            return self._store.exists(name)

    def delete(self, name: str) -> None:
        with self._turns():
            self._store.delete(name)

    def list(self, folder: str = "") -> list[str]:
        self._steps.yield_()
        early = self._store.list(folder)
        self._steps.yield_()
        late = self._store.list(folder)
        salt = self._steps.chance.random()
        picked = {name: random.Random(f"{salt} {name}").random() < 0.5 for name in {*early, *late}}
        return sorted(name for name in picked if name in (early if picked[name] else late))


@dataclass
class Driver:
    """What one driver believes: what it read of the log (None: it goes on unread), and what it was told is written."""

    name: str
    log: EventLog
    seen: list[Event] | None = None
    acknowledged: list[Event] = field(default_factory=list)
    tried: list[Event] = field(default_factory=list)

    def turns(self, count: int, chance: random.Random) -> None:
        with contextlib.suppress(EventLogError):
            for _ in range(count):
                fresh = [self._event() for _ in range(chance.choice([1, 1, 2]))]
                self.log.append(fresh)
                self.acknowledged += fresh

    def _event(self) -> Event:
        self.tried.append(WorkerLost(float(len(self.tried)), self.name))
        return self.tried[-1]

    def start(self, chance: random.Random) -> None:
        self.turns(chance.randrange(2, 8), chance)

    def take_over(self, chance: random.Random) -> None:
        """Read, then go on if nobody else did; or claim, before or after reading."""
        way = chance.randrange(3)
        with contextlib.suppress(EventLogError):
            self.seen = list(self.log.read()) if way != 0 else []
            if way != 1:
                self.seen += self.log.claim()
            self.turns(chance.randrange(1, 8), chance)


def race(seed: int, store: Store, run: str, mortality: float = 0.01) -> list[Event]:
    """Three drivers and two readers; returns the log in the end, if all that must hold did hold."""
    steps = Steps(seed)
    chance = steps.chance
    stepped = Stepped(store, steps)
    drivers = [Driver(f"driver {number}", EventLog(stepped, run)) for number in range(3)]
    for driver in drivers:
        driver.log._pool = Pool(steps)  # type: ignore[assignment]
    views: list[list[Event]] = []

    def watch() -> None:
        for _ in range(3):
            views.append(list(EventLog(stepped, run).read()))

    steps.add(lambda: drivers[0].start(chance), mortality)
    for driver in drivers[1:]:
        steps.add(lambda driver=driver: driver.take_over(chance), mortality)  # type: ignore[misc]
    steps.add(watch)
    steps.add(watch)
    steps.run()
    return judged(store, run, drivers, views)


def judged(store: Store, run: str, drivers: list[Driver], views: list[list[Event]]) -> list[Event]:
    final = list(EventLog(store, run).read())
    for view in views:
        assert final[: len(view)] == view, "what a reader saw has changed"
    for driver in drivers:
        mine = [event for event in final if event.worker == driver.name]  # type: ignore[attr-defined]
        count = len(driver.acknowledged)
        assert mine[:count] == driver.acknowledged, "an acknowledged event was lost, doubled or moved"
        assert mine == driver.tried[: len(mine)], "something was written that nobody tried"
        if mine:
            base = final.index(mine[0])
            assert final[base : base + len(mine)] == mine, "two drivers wrote at the same time"
            assert driver.seen in (None, final[:base]), "a driver went on from what it had not read"
    able = [driver for driver in drivers if driver.log.is_mine()]
    assert len(able) <= 1, "two drivers may go on"
    last = EventLog(store, run)
    last.append([WorkerLost(0.0, "last")])
    assert list(EventLog(store, run).read()) == [*final, WorkerLost(0.0, "last")]
    assert not [driver for driver in drivers if driver.log.is_mine()]
    return final
