"""What the engine makes of a log: it goes on from it, or says that it cannot, and never guesses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.codec import decode, encode
from cerebro_spark.engine import Engine
from cerebro_spark.errors import CerebroError, EventLogError, RunStalled
from cerebro_spark.eventlog import DiscardingLog, EventLog
from cerebro_spark.events import Event, RunStarted, Settings, TrialStopped, UnitFailed, UnitFinished, WorkAdded
from cerebro_spark.replays import RunScript
from cerebro_spark.result.record import replay
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Partition, Report, Unit, Work

PARTITIONS = (*(Partition(f"p{i}") for i in range(4)), Partition("v0", "validation"))
SETTINGS = Settings(PARTITIONS, workers=2)
WORLD = World(cost=lambda params: params["cost"], jitter=0.3)


def backend() -> SimulatedBackend:
    return SimulatedBackend([SimulatedWorker(f"w{i}", speed=1.0 + i) for i in range(2)], WORLD)


def logged(folder: Path, search: Search, on: SimulatedBackend | None = None) -> list[Event]:
    """A whole run's log."""
    log = EventLog(LocalStore(folder), "r1")
    Engine(search, SETTINGS, on or backend(), log).run()
    return list(log.read())


def resumed(folder: Path, events: list[Event], search: Search, settings: Settings = SETTINGS) -> list[Event]:
    """The log of a run that goes on from these events."""
    log = EventLog(LocalStore(folder), "r1")
    log.append(events)
    again = EventLog(LocalStore(folder), "r1")
    Engine(search, settings, backend(), again).resume()
    return list(again.read())


def grid() -> FixedSearch:
    return FixedSearch([{"cost": 1.0 + i} for i in range(4)], 2)


