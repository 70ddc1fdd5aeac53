"""The engine: logs before it acts, resumes from any event, and tells the search the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_runs import (
    EXPECTED,
    PARTITIONS,
    SETTINGS,
    WORLD,
    BrokenDisk,
    Faulty,
    Promoting,
    engine,
    watch,
    workers,
)
from snapshots import snapshot

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError, EventLogError, RunStalled
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Action,
    CostEstimated,
    Event,
    GatheringEnded,
    LoadPartition,
    RunUnit,
    Settings,
    UnitFinished,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Partition, Unit


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
    assert snapshot(again) == snapshot(made.scheduler)


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
        EventLog(store, "log").append(Turn(events[:cut]))
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
    end = snapshot(made.scheduler)
    for cut in range(0, len(events), 7):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(Turn(events[:cut]))
        half = MopScheduler(SETTINGS)
        for event in [*EventLog(store, "log").read(), *events[cut:]]:
            half.handle(event)
        assert snapshot(half) == end


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


def test_a_resumed_run_counts_failed_loads_from_the_beginning(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(BackendError, match="p1 could not be loaded"):
        engine(store, Promoting(), BrokenDisk(workers(), WORLD)).run()

    class MendedLate(BrokenDisk):
        left = 2

        def submit(self, action: Action) -> None:
            if isinstance(action, LoadPartition) and action.partition == "p1" and self.left == 0:
                SimulatedBackend.submit(self, action)
            else:
                self.left -= isinstance(action, LoadPartition) and action.partition == "p1"
                super().submit(action)

    search = Promoting()
    engine(store, search, MendedLate(workers(), WORLD)).resume()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED


@pytest.mark.parametrize(("before", "after"), [(3, 3), (2, 3), (3, 2), (1, 3)])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_a_resumed_run_waits_for_its_workers_before_it_loads_anything(
    tmp_path: Path, before: int, after: int, share: float
) -> None:
    settings = Settings(PARTITIONS, workers=before, objective=Objective("val_loss", "min"))
    spec = [SimulatedWorker(f"w{i}") for i in range(before)]
    whole = EventLog(LocalStore(tmp_path / "whole"), "log")
    Engine(Promoting(), settings, SimulatedBackend(spec, WORLD), whole).run()
    events = list(whole.read())
    log = EventLog(LocalStore(tmp_path / "cut"), "log")
    log.append(Turn(events[: max(1, int(len(events) * share))]))
    backend = Faulty([SimulatedWorker(f"w{i}", joins_at=float(i)) for i in range(after)])
    search = Promoting()
    made = Engine(search, settings, backend, log)
    made.resume()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED
    loaded = [order.partition for order in backend.orders if isinstance(order, LoadPartition)]
    assert sorted(loaded) == sorted(p.id for p in PARTITIONS)
    again = MopScheduler(settings)
    for event in log.read():
        again.handle(event)
    assert snapshot(again) == snapshot(made.scheduler)


def test_a_resumed_run_begins_without_those_who_never_come(tmp_path: Path) -> None:
    class Patient(SimulatedBackend):
        def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
            super().start(partitions, at)
            self._at(at + 30.0, lambda: [GatheringEnded(self.now())])

    store = LocalStore(tmp_path / "whole")
    engine(store, Promoting()).run()
    events = list(EventLog(store, "log").read())
    cut = LocalStore(tmp_path / "cut")
    EventLog(cut, "log").append(Turn(events[: len(events) // 2]))
    backend = Patient(workers(1), WORLD)
    backend.num_workers += 1
    search = Promoting()
    engine(cut, search, backend).resume()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED


class Noting(SimulatedBackend):
    """Notes the trials in the order in which units are given out."""

    def __init__(self) -> None:
        super().__init__(workers(), WORLD)
        self.trials: list[str] = []

    def submit(self, action: Action) -> None:
        if isinstance(action, RunUnit):
            self.trials.append(action.unit.trial)
        super().submit(action)


@pytest.mark.parametrize("known", [True, False])
def test_what_trial_runs_have_measured_decides_who_trains_first(tmp_path: Path, known: bool) -> None:
    trials = [{"cost": cost, "layers": layers} for layers, cost in enumerate([1.0, 1.0, 1.0, 20.0])]
    log, backend = EventLog(LocalStore(tmp_path), "log"), Noting()

    def expected(params: Mapping[str, Any]) -> float | None:
        return 2 * params["cost"] if known else None  # in trial runs all was half as fast

    made = Engine(FixedSearch(trials, 1), SETTINGS, backend, log, expected=expected)
    watch(made)
    made.run()
    told = [(event.trial, event.seconds) for event in log.read() if isinstance(event, CostEstimated)]
    assert told == ([("t0", 2.0), ("t1", 2.0), ("t2", 2.0), ("t3", 40.0)] if known else [])
    assert ("t3" in backend.trials[:2]) is known
