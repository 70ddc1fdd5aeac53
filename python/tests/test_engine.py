"""The engine: logs before it acts, resumes from any event, and tells the search the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
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
    GatheringEnded,
    LoadPartition,
    PartitionLost,
    RetireWorker,
    RunUnit,
    Settings,
    UnitFailed,
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


def watch(made: Engine, settings: Settings = SETTINGS) -> Auditor:
    """Have every event and action judged."""
    auditor = Auditor(settings)
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


class Faulty(SimulatedBackend):
    """Units of which `fails` says so, by worker and order, fail as if by the worker's fault; `loads` load nothing."""

    def __init__(
        self,
        spec: list[SimulatedWorker],
        fails: Callable[[str, RunUnit], bool] = lambda worker, order: False,
        loads: Collection[str] = (),
    ) -> None:
        super().__init__(spec, WORLD)
        self._fails = fails
        self._loads = loads
        self.orders: list[Action] = []

    def submit(self, action: Action) -> None:
        self.orders.append(action)
        if isinstance(action, LoadPartition) and action.worker in self._loads:
            lost = PartitionLost(self.now(), action.worker, action.partition, "no such mount")
            self._at(self.now(), lambda: [lost])
        else:
            super().submit(action)

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        worker = seat.spec.id
        if self._fails(worker, order):
            return [UnitFailed(self.now(), worker, order.unit, order.attempt, "no such mount", blame="worker")]
        return super()._finish(order, seat)

    @property
    def dismissed(self) -> list[str]:
        return [order.worker for order in self.orders if isinstance(order, RetireWorker)]


