"""A view of a run: the same live, from its log, and from a log that does not say what counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_runs import SETTINGS, WORLD, Promoting, workers
from fast_tier import drawn
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from run_views import PARTITIONS, TROUBLES, bare, check_against, check_all_ways, run_watched, timeless
from wild_runs import Trouble, WildBackend, WildSearch

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.errors import CerebroError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    PartitionLoaded,
    RunStarted,
    Settings,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.outcomes import view_of, with_outcomes
from cerebro_spark.replays import ReplaySearch, RunScript
from cerebro_spark.result.display import workers_as_text
from cerebro_spark.result.listing import read_view
from cerebro_spark.run_view import RunView
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch, Search
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import LoadOrder, Outcome, Turn, UnitOrder, events_of
from cerebro_spark.types import Objective, Partition, Unit, Work

LOSS = Objective("val_loss", "min")


@pytest.mark.slow
@examples(max_examples=drawn(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    trouble=TROUBLES,
    stops=st.sampled_from([0.0, 0.02]),
    together=st.sampled_from([(1, 1), (4, 1), (1, 2)]),
)
def test_wild_runs_and_their_replays_give_the_same_view(
    seed: int, trouble: Trouble, stops: float, together: tuple[int, int]
) -> None:
    """Warm starts, new params in the middle of an epoch, metrics of all kinds, stops; and a script that repeats it."""
    fuse, group = together
    settings = Settings(
        PARTITIONS, workers=2, seed=seed, objective=LOSS, max_kills=99, fuse=fuse, fuse_evaluations=True, group=group
    )
    stopped: set[str] = set()
    backend = WildBackend(2, replace(trouble, stops=stops, gain=fuse), seed, stopped)
    turns, live, engine = run_watched(WildSearch(seed, 3 * fuse, 8, stopped), settings, backend)
    check_all_ways(turns, live, engine.scheduler)
    script = RunScript.from_events(events_of(turns))
    again = WildBackend(3, Trouble(deaths=trouble.deaths), seed + 1, set())
    check_all_ways(*_replayed(script, replace(settings, workers=3), again))


def _replayed(script: RunScript, settings: Settings, backend: WildBackend) -> tuple[list[Turn], RunView, MopScheduler]:
    turns, live, engine = run_watched(ReplaySearch(script), script.settings_like(settings), backend)
    return turns, live, engine.scheduler


def clock_from(start: float, step: float) -> Any:
    times: Iterator[float] = (start + step * n for n in range(10**6))
    return lambda: next(times)


def drive(store: LocalStore, search: Search, start: float, stop_after: int | None = None) -> Engine:
    """A driver of a run in a store, with a wall clock of its own; it may die after some units."""
    units = 0

    def watch(turn: Turn) -> None:
        nonlocal units
        units += sum(isinstance(event, UnitFinished) for event in turn.events)
        if stop_after is not None and units >= stop_after:
            raise KeyboardInterrupt

    backend = SimulatedBackend(workers(), WORLD)
    return Engine(search, SETTINGS, backend, EventLog(store, "log"), "log", [watch], clock=clock_from(start, 10.0))


@pytest.mark.parametrize("start", [5000.0, 500.0], ids=["later", "by a clock that was set back"])
@pytest.mark.parametrize("joined", [False, True], ids=["segments", "joined segments"])
def test_a_resumed_run_is_one_run_with_the_clock_of_each_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: float, joined: bool
) -> None:
    if joined:
        monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 4)
    store = LocalStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        drive(store, Promoting(), 1000.0, stop_after=9).run()
    cut = read_view(store, "log")
    assert (cut.started, cut.finished) == (1000.0, False)
    assert cut.wall_clock is not None
    assert 1000.0 < cut.wall_clock < 2000.0
    busy = [worker for worker in cut.workers.values() if worker.queue]
    assert busy
    for worker in busy:
        assert worker.since_clock is not None
        assert 1000.0 <= worker.since_clock <= cut.wall_clock
    engine = drive(store, Promoting(), start)
    engine.resume()
    engine._log.close()
    view = read_view(store, "log")
    assert (view.started, view.finished) == (1000.0, True)
    assert view.wall_clock is not None
    assert view.wall_clock >= start
    check_against(view, engine.scheduler)
    turns = list(EventLog(store, "log").turns())
    assert len(turns) > 20
    assert repr(view_of(bare(turns))) == repr(view_of(timeless(turns)))
    assert joined == any("-" in name.rsplit("/", 1)[-1] for name in store.list(paths.log_folder("log")))


def test_what_a_worker_does_and_since_when_is_in_the_log_alone() -> None:
    start = RunStarted(0.0, "r1", Settings((Partition("p0"), Partition("p1")), workers=2))
    first, second = Unit("t0", 1, "p0"), Unit("t1", 1, "p0")
    asked = [WorkAdded(0.0, Work(name, {}, 1)) for name in ("t0", "t1")]
    view = RunView()
    view.apply(Turn([start, *asked], [Outcome()] * 3, 1000.0))
    view.apply(Turn([WorkerJoined(2.0, "w3", "h1")], [Outcome(loads=(LoadOrder("w3", "p0"),))], 1002.0))
    assert (view.workers["w3"].activity, view.workers["w3"].since_clock) == ("loading p0", 1002.0)
    orders = (UnitOrder(1, "w3", first), UnitOrder(2, "w3", second))
    view.apply(Turn([PartitionLoaded(5.0, "w3", "p0")], [Outcome(orders=orders)], 1005.0))
    assert (view.workers["w3"].unit, view.workers["w3"].since, view.workers["w3"].since_clock) == (first, 5.0, 1005.0)
    view.apply(Turn([UnitFinished(9.0, "w3", first, 1, 4.0)], [Outcome()], 1009.0))
    assert (view.workers["w3"].unit, view.workers["w3"].since, view.workers["w3"].since_clock) == (second, 9.0, 1009.0)
    late = UnitFinished(9.5, "w3", first, 1, 4.0)
    view.apply(Turn([late], [Outcome(counted=False)], 1009.5))
    assert view.workers["w3"].since_clock == 1009.0
    assert "w3 on h1: t1/1/p0, since 1970-01-01 00:16:49 UTC" in workers_as_text(view)
    view.apply(Turn([WorkerLost(11.0, "w3", "gone")], [Outcome()], 1011.0))
    assert (view.workers["w3"].activity, view.workers["w3"].queue, view.workers["w3"].since) == ("gone", (), 11.0)


def test_rows_that_were_read_stay_as_they_were() -> None:
    turns, _, _ = run_watched(Promoting(), SETTINGS, SimulatedBackend(workers(), WORLD))
    view, read = RunView(), []
    for turn in turns:
        view.apply(turn)
        rows = [*view.trials.values(), *view.workers.values(), *view.epochs.values()]
        read.append((rows, repr(rows)))
    assert all(repr(rows) == text for rows, text in read)


@pytest.fixture
def count_schedulers(monkeypatch: pytest.MonkeyPatch) -> list[MopScheduler]:
    made: list[MopScheduler] = []
    create = MopScheduler.__init__

    def counted(self: MopScheduler, settings: Settings) -> None:
        made.append(self)
        create(self, settings)

    monkeypatch.setattr(MopScheduler, "__init__", counted)
    return made


def test_one_scheduler_lives_in_a_driver(tmp_path: Path, count_schedulers: list[MopScheduler]) -> None:
    """With progress, trackers and the result; when a run is resumed too."""
    from small_driver import small_recipe, stopping_after
    from small_search import small_dataset

    from cerebro_spark import runs
    from cerebro_spark.result import Result
    from cerebro_spark.tune.trackers import Tracker, Tracking

    told: list[int] = []

    class Told(Tracker):
        def epoch(self, trial: str, params: Any, epoch: int, metrics: Any) -> None:
            told.append(epoch)

    dataset = small_dataset(tmp_path / "data")
    store = LocalStore(tmp_path / "runs")

    def backend() -> SimulatedBackend:
        return SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: 1.0))

    with Tracking([Told()], LOSS) as tracking:
        runs.execute(small_recipe(dataset, 2), store, backend(), "r1", [tracking], progress=True)
    assert Result(store, "r1").finished
    assert len(told) == 2 * len(Result(store, "r1").trials)
    assert len(count_schedulers) == 1
    count_schedulers.clear()
    with pytest.raises(KeyboardInterrupt):
        runs.execute(small_recipe(dataset, 2), store, backend(), "r2", [stopping_after(5, KeyboardInterrupt())])
    assert not Result(store, "r2").finished
    assert len(count_schedulers) == 1
    runs.resume(store, "r2", backend(), progress=True)
    assert Result(store, "r2").finished
    assert len(count_schedulers) == 2


def test_a_run_begun_by_an_older_version_is_read_through_a_scheduler(tmp_path: Path) -> None:
    turns, _, _ = run_watched(Promoting(), SETTINGS, SimulatedBackend(workers(), WORLD))
    half = len(turns) // 2
    mixed = [*bare(turns[:half]), *turns[half:]]
    assert repr(view_of(timeless(mixed))) == repr(view_of(timeless(turns)))
    store = LocalStore(tmp_path)
    EventLog(store, "log").append(*mixed)
    written = list(EventLog(store, "log").turns())
    assert [turn.recorded for turn in written] == [False, *[True] * (len(turns) - half)]
    assert timeless(with_outcomes(written)) == timeless(with_outcomes(mixed))


STRANGE: list[Any] = [None, "x", -1, 10**9, 0.5, [], {}, True]


def strangers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from ({**value, key: changed} for changed in [*STRANGE, *strangers(item)])
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], changed, *value[place + 1 :]] for changed in [*STRANGE, *strangers(item)])


def test_a_log_with_any_part_of_an_outcome_exchanged_is_read_or_refused_in_words(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    backend = SimulatedBackend([SimulatedWorker("w0")], WORLD)
    Engine(FixedSearch([{"cost": 1.0}], 1), replace(SETTINGS, workers=1), backend, EventLog(store, "r1"), "r1").run()
    lines = [json.loads(line) for name in sorted(store.list("runs/r1/log")) for line in store.read(name).splitlines()]
    refused = 0
    for place, line in enumerate(lines):
        for number, strange in enumerate(strangers(line["outcome"])):
            changed = [*lines[:place], {**line, "outcome": strange}, *lines[place + 1 :]]
            run = f"r{place}-{number}"
            store.write(paths.log_segment(run, 0), "".join(json.dumps(each) + "\n" for each in changed).encode())
            try:
                read_view(store, run).ranked()
            except CerebroError:
                refused += 1
    assert refused > 100
