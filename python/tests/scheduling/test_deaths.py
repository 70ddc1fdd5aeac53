"""Workers that die in the middle of a unit: when that is the unit's doing, and when it is not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from engine_runs import PARTITIONS, Recording

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.codec import decode, encode
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import (
    Event,
    KillRule,
    LoadPartition,
    LossExplained,
    PartitionLoaded,
    RunStarted,
    RunUnit,
    Settings,
    TellSearch,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.deaths import Deaths, died_with_host
from cerebro_spark.scheduling.records import Kill
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.simulation import Scenario, simulate
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

SETTINGS = Settings((Partition("p0"),), workers=1)


class Play:
    """One trial and one partition; whoever gets the unit dies, or finishes it."""

    def __init__(self, rule: KillRule, max_kills: int = 2) -> None:
        settings = dataclasses.replace(SETTINGS, kill_rule=rule, max_kills=max_kills)
        self.scheduler = MopScheduler(settings)
        self.now = 0.0
        self.error: str | None = None
        self.order: RunUnit | None = None
        self.feed(WorkAdded(0.0, Work("t0", {}, until_epoch=1000)))

    def feed(self, event: Event) -> None:
        for action in self.scheduler.handle(event):
            if isinstance(action, RunUnit):
                self.order = action
            elif isinstance(action, TellSearch) and action.report.failed:
                self.error = action.report.error
            elif isinstance(action, LoadPartition):
                self.feed(PartitionLoaded(self.now, action.worker, action.partition))
        self.scheduler.check_invariants()

    def die(self, worker: str, host: str, *, blames: bool = True, explained: str = "") -> None:
        """A worker comes, gets the unit, and dies."""
        self.now += 100.0
        self.feed(WorkerJoined(self.now, worker, host))
        assert self.order is not None
        assert self.order.worker == worker
        self.feed(WorkerLost(self.now, worker, "killed", blames, self.order.attempt))
        if explained:
            self.feed(LossExplained(self.now, worker, explained))

    def finish(self, units: int) -> None:
        """A worker comes, does so many units, and goes without blame."""
        self.now += 100.0
        self.feed(WorkerJoined(self.now, "good", "good"))
        for _ in range(units):
            order = self.order
            assert order is not None
            left = Checkpoint("t0", order.unit.epoch, order.step, order.attempt)
            self.feed(UnitFinished(self.now, "good", order.unit, order.attempt, 1.0, left, Metrics()))
        self.feed(WorkerLost(self.now, "good", "retired", blames_unit=False))


def deaths_until_failure(play: Play, hosts: list[str], **how: Any) -> int:
    for number, host in enumerate(hosts, 1):
        play.die(f"w{number}", host, **how)
        if play.error is not None:
            return number
    return 0


@pytest.mark.parametrize(
    ("rule", "hosts", "deaths"),
    [("in a row", "aaaa", 2), ("hosts", "aaaa", 3), ("hosts", "abcd", 2), ("hosts", "aabb", 3), ("chance", "aaaa", 3)],
)
def test_a_unit_that_kills_its_workers_fails_its_trial(rule: KillRule, hosts: str, deaths: int) -> None:
    """On different hosts, or on the only one once more."""
    play = Play(rule)
    assert deaths_until_failure(play, list(hosts)) == deaths
    assert f"lost its worker {deaths} times in a row" in str(play.error)


@pytest.mark.parametrize(("units", "deaths"), [(0, 4), (100, 3), (1000, 2)])
def test_the_better_workers_are_known_to_live_the_sooner_a_unit_is_to_blame(units: int, deaths: int) -> None:
    play = Play("chance")
    if units:
        play.finish(units - 1)
    assert deaths_until_failure(play, list("abcdefgh")) == deaths


def test_where_workers_die_of_themselves_it_takes_more_to_blame_a_unit() -> None:
    play = Play("chance")
    for number in range(10):
        play.die(f"x{number}", f"x{number}")
        play.finish(19)
    assert deaths_until_failure(play, list("abcdefgh")) == 5


def test_deaths_in_one_place_only_are_held_against_the_place() -> None:
    settings = dataclasses.replace(SETTINGS, kill_rule="hosts")
    convicted = [Deaths().is_cause(settings, [Kill("w0", "a", 0.0)] * count, {"a", "b"}, 0) for count in range(1, 7)]
    assert convicted == [False] * 4 + [True] * 2


@pytest.mark.parametrize("max_kills", [2, 3, 12])
def test_how_many_may_be_said(max_kills: int) -> None:
    assert deaths_until_failure(Play("hosts", max_kills), [f"h{n}" for n in range(20)]) == max_kills


@pytest.mark.parametrize("how", [{"blames": False}, {"explained": "preempted"}], ids=["at once", "later"])
def test_deaths_of_which_the_cause_is_known_do_not_count(how: dict[str, Any]) -> None:
    play = Play("hosts")
    assert deaths_until_failure(play, list("abcdefg"), **how) == 0
    assert deaths_until_failure(play, list("xyz")) == 2


def test_no_unit_is_tried_for_ever_whatever_explains_its_deaths() -> None:
    play = Play("hosts")
    assert deaths_until_failure(play, [f"h{n}" for n in range(30)], explained="preempted") == 10


@pytest.mark.parametrize(("seconds", "fails"), [(1.0, False), (60.0, True)], ids=["together", "apart"])
def test_a_host_that_falls_with_all_its_workers_accuses_nobody(seconds: float, fails: bool) -> None:
    settings = dataclasses.replace(SETTINGS, workers=4, kill_rule="hosts")
    scheduler = MopScheduler(settings)
    orders: list[RunUnit] = []

    def feed(event: Event) -> list[Any]:
        actions = scheduler.handle(event)
        for action in actions:
            if isinstance(action, LoadPartition):
                actions += feed(PartitionLoaded(event.at, action.worker, action.partition))
        orders.extend(action for action in actions if isinstance(action, RunUnit))
        return actions

    feed(WorkAdded(0.0, Work("t0", {}, 1)))
    for worker, host in (("w0", "a"), ("w1", "a"), ("w2", "b"), ("w3", "b")):
        feed(WorkerJoined(0.0, worker, host))
    now, failed = 0.0, False
    for _ in range(4):
        now += 100.0
        host = scheduler.state.workers[orders[-1].worker].host
        fallen = [w.id for w in scheduler.state.workers.values() if w.live and w.host == host]
        running = orders[-1].worker
        for number, worker in enumerate([running, *(name for name in fallen if name != running)]):
            actions = feed(WorkerLost(now + number * seconds, worker, "gone"))
            failed = failed or any(isinstance(action, TellSearch) for action in actions)
        for worker in fallen:
            feed(WorkerJoined(now + 70.0, f"{worker}'", host))
    assert failed == fails


def test_an_order_that_had_not_begun_is_not_to_blame() -> None:
    play = Play("hosts", max_kills=1)
    play.now += 1.0
    play.feed(WorkerJoined(play.now, "w0", "a"))
    play.feed(WorkerLost(play.now, "w0", "killed", running=99))
    assert play.error is None


def test_the_log_of_an_older_run_is_judged_by_the_rule_of_its_time() -> None:
    written = json.loads(encode(RunStarted(0.0, "r", SETTINGS)))
    for name in ("kill_rule", "quarantine"):
        del written["settings"][name]
    event = decode(json.dumps(written))
    assert isinstance(event, RunStarted)
    assert event.settings.kill_rule == "in a row"
    assert event.settings.quarantine is None
    assert with_todays_rules(event.settings).kill_rule == "chance"


@pytest.mark.parametrize("seeds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_where_workers_are_preempted_no_trial_fails_for_it(seeds: int) -> None:
    """One in twenty units loses its worker. By the rule of old more than one trial of sixteen failed for that."""
    scenario = Scenario(trials=16, workers=8, epochs=3, failure_rate=0.05)
    outcomes = [simulate(scenario, seed) for seed in range(seeds)]
    assert sum(outcome.units_rerun for outcome in outcomes) > 10 * seeds
    assert sum(outcome.trials_failed for outcome in outcomes) == 0
    assert sum(outcome.units_lost for outcome in outcomes) == 0
    of_old = dataclasses.replace(scenario, max_kills=2)
    assert any(simulate(of_old, seed).trials_failed for seed in range(5))


class Deadly(SimulatedBackend):
    """Trials of some cost kill whoever trains them."""

    deaths = 0

    def _begin(self, seat: Any) -> None:
        if seat.queue[0].params["cost"] >= 600.0:
            self.deaths += 1
            self._at(self.now() + 0.1, lambda: self._fall(seat), seat)
        else:
            super()._begin(seat)


@pytest.mark.parametrize("hosts", [1, 8])
@pytest.mark.parametrize("deadly", [1, 8])
def test_trials_that_kill_their_workers_fail_soon_and_the_others_go_on(deadly: int, hosts: int) -> None:
    search = Recording([{"cost": 600.0}] * deadly + [{"cost": 1.0}] * (16 - deadly), 2)
    spec = [SimulatedWorker(f"w{i}", host=f"h{i % hosts}") for i in range(8)]
    backend = Deadly(spec, World(cost=lambda params: params["cost"], repair_seconds=5.0))
    settings = with_todays_rules(Settings(PARTITIONS, workers=8))
    Engine(search, settings, backend, DiscardingLog()).run()
    assert [report.failed for report in search.reports].count(True) == deadly
    assert [report.failed for report in search.reports].count(False) == 2 * (16 - deadly)
    assert backend.deaths <= 6 * deadly


def test_deaths_that_something_else_explains_do_not_tell_how_often_workers_die() -> None:
    deaths = Deaths()
    deaths.record_success([Kill("w0", "a", 1.0), Kill("w1", "b", 2.0, explained=True)])
    assert (deaths.units, deaths.innocent) == (1, 1)


def test_only_deaths_just_before_belong_to_the_failure_of_a_host() -> None:
    kill = Kill("w0", "a", 100.0)
    assert died_with_host(kill, "a", 105.0)
    assert not died_with_host(kill, "a", 200.0)
    assert not died_with_host(kill, "b", 105.0)
