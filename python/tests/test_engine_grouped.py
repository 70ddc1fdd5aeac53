"""The engine with trials that several workers train: members die, groups give up, drivers die, replays come out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_runs import SETTINGS, Recording, watch, workers
from snapshots import snapshot

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command, Verb
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError, ReplayDiverged
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    CommandAnswered,
    CostEstimated,
    Event,
    FailRun,
    GatheringEnded,
    GroupGaveUp,
    RunStarted,
    RunUnit,
    Settings,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.outcomes import view_of
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn
from cerebro_spark.types import Partition

PARTITIONS = (*(Partition(f"p{i}", rows=10) for i in range(4)), Partition("v0", "validation"))
AUTO = replace(SETTINGS, partitions=PARTITIONS, workers=4, group=4, group_auto=True, queue_ahead=1)
FIXED = replace(AUTO, group=2, group_auto=False)
TRIALS = [{"cost": 1.0 + n / 10, "kind": n % 2} for n in range(2)]
WORLD = World(cost=lambda params: params["cost"], jitter=0.1, efficiency=lambda params, size: 0.9)
UNITS = len(TRIALS) * 3 * len(PARTITIONS)


def engine(store: LocalStore, backend: SimulatedBackend, settings: Settings = AUTO) -> Engine:
    made = Engine(Recording(TRIALS, 3), settings, backend, EventLog(store, "log"), "log")
    watch(made, settings)
    return made


def logged(store: LocalStore) -> list[Event]:
    return list(EventLog(store, "log").read())


def done(events: list[Event]) -> Counter[tuple[str, int, str]]:
    """How often each partition was trained or measured."""
    units = [event.unit for event in events if isinstance(event, UnitFinished)]
    return Counter((unit.trial, unit.epoch, partition) for unit in units for partition in unit.partitions)


def sizes(events: list[Event]) -> list[int]:
    return [len(e.workers) for e in events if isinstance(e, UnitFinished) and e.unit.kind == "train"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    store = LocalStore(tmp_path_factory.mktemp("whole"))
    engine(store, SimulatedBackend(workers(4), WORLD)).run()
    return logged(store)


def test_trials_are_trained_by_groups_once_they_are_fewer_than_workers(whole: list[Event]) -> None:
    assert sizes(whole)[:2] == [1, 1], "what a unit takes one worker is measured first"
    assert max(sizes(whole)) > 1
    assert set(done(whole).values()) == {1}
    assert len(done(whole)) == UNITS


def test_a_fixed_size_is_the_size_of_all_units(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    engine(store, SimulatedBackend(workers(4), WORLD), FIXED).run()
    assert set(sizes(logged(store))) == {2}
    assert set(done(logged(store)).values()) == {1}


@pytest.mark.parametrize("settings", [AUTO, FIXED], ids=["auto", "fixed"])
@pytest.mark.parametrize("seed", range(6))
def test_deaths_of_members_lose_and_double_nothing(tmp_path: Path, seed: int, settings: Settings) -> None:
    rng = random.Random(seed)
    world = replace(WORLD, failure_rate=0.1, repair_seconds=4.0, late_results=True, load_seconds=0.5)
    spec = [
        SimulatedWorker(f"w{i}", speed=rng.uniform(0.8, 1.25), joins_at=rng.uniform(0, 3), deaths=((9.0, 20.0 + i),))
        for i in range(4)
    ]
    made = Engine(
        Recording(TRIALS, 3), settings, SimulatedBackend(spec, world, seed), EventLog(LocalStore(tmp_path), "l")
    )
    auditor = watch(made, settings)
    made.run()
    auditor.complete({f"t{number}": 3 for number in range(len(TRIALS))})
    assert made.scheduler.units_given_up > 0
    assert max(auditor.groups) > 1


def test_cut_at_any_event_it_resumes_and_no_finished_unit_runs_again(whole: list[Event], tmp_path: Path) -> None:
    for cut in range(1, len(whole) + 1, 7):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(Turn(whole[:cut]))
        started = whole[0]
        assert isinstance(started, RunStarted)
        resumed = engine(store, SimulatedBackend(workers(3), WORLD, seed=cut), started.settings)
        resumed.resume()
        assert set(done(logged(store)).values()) == {1}
        assert len(done(logged(store))) == UNITS


def test_the_log_rebuilds_the_scheduler_exactly(whole: list[Event]) -> None:
    one, two = MopScheduler(AUTO), MopScheduler(AUTO)
    for event in whole:
        one.handle(event)
    for event in whole:
        two.check_logged(event)
        two.handle(event)
    assert one.finished
    assert snapshot(one) == snapshot(two)


def replayed(script: RunScript, folder: Path, count: int, world: World = WORLD, seed: int = 7) -> list[Event]:
    checker, store = ReplayChecker(script), LocalStore(folder)
    settings = script.settings_like(replace(AUTO, workers=count, max_failures=99))
    backend = SimulatedBackend(workers(count), world, seed)
    again = Engine(ReplaySearch(script), settings, backend, EventLog(store, "log"), "log", [checker])
    watch(again, settings)
    again.run()
    checker.finish()
    events = logged(store)
    assert RunScript.from_events(events).digests == script.digests
    return events


@pytest.mark.parametrize("count", [4, 5])
def test_a_replay_forms_the_same_groups_in_the_same_order_of_ranks(
    whole: list[Event], tmp_path: Path, count: int
) -> None:
    again = replayed(RunScript.from_events(whole), tmp_path, count)
    assert sorted(sizes(again)) == sorted(sizes(whole))


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abba"])
def test_a_replay_has_partitions_loaded_where_one_worker_holds_what_several_trained_on(
    tmp_path: Path, hosts: str
) -> None:
    """With fewer workers than there were, the partitions of a group, which is on one host, may be at one worker."""
    store = LocalStore(tmp_path / "first")
    spec = [SimulatedWorker(f"w{number}", host=host) for number, host in enumerate(hosts)]
    engine(store, SimulatedBackend(spec, WORLD), FIXED).run()
    script = RunScript.from_events(logged(store))
    assert set(sizes(replayed(script, tmp_path / "again", 2))) == {2}


@pytest.mark.parametrize("verb", ["stop_trial", "resume_trial", "clone", "end"])
def test_a_replay_cannot_be_made_another_run(whole: list[Event], tmp_path: Path, verb: Verb) -> None:
    script = RunScript.from_events(whole)
    settings, log = script.settings_like(AUTO), EventLog(LocalStore(tmp_path), "log")
    said = Command(verb, id="c1", trial="" if verb == "end" else "t0")
    checker = ReplayChecker(script)
    again = Engine(
        ReplaySearch(script), settings, SimulatedBackend(workers(4), WORLD, 0, [(1.0, said)]), log, "log", [checker]
    )
    watch(again, settings)
    again.run()
    checker.finish()
    (answer,) = [event for event in log.read() if isinstance(event, CommandAnswered)]
    assert not answer.done
    assert answer.reason == f"this run repeats another one, as it was, so {verb} is not for it: pause it, or kill it"


@pytest.mark.parametrize("seed", range(4))
def test_deaths_lose_nothing_of_a_replay_with_groups(whole: list[Event], tmp_path: Path, seed: int) -> None:
    world = replace(WORLD, failure_rate=0.1, repair_seconds=4.0, late_results=True, load_seconds=0.5)
    events = replayed(RunScript.from_events(whole), tmp_path, 4, world, seed)
    assert any(isinstance(event, WorkerLost) for event in events)


def test_a_replay_with_fewer_workers_than_a_group_had_is_refused(whole: list[Event]) -> None:
    script = RunScript.from_events(whole)
    largest = max(sizes(whole))
    with pytest.raises(
        ConfigurationError, match=rf"{largest} workers trained together.*at least {largest} workers, not 1"
    ):
        script.settings_like(replace(AUTO, workers=1))


@pytest.mark.parametrize("missing", [0, 1])
def test_a_replay_to_which_too_few_workers_come_ends_and_says_so(whole: list[Event], missing: int) -> None:
    largest = max(sizes(whole))
    scheduler = MopScheduler(RunScript.from_events(whole).settings_like(replace(AUTO, workers=largest)))
    for number in range(largest - missing):
        scheduler.handle(WorkerJoined(0.0, f"w{number}", host="h"))
    actions = scheduler.handle(GatheringEnded(1.0))
    reasons = [action.reason for action in actions if isinstance(action, FailRun)]
    expected = f"it repeats one in which {largest} workers trained a unit together, and only {largest - 1} have come"
    assert reasons == [expected] * missing


class Unfit(SimulatedBackend):
    """Members find that no group can train the trial, or, if `lasting` is False, that they cannot reach each other."""

    lasting = True

    def _refuse_group(self, order: RunUnit) -> str | None:
        return "its loss is a sum"

    def _give_up(self, *given: Any) -> list[Event]:
        events = super()._give_up(*given)
        return [replace(event, lasting=self.lasting) if isinstance(event, GroupGaveUp) else event for event in events]


@pytest.mark.parametrize("lasting", [True, False])
def test_a_replay_whose_groups_never_train_a_unit_ends_and_says_why(
    whole: list[Event], tmp_path: Path, lasting: bool
) -> None:
    script = RunScript.from_events(whole)
    settings, log = script.settings_like(replace(AUTO, workers=4)), EventLog(LocalStore(tmp_path), "log")
    backend = Unfit(workers(4), WORLD)
    backend.lasting = lasting
    again = Engine(ReplaySearch(script), settings, backend, log, "log")
    watch(again, settings)
    how = "" if lasting else ", after 10 groups that trained nothing"
    with pytest.raises(
        ReplayDiverged,
        match=rf"it did not fail. This time: \d workers trained unit t.* together in the run that is repeated, and now"
        f" cannot{how}: its loss is a sum",
    ):
        again.run()


def test_a_worker_that_a_group_of_a_replay_needs_cannot_be_let_go(whole: list[Event], tmp_path: Path) -> None:
    script, largest = RunScript.from_events(whole), max(sizes(whole))
    settings = script.settings_like(replace(AUTO, workers=largest))
    log = EventLog(LocalStore(tmp_path), "log")
    remove = Command("remove_worker", id="c1", worker="w0")
    backend = SimulatedBackend(workers(largest), WORLD, 0, [(1.0, remove)])
    again = Engine(ReplaySearch(script), settings, backend, log, "log", [ReplayChecker(script)])
    watch(again, settings)
    again.run()
    (answer,) = [event for event in log.read() if isinstance(event, CommandAnswered)]
    assert not answer.done
    assert f"{largest} workers trained a unit together, and without w0 there are {largest - 1}" in answer.reason


SAID = [
    Command("stop_trial", trial="t0"),
    Command("resume_trial", trial="t0", epochs=1),
    Command("clone", trial="t1", epochs=1),
    Command("pause"),
    Command("unpause"),
    Command("remove_worker", worker="w1"),
    Command("add_workers", workers=1),
]


@pytest.mark.parametrize("settings", [AUTO, FIXED], ids=["auto", "fixed"])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_people_say_while_groups_train_nothing_is_lost_or_doubled(
    tmp_path: Path, seed: int, settings: Settings
) -> None:
    rng = random.Random(seed)
    chosen = [replace(command, id=f"c{number}") for number, command in enumerate(rng.sample(SAID, 5))]
    times = sorted(rng.uniform(0.5, 9.0) for _ in chosen)
    commands = [*zip(times, chosen, strict=True), (40.0, Command("unpause", id="last"))]
    world = replace(WORLD, failure_rate=0.03 * (seed % 2), repair_seconds=1.0, late_results=True, load_seconds=0.2)
    log = EventLog(LocalStore(tmp_path), "log")
    backend = SimulatedBackend(workers(4), world, seed, commands, 100.0)
    made = Engine(Recording(TRIALS, 3), replace(settings, keep_last=True), backend, log, "log")
    auditor = watch(made, made.scheduler.settings)
    made.run()
    events = list(log.read())
    assert max(auditor.groups) > 1
    assert sum(isinstance(event, CommandAnswered) for event in events) >= len(chosen)
    view = view_of([Turn(events)])
    assert view.finished
    assert all(not worker.queue for worker in view.workers.values())
    assert view.counts().units == view.counts().all_units


@pytest.mark.parametrize("off", [0.7, 1.0, 1.5])
def test_where_batches_were_timed_the_first_unit_has_a_group(tmp_path: Path, off: float) -> None:
    store, timed = LocalStore(tmp_path), replace(WORLD, estimate=lambda params: off * params["cost"])
    one = Engine(Recording(TRIALS[:1], 2), AUTO, SimulatedBackend(workers(4), timed), EventLog(store, "log"), "log")
    watch(one, AUTO)
    one.run()
    events = logged(store)
    assert [(event.trial, event.seconds) for event in events if isinstance(event, CostEstimated)] == [("t0", off)]
    assert sizes(events) == [4, 4]
    assert set(done(events).values()) == {1}
    script = RunScript.from_events(events)
    again, backend = LocalStore(tmp_path / "again"), SimulatedBackend(workers(4), WORLD)
    log, checker = EventLog(again, "log"), ReplayChecker(script)
    replay = Engine(ReplaySearch(script), script.settings_like(AUTO), backend, log, "log", [checker])
    replay.run()
    assert sizes(logged(again)) == [4, 4]


@pytest.mark.parametrize("off", [0.1, 0.5, 1.0, 2.0, 10.0])
def test_no_estimate_makes_a_group_last_that_does_not_pay(tmp_path: Path, off: float) -> None:
    store = LocalStore(tmp_path)
    slow = replace(WORLD, estimate=lambda params: off * params["cost"], efficiency=lambda params, size: 0.15)
    engine(store, SimulatedBackend(workers(4), slow)).run()
    events = logged(store)
    assert set(done(events).values()) == {1}
    assert sizes(events)[-1] == 1


def trained_apart(folder: Path, hosts: str, settings: Settings, seed: int = 0, **world: object) -> list[set[str]]:
    """Return the hosts of the workers of each training unit, in a run on these hosts."""
    spec = [SimulatedWorker(f"w{number}", host=host) for number, host in enumerate(hosts)]
    store = LocalStore(folder)
    engine(store, SimulatedBackend(spec, replace(WORLD, **world), seed), settings).run()  # type: ignore[arg-type]
    events = logged(store)
    assert set(done(events).values()) == {1}
    assert len(done(events)) == UNITS
    units = [each for each in events if isinstance(each, UnitFinished) and each.unit.kind == "train"]
    return [{hosts[int(worker[1:])] for worker in each.workers} for each in units for _ in each.workers[1:]]


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aaab", "aaaa", "abbb"])
def test_groups_of_one_host_alone(tmp_path: Path, hosts: str) -> None:
    groups = trained_apart(tmp_path / "one", hosts, replace(FIXED, group_on_host=True))
    assert groups
    assert all(len(there) == 1 for there in groups)
    anywhere = trained_apart(tmp_path / "any", hosts, FIXED)
    assert any(len(there) > 1 for there in anywhere) == (hosts in ("aaab", "abbb"))


def test_on_hosts_with_too_few_workers_units_have_fewer(tmp_path: Path) -> None:
    assert trained_apart(tmp_path / "one", "abcd", replace(FIXED, group_on_host=True)) == []
    three = trained_apart(tmp_path / "three", "aabb", replace(FIXED, group=3, group_on_host=True))
    assert three
    assert all(len(there) == 1 for there in three)


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_one_host_where_workers_die(tmp_path: Path, seed: int) -> None:
    settings = replace(FIXED, group_on_host=True, max_failures=99)
    groups = trained_apart(tmp_path, "aabb", settings, seed, failure_rate=0.1, repair_seconds=4.0, load_seconds=0.5)
    assert all(len(there) == 1 for there in groups)
