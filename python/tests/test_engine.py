"""The engine: logs before it acts, resumes from any event, and tells the search the truth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from auditor import Auditor

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError, EventLogError, RunStalled
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Action,
    Event,
    LoadPartition,
    PartitionLost,
    RunUnit,
    Settings,
    UnitFinished,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Objective, Partition, Report, Unit, Work

PARTITIONS = (*(Partition(f"p{i}") for i in range(3)), Partition("v0", "validation"), Partition("v1", "validation"))
SETTINGS = Settings(PARTITIONS, workers=2, objective=Objective("val_loss", "min"), max_kills=99)
WORLD = World(cost=lambda params: params["cost"], jitter=0.3)


class Promoting(Search):
    """Trains four trials for an epoch, the better two for two more, then warm-starts a fifth from the best."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self._queue = [Work(f"t{i}", {"cost": 1.0 + i}, 1) for i in range(4)]
        self._rungs = 0

    def ask(self) -> Work | Wait | Done:
        if self._queue:
            return self._queue.pop(0)
        return Done() if self._rungs == 3 else Wait()

    def tell(self, report: Report) -> None:
        self.reports.append(report)
        done = {(r.trial, r.epoch): r for r in self.reports}
        if self._rungs == 0 and len(done) == 4:
            self._rungs = 1
            self._queue = [Work(t, {"cost": 2.0}, 3) for t in ("t0", "t2")]
        elif self._rungs == 1 and ("t0", 3) in done and ("t2", 3) in done:
            self._rungs = 2
            self._queue = [Work("t9", {"cost": 1.0}, 1, done["t0", 3].checkpoint)]
        elif ("t9", 1) in done:
            self._rungs = 3

    def state(self) -> dict[str, Any]:
        raise AssertionError("a run is resumed by repeating it")

    def restore(self, state: Mapping[str, Any]) -> None:
        raise AssertionError("a run is resumed by repeating it")


EXPECTED = {("t0", 1), ("t1", 1), ("t2", 1), ("t3", 1), ("t0", 2), ("t2", 2), ("t0", 3), ("t2", 3), ("t9", 1)}


def workers(count: int = 2) -> list[SimulatedWorker]:
    return [SimulatedWorker(f"w{i}", speed=1.0 + i) for i in range(count)]


def engine(store: LocalStore, search: Search, backend: SimulatedBackend | None = None) -> Engine:
    made = Engine(search, SETTINGS, backend or SimulatedBackend(workers(), WORLD), EventLog(store, "log"))
    watch(made)
    return made


def watch(made: Engine) -> Auditor:
    """Have every event and action judged."""
    auditor = Auditor(SETTINGS)
    handle = made.scheduler.handle

    def audited(event: Event) -> list[Action]:
        auditor.before(event)
        actions = handle(event)
        auditor.after(actions)
        made.scheduler.check_invariants()
        return actions

    made.scheduler.handle = audited  # type: ignore[method-assign]
    return auditor


def test_a_search_with_promotions_and_a_warm_start_runs_to_its_end(tmp_path: Path) -> None:
    search = Promoting()
    made = engine(LocalStore(tmp_path), search)
    made.run()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED
    assert len(search.reports) == len(EXPECTED)
    assert all(set(r.metrics) == {"loss", "val_loss"} for r in search.reports)


def test_the_log_rebuilds_the_scheduler_exactly(tmp_path: Path) -> None:
    made = engine(LocalStore(tmp_path), Promoting())
    made.run()
    again = MopScheduler(SETTINGS)
    for event in EventLog(LocalStore(tmp_path), "log").read():
        again.handle(event)
    assert again.snapshot() == made.scheduler.snapshot()


def end_of(made: Engine) -> dict[str, Any]:
    """What a run leaves behind, whoever did the work: where each trial stands, how good it is, what is kept of it."""
    return {
        trial.id: (
            trial.params,
            trial.until,
            trial.epoch,
            trial.status,
            trial.best_value,
            trial.best and trial.best[:3],
        )
        for trial in made.scheduler.state.trials.values()
    }


@pytest.mark.slow
def test_cut_at_every_event_the_run_resumes_and_no_finished_unit_runs_again(tmp_path: Path) -> None:
    whole = engine(LocalStore(tmp_path / "whole"), Promoting())
    whole.run()
    events = list(EventLog(LocalStore(tmp_path / "whole"), "log").read())
    expected = end_of(whole)
    assert len(events) > 60
    for cut in range(1, len(events) + 1):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(events[:cut])
        search = Promoting()
        resumed = engine(store, search, SimulatedBackend(workers(3), WORLD, seed=cut))
        resumed.resume()
        assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED
        finished = [e.unit for e in EventLog(store, "log").read() if isinstance(e, UnitFinished)]
        assert len(finished) == len(set(finished)) == 9 * 5
        assert resumed.scheduler.finished
        assert end_of(resumed) == expected


def test_cut_at_every_event_the_rest_of_the_log_leads_to_the_same_end(tmp_path: Path) -> None:
    made = engine(LocalStore(tmp_path), Promoting())
    made.run()
    events = list(EventLog(LocalStore(tmp_path), "log").read())
    end = made.scheduler.snapshot()
    for cut in range(0, len(events), 7):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(events[:cut])
        half = MopScheduler(SETTINGS)
        for event in [*EventLog(store, "log").read(), *events[cut:]]:
            half.handle(event)
        assert half.snapshot() == end


