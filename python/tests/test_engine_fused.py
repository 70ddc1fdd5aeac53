"""The engine with trials that go together: workers die with bundles, drivers die in the middle, replays come out."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import SETTINGS, Recording, watch, workers
from snapshots import snapshot

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, RunStarted, Settings, UnitFinished, WorkerLost
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn

TRIALS = [{"cost": 1.0 + n / 10, "kind": n % 2} for n in range(10)]
FUSED = replace(SETTINGS, fuse=4, fuse_evaluations=True, queue_ahead=1)
WORLD = World(cost=lambda params: params["cost"], jitter=0.3, gain={4: 3.0})


def engine(store: LocalStore, backend: SimulatedBackend, settings: Settings = FUSED) -> Engine:
    made = Engine(Recording(TRIALS, 2), settings, backend, EventLog(store, "log"), "log")
    watch(made, settings)
    return made


def logged(store: LocalStore) -> list[Event]:
    return list(EventLog(store, "log").read())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("gain", [{}, {4: 3.0}], ids=["one after another", "together"])
def test_deaths_of_workers_with_bundles_lose_and_double_nothing(
    tmp_path: Path, seed: int, gain: dict[int, float]
) -> None:
    rng = random.Random(seed)
    world = replace(WORLD, gain=gain, failure_rate=0.15, repair_seconds=4.0, late_results=True, load_seconds=0.5)
    spec = [
        SimulatedWorker(f"w{i}", speed=rng.uniform(0.5, 2), joins_at=rng.uniform(0, 6), deaths=((9.0, 20.0 + i),))
        for i in range(3)
    ]
    made = Engine(Recording(TRIALS, 2), FUSED, SimulatedBackend(spec, world, seed), EventLog(LocalStore(tmp_path), "l"))
    auditor = watch(made, FUSED)
    made.run()
    auditor.complete({f"t{number}": 2 for number in range(10)})
    assert made.scheduler.units_given_up > 0
    assert max(auditor.widths) > 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    store = LocalStore(tmp_path_factory.mktemp("whole"))
    engine(store, SimulatedBackend(workers(), WORLD)).run()
    events = logged(store)
    for kind in ("train", "eval"):
        assert max(e.width for e in events if isinstance(e, UnitFinished) and e.unit.kind == kind) > 1
    return events


@pytest.mark.slow
def test_cut_at_any_event_it_resumes_and_no_finished_unit_runs_again(whole: list[Event], tmp_path: Path) -> None:
    for cut in range(1, len(whole) + 1, 5):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(Turn(whole[:cut]))
        started = whole[0]
        assert isinstance(started, RunStarted)
        resumed = engine(store, SimulatedBackend(workers(3), WORLD, seed=cut), started.settings)
        resumed.resume()
        finished = [event.unit for event in logged(store) if isinstance(event, UnitFinished)]
        assert len(finished) == len(set(finished)) == 10 * 2 * 5
        assert resumed.scheduler.finished


def test_the_log_rebuilds_the_scheduler_exactly(whole: list[Event]) -> None:
    one, two = MopScheduler(FUSED), MopScheduler(FUSED)
    for event in whole:
        one.handle(event)
    for event in whole:
        two.check_logged(event)
        two.handle(event)
    assert one.finished
    assert snapshot(one) == snapshot(two)


def replayed(script: RunScript, folder: Path, fuse: int, world: World = WORLD, ahead: int = 1) -> list[Event]:
    """The events of a replay, which comes to the same weights and loses and doubles nothing."""
    checker, store = ReplayChecker(script), LocalStore(folder)
    settings = script.settings_like(replace(FUSED, workers=3, fuse=fuse, queue_ahead=ahead, max_failures=99))
    backend = SimulatedBackend(workers(3), world, seed=7)
    again = Engine(ReplaySearch(script), settings, backend, EventLog(store, "log"), "log", [checker])
    watch(again, settings)
    again.run()
    checker.finish()
    events = logged(store)
    assert RunScript.from_events(events).digests == script.digests
    return events


def widths(events: list[Event]) -> list[int]:
    return [event.width for event in events if isinstance(event, UnitFinished) and event.unit.kind == "train"]


def test_a_replay_may_train_every_trial_by_itself_or_together_with_others(whole: list[Event], tmp_path: Path) -> None:
    script = RunScript.from_events(whole)
    assert set(widths(replayed(script, tmp_path / "alone", fuse=1))) == {1}
    for ahead in (0, 1):
        together = widths(replayed(script, tmp_path / f"together{ahead}", fuse=4, ahead=ahead))
        assert max(together) == 4
        assert sum(together) / len(together) > 2, "those that went together go together again"


def test_a_run_without_bundles_is_replayed_in_bundles(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "alone")
    engine(store, SimulatedBackend(workers(), WORLD), replace(FUSED, fuse=1)).run()
    script = RunScript.from_events(logged(store))
    again = replayed(script, tmp_path / "together", fuse=4)
    assert max(widths(again)) == 4
    assert set(widths(replayed(RunScript.from_events(again), tmp_path / "back", fuse=1))) == {1}


@pytest.mark.parametrize("gain", [{}, {4: 0.9}, {4: 3.0}], ids=["one after another", "no gain", "together"])
def test_deaths_of_workers_lose_nothing_of_a_replay_in_bundles(
    whole: list[Event], tmp_path: Path, gain: dict[int, float]
) -> None:
    world = replace(WORLD, gain=gain, failure_rate=0.15, repair_seconds=4.0, late_results=True, load_seconds=0.5)
    events = replayed(RunScript.from_events(whole), tmp_path, fuse=4, world=world)
    assert any(isinstance(event, WorkerLost) for event in events)