SEVERAL = [{"cost": 1.0 + i / 4} for i in range(5)]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("queue_ahead", [0, 1])
@pytest.mark.parametrize("count", [2, 3])
def test_a_worker_that_fails_at_everything_is_set_aside_and_no_trial_suffers(
    tmp_path: Path, replicas: int, queue_ahead: int, count: int
) -> None:
    backend = Faulty(workers(count), lambda worker, order: worker == "w1")
    search = _Recording(SEVERAL, 3)
    settings = Settings(PARTITIONS, workers=count, replicas=replicas, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    assert not [r for r in search.reports if r.failed]
    auditor.complete({f"t{i}": 3 for i in range(5)})
    assert backend.dismissed == ["w1"]
    again = MopScheduler(settings)
    for event in EventLog(LocalStore(tmp_path), "log").read():
        again.handle(event)
    assert again.snapshot() == made.scheduler.snapshot()


def test_a_worker_that_breaks_down_in_the_middle_is_set_aside(tmp_path: Path) -> None:
    """It trained well, then its mount went away: whatever has a checkpoint to fetch fails there."""
    backend = Faulty(workers(3), lambda worker, order: worker == "w1" and order.parent is not None)
    search = _Recording(SEVERAL, 3)
    Engine(search, Settings(PARTITIONS, workers=3), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert len(search.reports) == 15
    assert not [r for r in search.reports if r.failed]
    assert backend.dismissed == ["w1"]


def test_a_broken_host_is_set_aside_with_all_its_workers(tmp_path: Path) -> None:
    spec = [SimulatedWorker(f"w{i}", host="ab"[i // 2]) for i in range(4)]
    backend = Faulty(spec, lambda worker, order: worker in ("w0", "w1"))
    search = _Recording(SEVERAL, 2)
    Engine(search, Settings(PARTITIONS, workers=4), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert len(search.reports) == 10
    assert not [r for r in search.reports if r.failed]


@pytest.mark.parametrize("queue_ahead", [0, 1])
def test_trials_that_fail_wherever_they_are_cost_no_worker(tmp_path: Path, queue_ahead: int) -> None:
    """What they raise looks like a worker's fault, as a file that is nowhere does."""
    backend = Faulty(workers(3), lambda worker, order: order.params["cost"] in (1.25, 1.75))
    search = _Recording(SEVERAL, 2)
    settings = Settings(PARTITIONS, workers=3, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    failed = {r.trial: str(r.error) for r in search.reports if r.failed}
    assert set(failed) == {"t1", "t3"}
    assert all("3 times in a row" in error and "no such mount" in error for error in failed.values())
    auditor.complete({"t0": 2, "t2": 2, "t4": 2})
    assert backend.dismissed == []


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("queue_ahead", [0, 1])
def test_trials_of_which_one_part_fails_wherever_it_is_cost_no_worker(
    tmp_path: Path, queue_ahead: int, kind: str
) -> None:
    """The other part goes well meanwhile, which says nothing of the worker at which this one failed."""

    def fails(worker: str, order: RunUnit) -> bool:
        return order.params["cost"] == 1.25 and order.unit.kind == kind and order.unit.epoch == 2

    backend = Faulty(workers(3), fails)
    search = _Recording(SEVERAL, 3)
    settings = Settings(PARTITIONS, workers=3, queue_ahead=queue_ahead)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    watch(made, settings)
    made.run()
    assert {r.trial for r in search.reports if r.failed} == {"t1"}
    assert backend.dismissed == []


def test_a_broken_worker_with_nobody_beside_it_fails_the_trials(tmp_path: Path) -> None:
    backend = Faulty(workers(1), lambda worker, order: True)
    search = _Recording(SEVERAL, 1)
    Engine(search, Settings(PARTITIONS, workers=1), backend, EventLog(LocalStore(tmp_path), "log")).run()
    assert [r.failed for r in search.reports] == [True] * 5


def test_one_who_was_set_aside_comes_back_when_nobody_else_is_left(tmp_path: Path) -> None:
    """w1 fails three times, and w0 dies for good before anybody can say whose fault that was."""
    failing = iter([True] * 3)
    spec = [SimulatedWorker("w0", speed=0.01, deaths=((20.0, float("inf")),)), SimulatedWorker("w1")]
    backend = Faulty(spec, lambda worker, order: worker == "w1" and next(failing, False))
    search = _Recording([{"cost": 1.0}] * 2, 2)
    settings = Settings(PARTITIONS, workers=2)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    assert len([r for r in search.reports if not r.failed]) == 4
    auditor.complete({"t0": 2, "t1": 2})
    assert backend.dismissed == []


@pytest.mark.parametrize("broken", [{"w0"}, {"w1"}, {"w0", "w1"}])
def test_a_worker_that_cannot_load_anything_is_set_aside_and_the_run_finishes(tmp_path: Path, broken: set[str]) -> None:
    spec = [SimulatedWorker(f"w{i}", host="b" if i == 2 else "a") for i in range(3)]
    backend = Faulty(spec, loads=broken)
    search = _Recording(SEVERAL, 1)
    settings = Settings(PARTITIONS, workers=3)
    made = Engine(search, settings, backend, EventLog(LocalStore(tmp_path), "log"))
    auditor = watch(made, settings)
    made.run()
    auditor.complete({f"t{i}": 1 for i in range(5)})
    assert set(backend.dismissed) == broken


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
    log.append(events[: max(1, int(len(events) * share))])
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
    assert again.snapshot() == made.scheduler.snapshot()


def test_a_resumed_run_begins_without_those_who_never_come(tmp_path: Path) -> None:
    class Patient(SimulatedBackend):
        def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
            super().start(partitions, at)
            self._at(at + 30.0, lambda: [GatheringEnded(self.now())])

    store = LocalStore(tmp_path / "whole")
    engine(store, Promoting()).run()
    events = list(EventLog(store, "log").read())
    cut = LocalStore(tmp_path / "cut")
    EventLog(cut, "log").append(events[: len(events) // 2])
    backend = Patient(workers(1), WORLD)
    backend.num_workers += 1
    search = Promoting()
    engine(cut, search, backend).resume()
    assert {(r.trial, r.epoch) for r in search.reports} == EXPECTED


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
