"""Whose fault a failure is, in examples: the trial's, the partition's, or the worker's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from cerebro_spark.events import (
    Action,
    DropPartition,
    Event,
    FailRun,
    GatheringBegan,
    GatheringEnded,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    Settings,
    TellSearch,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

SETTINGS = Settings((Partition("p0"), Partition("p1"), Partition("v0", "validation")), workers=2)
Fails = Callable[[RunUnit], bool]

A = TypeVar("A", bound=Action)


class Play:
    """Feeds a scheduler, checks its books, and keeps what it orders."""

    def __init__(self, settings: Settings = SETTINGS, hosts: str = "ab") -> None:
        self.scheduler = MopScheduler(settings)
        self.actions: list[Action] = []
        self.units: list[RunUnit] = []
        for row, host in enumerate(hosts):
            self.feed(WorkerJoined(0.0, f"w{row}", host))
        self.load()

    def feed(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event)
        self.scheduler.check_invariants()
        self.actions += actions
        self.units += [action for action in actions if isinstance(action, RunUnit)]
        return actions

    def load(self) -> None:
        """All that is to be loaded is."""
        for worker in list(self.scheduler.state.workers.values()):
            for partition in sorted(worker.loading):
                self.feed(PartitionLoaded(0.0, worker.id, partition))

    def run(self, fails: Fails, steps: int = 99) -> None:
        """Let units and loads end in the order in which they were given."""
        for _ in range(steps):
            self.load()
            if not self.units:
                return
            order = self.units.pop(0)
            self.feed(failed(order) if fails(order) else finished(order))

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def ends(self) -> list[tuple[str, int, bool]]:
        reports = [action.report for action in self.actions if isinstance(action, TellSearch)]
        return [(report.trial, report.epoch, report.failed) for report in reports]

    @property
    def in_doubt(self) -> list[str]:
        return [worker.id for worker in self.scheduler.state.workers.values() if worker.doubters]


def finished(order: RunUnit) -> UnitFinished:
    unit = order.unit
    left = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt) if unit.kind == "train" else None
    return UnitFinished(1.0, order.worker, unit, order.attempt, 1.0, left, Metrics({"loss": 1.0}, {"loss": 1.0}))


def failed(order: RunUnit) -> UnitFailed:
    return UnitFailed(1.0, order.worker, order.unit, order.attempt, "boom", "worker")


def work(trial: str) -> WorkAdded:
    return WorkAdded(0.0, Work(trial, {}, until_epoch=1))


def play_until_in_doubt(settings: Settings = SETTINGS) -> tuple[Play, str]:
    """A trial fails at one of two workers until that one is set aside."""
    play = Play(settings)
    play.feed(work("t0"))
    worker = play.units[0].worker
    play.run(lambda order: True, steps=3)
    assert play.in_doubt == [worker]
    return play, worker


def test_whom_a_trial_doubts_does_nothing_until_that_trial_is_through_elsewhere() -> None:
    play, doubted = play_until_in_doubt()
    assert play.of(RetireWorker) == []
    assert {order.partition for order in play.of(DropPartition)} <= {"p0", "p1", "v0"}
    assert all(order.worker == doubted for order in play.of(DropPartition))
    play.run(lambda order: False, steps=1)
    assert play.of(RetireWorker) == [RetireWorker(doubted)]
    play.run(lambda order: order.worker == doubted)
    assert play.ends == [("t0", 1, False)]


def test_a_trial_that_fails_elsewhere_too_has_failed_and_the_worker_comes_back() -> None:
    play, doubted = play_until_in_doubt()
    play.run(lambda order: True)
    assert play.ends == [("t0", 1, True)]
    assert play.in_doubt == []
    assert play.of(RetireWorker) == []
    play.feed(work("t1"))
    play.run(lambda order: False)
    assert play.ends[1:] == [("t1", 1, False)]
    assert doubted in {order.worker for order in play.of(RunUnit) if order.unit.trial == "t1"}


def test_training_that_goes_on_says_nothing_of_where_an_evaluation_failed() -> None:
    """It fails wherever it is; the other epochs of the trial, trained and evaluated elsewhere, accuse nobody."""
    play = Play()
    play.feed(WorkAdded(0.0, Work("t0", {}, until_epoch=4)))
    play.run(lambda order: order.unit.kind == "eval" and order.unit.epoch == 1)
    assert [failed for _, _, failed in play.ends] == [True]
    assert play.of(RetireWorker) == []
    assert play.in_doubt == []


def test_nobody_is_doubted_for_the_sake_of_a_trial_that_rests() -> None:
    """One that failed once here and came through elsewhere will not be heard of again."""
    play = Play()
    play.feed(work("t0"))
    play.run(lambda order: False)
    play.feed(work("t1"))
    worker = play.scheduler.state.workers[play.units[0].worker]
    worker.failures = [("t0", "train", 1)]
    play.run(lambda order: order.unit.trial == "t1")
    assert [end for end in play.ends if end[2]] == [("t1", 1, True)]
    assert play.in_doubt == []
    assert not worker.retiring


def test_what_was_on_its_way_when_it_was_dropped_is_not_held_by_who_comes_back() -> None:
    play = Play(Settings(SETTINGS.partitions[:2], workers=1, max_failures=1), hosts="")
    play.feed(work("t0"))
    play.feed(WorkerJoined(0.0, "w0", "a", holds=("p0",)))
    play.feed(WorkerJoined(0.0, "w1", "b"))
    worker = play.scheduler.state.workers["w0"]
    assert worker.loading == {"p1"}
    play.feed(failed(play.units.pop()))
    assert play.in_doubt == ["w0"]
    play.feed(TrialStopped(1.0, "t0"))
    assert play.in_doubt == []
    (dropped,) = {"p0", "p1"} - worker.loading
    play.feed(PartitionLoaded(1.0, "w0", dropped))
    assert worker.holds == set()


def test_an_evaluation_that_fails_in_one_place_only_is_done_elsewhere() -> None:
    play = Play()
    play.feed(work("t0"))
    (holder,) = [worker.id for worker in play.scheduler.state.workers.values() if "v0" in worker.holds]
    play.run(lambda order: order.unit.kind == "eval" and order.worker == holder)
    assert play.ends == [("t0", 1, False)]
    assert play.of(RetireWorker) == [RetireWorker(holder)]


def test_who_retires_while_in_doubt_goes_at_once() -> None:
    play, doubted = play_until_in_doubt()
    assert RetireWorker(doubted) in play.feed(WorkerRetiring(1.0, doubted))
    play.run(lambda order: False)
    assert play.ends == [("t0", 1, False)]


def test_who_dies_or_comes_anew_is_in_doubt_no_more() -> None:
    for event in (WorkerLost(1.0, "w?", "killed"), WorkerJoined(1.0, "w?", "a")):
        play, doubted = play_until_in_doubt()
        play.feed(replace(event, worker=doubted))
        assert play.in_doubt == []
        play.run(lambda order: False)
        assert play.ends == [("t0", 1, False)]


def test_who_is_in_doubt_comes_back_when_nobody_else_is_left() -> None:
    play, doubted = play_until_in_doubt()
    (other,) = {"w0", "w1"} - {doubted}
    play.feed(WorkerLost(1.0, other, "killed"))
    assert play.in_doubt == []
    play.units.clear()
    play.load()
    play.run(lambda order: False)
    assert play.ends == [("t0", 1, False)]


def test_failures_in_between_successes_set_nobody_aside() -> None:
    play = Play()
    for trial in ("t0", "t1", "t2"):
        play.feed(work(trial))
    turn = iter(range(1000))
    play.run(lambda order: next(turn) % 3 == 0)
    assert sorted(play.ends) == [("t0", 1, False), ("t1", 1, False), ("t2", 1, False)]
    assert play.of(DropPartition) == []


def test_a_partition_that_fails_on_one_host_only_is_loaded_on_another() -> None:
    play = Play(replace(SETTINGS, workers=3), hosts="aab")
    victims = {name: play.scheduler.state.workers[name] for name in ("w0", "w1")}
    for _ in range(20):
        hit = next(((w, p) for w in victims.values() if w.live for p in sorted(w.holds | w.loading)), None)
        if hit is not None:
            play.feed(PartitionLost(1.0, hit[0].id, hit[1], "no such mount"))
    assert play.of(FailRun) == []
    assert play.of(RetireWorker) == [RetireWorker("w0"), RetireWorker("w1")]
    play.load()
    assert play.scheduler.state.workers["w2"].holds == {"p0", "p1", "v0"}


def test_a_partition_that_fails_on_two_hosts_ends_the_run_and_may_be_tried_again_later() -> None:
    play = Play()
    loads = 0
    while not play.of(FailRun):
        loads += 1
        holder = next(w for w in play.scheduler.state.workers.values() if "p0" in w.holds | w.loading)
        play.feed(PartitionLost(1.0, holder.id, "p0", "disk on fire"))
    assert loads == 5
    assert play.of(FailRun) == [
        FailRun("partition p0 could not be loaded 3 times in a row; the last time: disk on fire")
    ]
    play.feed(GatheringBegan(2.0, 1))
    play.feed(WorkerLost(2.0, holder.id, "the driver died", blames_unit=False))
    assert LoadPartition("w7", "p0") in play.feed(WorkerJoined(3.0, "w7", "c"))
    assert LoadPartition("w7", "p0") in play.feed(PartitionLost(3.0, "w7", "p0", "still"))
    assert len(play.of(FailRun)) == 1


def test_nothing_is_loaded_before_all_new_workers_are_there_or_nobody_waits_for_them() -> None:
    for enough in (WorkerJoined(3.0, "w9"), GatheringEnded(3.0)):
        play = Play()
        play.actions.clear()
        play.feed(GatheringBegan(1.0, 2))
        play.feed(WorkerLost(1.0, "w0", "the driver died", blames_unit=False))
        play.feed(WorkerLost(1.0, "w1", "the driver died", blames_unit=False))
        play.feed(WorkerJoined(2.0, "w0"))
        assert play.of(LoadPartition) == []
        play.feed(enough)
        assert sorted(load.partition for load in play.of(LoadPartition)) == ["p0", "p1", "v0"]


def let_go_after(play: Play, broken: str) -> list[float | None]:
    """Let a worker fail at everything; returns how long its place is to stay empty."""
    play.feed(work(f"t{len(play.scheduler.state.trials)}"))
    play.run(lambda order: order.worker == broken)
    return [order.back_after for order in play.of(RetireWorker) if order.worker == broken]


def test_who_was_let_go_is_replaced_after_a_while_that_grows() -> None:
    play = Play(replace(SETTINGS, quarantine=60.0))
    assert let_go_after(play, "w1") == [60.0]
    for number in range(1, 9):
        heir = f"w1.{number}"
        play.feed(WorkerJoined(1.0, heir, "b"))
        assert let_go_after(play, heir) == [60.0 * 2 ** min(number, 6)]
    assert [failed for _, _, failed in play.ends] == [False] * 9, "no trial suffers for the place"


def test_who_could_not_load_is_replaced_too() -> None:
    play = Play(replace(SETTINGS, quarantine=5.0))
    worker = play.scheduler.state.workers["w1"]
    while not play.of(RetireWorker):
        partition = min(worker.holds | worker.loading)
        play.feed(PartitionLost(1.0, "w1", partition, "no such mount"))
    assert play.of(RetireWorker) == [RetireWorker("w1", 5.0)]


def test_who_leaves_because_somebody_wants_it_is_not_replaced() -> None:
    play = Play(replace(SETTINGS, quarantine=60.0))
    assert RetireWorker("w1") in play.feed(WorkerRetiring(1.0, "w1"))
    play, doubted = play_until_in_doubt(replace(SETTINGS, quarantine=60.0))
    assert RetireWorker(doubted) in play.feed(WorkerRetiring(1.0, doubted))