def test_another_search_cannot_resume_the_run(tmp_path: Path) -> None:
    engine(LocalStore(tmp_path), Promoting()).run()
    with pytest.raises(EventLogError, match="resume with the search, space and seed of that run"):
        engine(LocalStore(tmp_path), FixedSearch([{"cost": 1.0}], 1)).resume()


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="nothing to resume"):
        engine(LocalStore(tmp_path), Promoting()).resume()


class LogSpy(SimulatedBackend):
    """Looks into the log whenever something is ordered."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(workers(), WORLD)
        self._log = EventLog(store, "log")
        self.last: Event | None = None

    def events(self) -> list[Event]:
        facts = super().events()
        self.last = facts[-1]
        return facts

    def submit(self, action: Action) -> None:
        if isinstance(action, RunUnit) and self.last is not None:
            assert self.last in list(self._log.read()), "an order went out before its reason was logged"
        super().submit(action)


def test_every_event_is_logged_before_anything_is_done_about_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    engine(store, FixedSearch([{"cost": 1.0}] * 3, 1), LogSpy(store)).run()


def test_epochs_and_evaluations_wait_for_no_barrier(tmp_path: Path) -> None:
    """A short trial is an epoch ahead of a long one, and trains on while its last epoch is evaluated."""
    store = LocalStore(tmp_path)
    engine(store, FixedSearch([{"cost": 1.0}, {"cost": 9.0}, {"cost": 1.0}], 3)).run()
    finished = [e for e in EventLog(store, "log").read() if isinstance(e, UnitFinished)]
    order = [e.unit for e in finished]
    second_of_short = min(i for i, u in enumerate(order) if u == Unit("t0", 2, u.partition))
    last_of_long_first_epoch = max(i for i, u in enumerate(order) if u == Unit("t1", 1, u.partition))
    assert second_of_short < last_of_long_first_epoch
    starts = {e.unit: e.at - e.seconds for e in finished}
    evaluated = max(e.at for e in finished if e.unit.trial == "t0" and e.unit.epoch == 1 and e.unit.kind == "eval")
    next_epoch = min(at for u, at in starts.items() if u.trial == "t0" and u.epoch == 2 and u.kind == "train")
    assert next_epoch < evaluated


def test_without_any_worker_the_run_ends_with_an_error(tmp_path: Path) -> None:
    gone = SimulatedBackend([SimulatedWorker("w0", deaths=((2.0, float("inf")),))], WORLD)
    settings = Settings(PARTITIONS, workers=1)
    with pytest.raises(RunStalled, match="no worker will come"):
        Engine(FixedSearch([{"cost": 1.0}], 9), settings, gone, EventLog(LocalStore(tmp_path), "log")).run()


class BrokenDisk(SimulatedBackend):
    """No worker can load p1."""

    def submit(self, action: Action) -> None:
        if isinstance(action, LoadPartition) and action.partition == "p1":
            self._at(self.now(), lambda: [PartitionLost(self.now(), action.worker, "p1", "disk on fire")])
        else:
            super().submit(action)


def test_a_partition_that_nobody_can_load_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"p1 could not be loaded 3 times.*disk on fire.*resume"):
        engine(LocalStore(tmp_path), Promoting(), BrokenDisk(workers(), WORLD)).run()


@pytest.mark.parametrize("seed", range(8))
def test_deaths_returns_and_late_results_lose_no_unit(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(
        cost=lambda p: p["cost"], jitter=0.3, failure_rate=0.15, repair_seconds=4.0, late_results=True, load_seconds=0.5
    )
    spec = [
        SimulatedWorker(f"w{i}", speed=rng.uniform(0.5, 2), joins_at=rng.uniform(0, 6), deaths=((9.0, 20.0 + i),))
        for i in range(3)
    ]
    search = Promoting()
    backend = SimulatedBackend(spec, world, seed)
    made = Engine(search, SETTINGS, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made)
    made.run()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED
    auditor.complete({"t0": 3, "t1": 1, "t2": 3, "t3": 1, "t9": 1})
    assert made.scheduler.units_given_up > 0


def test_a_trial_that_kills_its_worker_twice_is_failed_and_the_others_go_on(tmp_path: Path) -> None:
    class Deadly(SimulatedBackend):
        def _begin(self, seat: Any) -> None:
            if seat.queue[0].params["cost"] == 666.0:
                life = seat.life
                self._at(self.now() + 0.1, lambda: self._fall(seat, life))
            else:
                super()._begin(seat)

    store = LocalStore(tmp_path)
    search = _Recording([{"cost": 1.0}, {"cost": 666.0}, {"cost": 1.0}], 2)
    settings = Settings(PARTITIONS, workers=2)
    Engine(search, settings, Deadly(workers(), WORLD), EventLog(store, "log")).run()
    failed = [r for r in search.reports if r.failed]
    assert [r.trial for r in failed] == ["t1"]
    assert "lost its worker 2 times in a row" in str(failed[0].error)
    assert {(r.trial, r.epoch) for r in search.reports if not r.failed} == {
        (t, e) for t in ("t0", "t2") for e in (1, 2)
    }
    restarts = [e for e in EventLog(store, "log").read() if isinstance(e, WorkerJoined)]
    assert len(restarts) == 4


class _Recording(FixedSearch):
    def __init__(self, configurations: Sequence[Mapping[str, Any]], epochs: int) -> None:
        super().__init__(configurations, epochs)
        self.reports: list[Report] = []

    def tell(self, report: Report) -> None:
        self.reports.append(report)