@pytest.mark.parametrize("read", [RunScript.from_events, replay])
def test_a_log_that_another_scheduler_wrote_is_refused_and_not_misread(
    read: Callable[[list[Event]], Any], tmp_path: Path
) -> None:
    """Another policy stands for a version that decides otherwise."""
    events = logged(tmp_path / "whole", grid())
    assert isinstance(events[0], RunStarted)
    other = replace(SETTINGS, policy="random", seed=7)
    forged = [replace(events[0], settings=other), *events[1:]]
    with pytest.raises(EventLogError, match=r"which this scheduler .*: use the version"):
        read(forged)
    with pytest.raises(EventLogError, match=r"which this scheduler .*: use the version"):
        resumed(tmp_path / "cut", forged[: len(forged) // 2], grid(), other)


class Waiting(FixedSearch):
    """Never says that it is done."""

    def ask(self) -> Work | Wait | Done:
        answer = super().ask()
        return Wait() if isinstance(answer, Done) else answer


@pytest.mark.parametrize("trials", [1, 2])
def test_a_search_that_waits_for_nothing_ends_the_run_instead_of_hanging(trials: int, tmp_path: Path) -> None:
    with pytest.raises(RunStalled, match=r"the search \(Waiting\) waits, but nothing is under way"):
        logged(tmp_path, Waiting([{"cost": 1.0}] * trials, 1))


def test_params_that_hold_nan_can_be_resumed_and_are_no_new_params(tmp_path: Path) -> None:
    def search() -> FixedSearch:
        return FixedSearch([{"cost": 1.0, "x": float("nan")}] * 2, 2)

    events = logged(tmp_path / "whole", search())
    for cut in range(1, len(events), 3):
        again = resumed(tmp_path / str(cut), events[:cut], search())
        assert sum(isinstance(event, UnitFinished) for event in again) == 2 * 2 * 5
    scheduler = MopScheduler(SETTINGS)
    for until in (1, 2):
        scheduler.handle(WorkAdded(0.0, Work("t0", {"x": float("nan")}, until)))
    assert not scheduler.state.trials["t0"].rebased


class Stopping(SimulatedBackend):
    """Says after the first unit that somebody stopped the first trial."""

    told = False

    def events(self) -> list[Event]:
        found = super().events()
        if not self.told and any(isinstance(event, UnitFinished) for event in found):
            self.told = True
            found.append(TrialStopped(self.now(), "t0"))
        return found


class Persistent(Search):
    """Asks for more of the first two trials once the second has reported, and for a third if one of them fails."""

    def __init__(self) -> None:
        self._queue = [Work("t0", {"cost": 1.0}, 1), Work("t1", {"cost": 1.0}, 1)]
        self._asked_more = self._replaced = False
        self._open = {"t0", "t1"}

    def ask(self) -> Work | Wait | Done:
        if self._queue:
            return self._queue.pop(0)
        return Wait() if self._open else Done()

    def tell(self, report: Report) -> None:
        if report.failed and not self._replaced:
            self._replaced = True
            self._queue.append(Work("t2", {"cost": 1.0}, 1))
            self._open = self._open - {report.trial} | {"t2"}
        elif report.trial == "t1" and report.epoch == 1 and not self._asked_more:
            self._asked_more = True
            self._queue += [Work("t0", {"cost": 1.0}, 2), Work("t1", {"cost": 1.0}, 2)]
        elif not report.failed and (report.trial, report.epoch) in {("t1", 2), ("t2", 1)}:
            self._open.discard(report.trial)


def test_answers_to_answers_are_taken_in_the_order_of_the_run(tmp_path: Path) -> None:
    stopping = Stopping([SimulatedWorker(f"w{i}", speed=1.0 + i) for i in range(2)], WORLD)
    events = logged(tmp_path / "whole", Persistent(), stopping)
    asked = [event.work.trial for event in events if isinstance(event, WorkAdded)]
    assert asked == ["t0", "t1", "t0", "t2", "t1"], "the third comes between the two that were asked for together"
    stopped = next(place for place, event in enumerate(events) if isinstance(event, TrialStopped))
    for cut in range(stopped + 1, len(events)):
        again = resumed(tmp_path / str(cut), events[:cut], Persistent())
        assert [event.work.trial for event in again if isinstance(event, WorkAdded)] == asked


def test_half_a_character_in_an_error_does_not_stop_the_log(tmp_path: Path) -> None:
    log = EventLog(LocalStore(tmp_path), "r1")
    event = UnitFailed(1.0, "w0", Unit("t0", 1, "p0"), 1, "no file '\udc80x', caf\u00e9")
    log.append([event])
    assert list(EventLog(LocalStore(tmp_path), "r1").read()) == [event]


STRANGE: list[Any] = [None, "x", -1, 10**9, 0.5, [], {}, {"$tuple": []}, {"$float": "x"}, True]


def strangers(value: Any) -> Iterator[Any]:
    """A JSON value with any one part of it lacking or exchanged for something strange."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield {other: kept for other, kept in value.items() if other != key}
            yield from ({**value, key: changed} for changed in [*STRANGE, *strangers(item)])
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in [*STRANGE, *strangers(item)])


def test_a_log_with_any_part_of_any_event_exchanged_is_read_or_refused_in_words(tmp_path: Path) -> None:
    """Nobody sees a KeyError for what another version, or a careless hand, wrote into a log."""
    whole = logged(tmp_path, FixedSearch([{"cost": 1.0}], 1))
    refused = 0
    for place, event in enumerate(whole):
        if event in whole[:place] or type(event) in {type(earlier) for earlier in whole[:place]}:
            continue
        for number, strange in enumerate(strangers(json.loads(encode(event)))):
            reader: Callable[[list[Event]], Any] = [replay, RunScript.from_events, again][number % 3]
            try:
                reader([*whole[:place], decode(json.dumps(strange)), *whole[place + 1 :]])
            except CerebroError:
                refused += 1
    assert refused > 100


def again(events: list[Event]) -> None:
    """As far as a resumed engine reads them."""
    Engine(FixedSearch([{"cost": 1.0}], 1), SETTINGS, backend(), DiscardingLog())._repeat(events)
