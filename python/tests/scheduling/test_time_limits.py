"""How long a unit or a load may take, and what becomes of a worker that is stuck: all in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_play import Play
from engine_runs import PARTITIONS, WORLD, Recording, watch
from snapshots import snapshot
from wild_runs import ListedLog

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World, _WorkerState
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError, ConfigurationError, RunStalled
from cerebro_spark.events import (
    Action,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RunUnit,
    Settings,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

Stuck = Callable[[LoadPartition | RunUnit], bool]
TRIALS = [{"cost": 1.0 + i / 4} for i in range(4)]


class Sticky(SimulatedBackend):
    """Whoever is at something of which `stuck` says so never ends it."""

    def __init__(self, stuck: Stuck, workers: int = 3, world: World = WORLD) -> None:
        super().__init__([SimulatedWorker(f"w{i}", host=f"h{i}") for i in range(workers)], world)
        self._stuck = stuck
        self.orders: list[Action] = []

    def submit(self, action: Action) -> None:
        self.orders.append(action)
        super().submit(action)

    def _seconds(self, order: RunUnit, seat: _WorkerState) -> float:
        return float("inf") if self._stuck(order) else super()._seconds(order, seat)

    def _load_seconds(self, action: LoadPartition) -> float:
        return float("inf") if self._stuck(action) else super()._load_seconds(action)


def run(backend: Sticky, settings: Settings, epochs: int = 3) -> tuple[Recording, ListedLog]:
    search, log = Recording(TRIALS, epochs), ListedLog()
    made = Engine(search, settings, backend, log)
    watch(made, settings)
    made.run()
    again = MopScheduler(settings)
    for event in log.events:
        again.handle(event)
    assert snapshot(again) == snapshot(made.scheduler)
    return search, log


def once(picked: Stuck) -> Stuck:
    """Only the first time."""
    seen: list[Action] = []

    def stuck(order: LoadPartition | RunUnit) -> bool:
        if not seen and picked(order):
            seen.append(order)
        return order in seen[:1] and order is seen[0]

    return stuck


def unit(partition: str, epoch: int = 1) -> Stuck:
    return lambda order: isinstance(order, RunUnit) and order.unit[1:3] == (epoch, partition)


def load(partition: str) -> Stuck:
    return lambda order: isinstance(order, LoadPartition) and order.partition == partition


@pytest.mark.parametrize("what", [unit("p1"), unit("v0"), load("p1")], ids=["train", "eval", "load"])
def test_who_is_stuck_is_replaced_and_nothing_is_lost(what: Stuck) -> None:
    settings = with_todays_rules(Settings(PARTITIONS, workers=3, queue_ahead=1), unit_timeout=20.0)
    search, log = run(Sticky(once(what)), settings)
    assert len(search.reports) == 12
    assert not [report for report in search.reports if report.failed]
    (lost,) = [event for event in log.events if isinstance(event, WorkerLost)]
    assert "took longer than 20 s" in lost.reason
    assert 20.0 <= lost.at < 40.0


@pytest.mark.parametrize("what", [unit("p1"), unit("v0"), load("p1")], ids=["train", "eval", "load"])
def test_who_is_stuck_with_the_very_first_thing_is_found_when_others_have_shown_what_is_usual(what: Stuck) -> None:
    world = World(cost=lambda params: params["cost"], load_seconds=2.0)
    settings = with_todays_rules(Settings(PARTITIONS, workers=3, queue_ahead=1))
    search, log = run(Sticky(once(what), world=world), settings)
    assert len(search.reports) == 12
    assert not [report for report in search.reports if report.failed]
    (lost,) = [event for event in log.events if isinstance(event, WorkerLost)]
    assert 300.0 <= lost.at < 700.0


def test_without_any_limit_a_stuck_unit_hangs_the_run() -> None:
    with pytest.raises(RunStalled):
        run(Sticky(once(unit("p1"))), Settings(PARTITIONS, workers=3))


def test_what_is_usual_is_learnt_and_ten_times_of_it_is_too_long() -> None:
    world = World(cost=lambda params: 100.0 * params["cost"])
    settings = with_todays_rules(Settings(PARTITIONS, workers=3))
    search, log = run(Sticky(once(unit("p1", epoch=3)), world=world), settings)
    assert len(search.reports) == 12
    assert not [report for report in search.reports if report.failed]
    (lost,) = [event for event in log.events if isinstance(event, WorkerLost)]
    assert lost.running is not None
    (order,) = [o for o in log.events if isinstance(o, UnitFinished) and o.unit == _unit(log, lost.running)]
    assert order.at > lost.at


def _unit(log: ListedLog, attempt: int) -> object:
    """What was given out as this attempt."""
    scheduler = MopScheduler(with_todays_rules(Settings(PARTITIONS, workers=3)))
    for event in log.events:
        for action in scheduler.handle(event):
            if isinstance(action, RunUnit) and action.attempt == attempt:
                assert action.limit is not None
                assert 900.0 < action.limit < 2000.0, "ten units of 100 to 175 s"
                return action.unit
    raise AssertionError(f"attempt {attempt} was never given out")


def test_a_trial_that_always_hangs_fails_by_name_and_the_others_go_on() -> None:
    settings = with_todays_rules(Settings(PARTITIONS, workers=3), max_kills=2, unit_timeout=30.0)
    backend = Sticky(lambda order: isinstance(order, RunUnit) and order.params["cost"] == 1.25)
    search, _ = run(backend, settings)
    (failed,) = [report for report in search.reports if report.failed]
    assert failed.trial == "t1"
    assert "took longer than 30 s" in str(failed.error)
    assert len(search.reports) == 10


def test_a_partition_that_nobody_can_load_in_time_ends_the_run_with_its_name() -> None:
    settings = with_todays_rules(Settings(PARTITIONS, workers=3), unit_timeout=30.0)
    with pytest.raises(BackendError, match=r"p1 could not be loaded 3 times.*took longer than 30 s"):
        run(Sticky(load("p1")), settings)


class Learning:
    """A scheduler with one worker and one trial, and the limits that it sets."""

    def __init__(self, unit_timeout: float | None = None) -> None:
        parts = (Partition("p0", rows=10), Partition("v0", "validation"))
        self.scheduler = MopScheduler(with_todays_rules(Settings(parts, workers=1), unit_timeout=unit_timeout))
        self.limits: list[tuple[str, float | None]] = []
        self.order: RunUnit | None = None
        self.feed(WorkAdded(0.0, Work("t0", {}, 9)))
        self.feed(WorkerJoined(0.0, "w0"))

    def feed(self, event: object) -> None:
        for action in self.scheduler.handle(event):  # type: ignore[arg-type]
            if isinstance(action, LoadPartition):
                self.limits.append(("load", action.limit))
            elif isinstance(action, RunUnit):
                self.order = action
                self.limits.append((action.unit.kind, action.limit))

    def finish(self, seconds: float) -> None:
        order = self.order
        assert order is not None
        train = order.unit.kind == "train"
        left = Checkpoint(order.unit.trial, order.unit.epoch, order.step, order.attempt) if train else None
        self.feed(UnitFinished(0.0, order.worker, order.unit, order.attempt, seconds, left, Metrics()))


def test_before_anything_is_known_nothing_is_too_long() -> None:
    play = Learning()
    play.feed(PartitionLoaded(0.0, "w0", "p0"))
    assert play.limits == [("load", None), ("load", None), ("train", None)]


def test_limits_grow_with_what_is_usual_and_are_never_short() -> None:
    play = Learning()
    play.feed(PartitionLoaded(60.0, "w0", "p0"))
    play.feed(PartitionLoaded(70.0, "w0", "v0"))
    play.limits.clear()
    for seconds in (50.0, 20.0, 50.0, 20.0, 50.0):
        play.finish(seconds)
    kinds = [kind for kind, _ in play.limits]
    assert kinds == ["eval", "train", "eval", "train", "eval"]
    (first_eval, second_train, eval_, train, _) = (limit for _, limit in play.limits)
    assert first_eval == 5000.0, "nothing like it was seen: a hundred times the longest"
    assert second_train == 5000.0, "nobody knows how fast this worker is"
    assert eval_ == 300.0
    assert train == pytest.approx(500.0)
    play.feed(PartitionLost(80.0, "w0", "v0", "gone"))
    assert play.limits[-1] == ("load", 700.0)


def test_what_is_said_holds_for_all() -> None:
    play = Learning(unit_timeout=7.0)
    play.feed(PartitionLoaded(60.0, "w0", "p0"))
    play.finish(50.0)
    assert {limit for _, limit in play.limits} == {7.0}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(seconds: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`unit_timeout` is"):
        MopScheduler(with_todays_rules(Settings(PARTITIONS, workers=1), unit_timeout=seconds))


def test_a_group_may_take_as_long_as_one_worker_would_for_all_of_it() -> None:
    play = Play(1, workers=2, epochs=3, fuse=1, group=2, least_timeout=1.0)
    (first,) = play.told
    assert first.partners == ("w1",)
    left = Checkpoint("t0", 1, first.step, first.attempt)
    done = UnitFinished(play.now, "w0", first.unit, first.attempt, 100.0, left, play.metrics, partners=first.partners)
    (second,) = play.feed(done)
    assert second.partners
    assert second.limit == pytest.approx(10 * (100.0 + 100.0))
