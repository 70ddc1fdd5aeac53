"""Replay: whatever happened in a run, its log makes every trial come to the same weights again."""

from __future__ import annotations

import os
import pickle
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from wild_runs import ListedLog, Trouble, WildBackend, WildSearch

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.codec import decode, encode
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError, EventLogError, ReplayDiverged, RunStalled, SchedulingError
from cerebro_spark.events import (
    Action,
    Event,
    RunStarted,
    Settings,
    TrialScript,
    TrialStopped,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import FixedSearch, Search
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Objective, Partition, Report, Work

EXAMPLES = int(os.environ.get("CEREBRO_REPLAY_EXAMPLES", "150"))
TRAIN = tuple(Partition(f"p{i}", rows=10 + i) for i in range(3))
SETTINGS = Settings((*TRAIN, Partition("v0", "validation"), Partition("v1", "validation")), workers=2)


def audited(engine: Engine) -> Engine:
    """Have the books checked after every event."""
    handle = engine.scheduler.handle

    def checked(event: Event) -> list[Action]:
        actions = handle(event)
        engine.scheduler.check_invariants()
        return actions

    engine.scheduler.handle = checked  # type: ignore[method-assign]
    return engine


def run(search: Search, settings: Settings, backend: SimulatedBackend, *observers: Any) -> tuple[Engine, list[Event]]:
    log = ListedLog()
    engine = audited(Engine(search, settings, backend, log, "r1", observers))
    engine.run()
    return engine, log.events


def wild_run(seed: int, settings: Settings, trials: int, most: int, trouble: Trouble) -> list[Event]:
    """The log of a run. Where a trial was stopped, the search may wait for it in vain: such a run has no end."""
    stopped: set[str] = set()
    log = ListedLog()
    backend = WildBackend(settings.workers, trouble, seed, stopped)
    engine = audited(Engine(WildSearch(seed, trials, most, stopped), settings, backend, log, "r1"))
    with suppress(RunStalled) if trouble.stops else nullcontext():
        engine.run()
    return log.events


def replay(script: RunScript, settings: Settings, seed: int, trouble: Trouble) -> tuple[Engine, list[Event]]:
    checker = ReplayChecker(script)
    backend = WildBackend(settings.workers, trouble, seed, set())
    engine, events = run(ReplaySearch(script), script.settings_like(settings), backend, checker)
    checker.finish()
    assert events == [decode(encode(event)) for event in events], "the script survives its way through the log"
    return engine, events


def best(events: list[Event]) -> dict[str, Any]:
    """What a run leaves: the best epoch of each trial, its weights, and how the trial ended."""
    assert isinstance(events[0], RunStarted)
    scheduler = MopScheduler(events[0].settings)
    for event in events:
        scheduler.handle(event)
    return {
        trial.id: (trial.best and (trial.best.epoch, trial.best.digest), repr(trial.best_value), trial.error)
        for trial in scheduler.state.trials.values()
    }


@pytest.mark.slow
@examples(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    train=st.integers(1, 4),
    validation=st.integers(0, 3),
    workers=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    ahead=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    replicas=st.integers(1, 2),
    policy=st.sampled_from(["hopper", "random", "longest-first"]),
    trials=st.integers(1, 9),
    most=st.integers(0, 14),
    deaths=st.tuples(st.sampled_from([0.0, 0.1, 0.3]), st.sampled_from([0.0, 0.1, 0.3])),
    kills=st.sampled_from([2, 99]),
    faults=st.sampled_from([0.0, 0.02, 0.1]),
    stops=st.sampled_from([0.0, 0.02]),
    serial=st.booleans(),
    fuse=st.tuples(st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 8])),
    gain=st.sampled_from([1.0, 4.0]),
    group=st.tuples(st.sampled_from([1, 1, 2, 3]), st.booleans()),
    part=st.sampled_from([1.0, 1.0, 0.3, 0.6, 0.9]),
)
def test_every_run_can_be_replayed(
    seed: int,
    train: int,
    validation: int,
    workers: tuple[int, int],
    ahead: tuple[int, int],
    replicas: int,
    policy: str,
    trials: int,
    most: int,
    deaths: tuple[float, float],
    kills: int,
    faults: float,
    stops: float,
    serial: bool,
    fuse: tuple[int, int],
    gain: float,
    group: tuple[int, bool],
    part: float,
) -> None:
    parts = [Partition(f"p{i}") for i in range(train)]
    parts += [Partition(f"v{i}", "validation") for i in range(validation)]
    first = Settings(
        tuple(parts),
        workers[0],
        replicas=replicas,
        policy=policy,
        queue_ahead=ahead[0],
        max_kills=kills,
        serial_evaluation=serial,
        objective=Objective("loss", "min"),
        fuse=fuse[0],
        fuse_evaluations=True,
        group=group[0],
        group_auto=group[1],
    )
    trouble = Trouble(deaths[0], worker_faults=faults, trial_faults=faults, stops=stops, gain=gain)
    events = wild_run(seed, first, trials, most, trouble)
    events = events[: max(1, int(len(events) * part))]
    script = RunScript.from_events(events)
    largest = max((size for trial in script.trials for size in trial.groups), default=1)
    second = replace(first, workers=max(workers[1], largest), queue_ahead=ahead[1], fuse=fuse[1])
    second = replace(second, max_kills=99, max_failures=99)
    again, repeated = replay(script, second, seed + 1, Trouble(deaths[1], worker_faults=faults, gain=gain))
    twin = RunScript.from_events(repeated)
    assert twin.trials == script.trials, "the same visits, under the same Works"
    assert twin.digests == script.digests
    assert {u: (e.metrics, e.values) for u, e in twin.measured.items()} == {
        u: (e.metrics, e.values) for u, e in script.measured.items()
    }
    assert {(r.trial, r.epoch): r.metrics for r in twin.reports} == {
        (r.trial, r.epoch): r.metrics for r in script.reports
    }
    assert best(repeated) == best(events)
    kept = again.scheduler.state.retention.kept()
    assert set(kept) == {t.best for t in again.scheduler.state.trials.values() if t.best}, "nothing is kept too long"


def small_run(search: Search | None = None, workers: int = 2, threads: int = 1) -> list[Event]:
    backend = WildBackend(workers, Trouble(deaths=0.1, threads=threads), 3, set())
    settings = replace(SETTINGS, workers=workers, max_kills=99)
    return run(search or FixedSearch([{"cost": 1.0}, {"cost": 2.0}, {"cost": 1.5}], 2), settings, backend)[1]


def test_a_replay_on_more_workers_repeats_every_unit_and_nothing_else() -> None:
    events = small_run()
    script = RunScript.from_events(events)
    assert {course.trial: len(course.visits) for course in script.trials} == {"t0": 6, "t1": 6, "t2": 6}
    _, repeated = replay(script, replace(SETTINGS, workers=5), 8, Trouble())
    assert RunScript.from_events(repeated).digests == script.digests
    assert sum(isinstance(e, UnitFinished) and e.unit.kind == "train" for e in repeated) == 18
    assert best(repeated) == best(events)


def test_a_replay_can_be_replayed() -> None:
    first = RunScript.from_events(wild_run(12, replace(SETTINGS, max_kills=99), 4, 12, Trouble(0.2)))
    assert any(work.warm_start for work, _ in first.works)
    assert any(course.rebased for course in first.trials)
    _, second = replay(first, replace(SETTINGS, workers=3, max_kills=99), 1, Trouble(0.2))
    _, third = replay(RunScript.from_events(second), replace(SETTINGS, workers=1, max_kills=99), 2, Trouble())
    assert RunScript.from_events(third).digests == first.digests


def test_a_replay_whose_driver_died_goes_on() -> None:
    script = RunScript.from_events(wild_run(12, replace(SETTINGS, max_kills=99), 4, 12, Trouble(0.2)))
    settings = script.settings_like(replace(SETTINGS, workers=3, max_kills=99))
    search = pickle.dumps(ReplaySearch(script))
    _, whole = run(pickle.loads(search), settings, WildBackend(3, Trouble(), 5, set()))
    for cut in range(1, len(whole), 17):
        log = ListedLog()
        log.append(Turn(whole[:cut]))
        checker = ReplayChecker(script)
        checker(Turn(whole[:cut]))
        backend = WildBackend(2, Trouble(), 6, set())
        audited(Engine(pickle.loads(search), settings, backend, log, "r1", [checker])).resume()
        checker.finish()


def test_the_search_of_a_replay_can_begin_anew_at_any_time() -> None:
    script = RunScript.from_events(wild_run(12, replace(SETTINGS, max_kills=99), 4, 12, Trouble()))

    class Forgetful(ReplaySearch):
        """Begins anew before every question, from the reports that it was told."""

        told: ClassVar[list[Report]] = []

        def ask(self) -> Any:
            asked = self._asked
            self.__init__(script)  # type: ignore[misc]
            for report in self.told:
                super().tell(report)
            for _ in range(asked):
                super().ask()
            return super().ask()

        def tell(self, report: Report) -> None:
            self.told.append(report)
            super().tell(report)

    checker = ReplayChecker(script)
    run(Forgetful(script), script.settings_like(SETTINGS), WildBackend(2, Trouble(), 5, set()), checker)
    checker.finish()


def test_other_weights_end_the_replay_and_close_the_backend() -> None:
    script = RunScript.from_events(small_run())
    unit = next(iter(script.digests))
    wrong = replace(script, digests={**script.digests, unit: "deadbeef"})
    backend = WildBackend(2, Trouble(), 3, set())
    words = rf"trial {unit.trial} .*epoch {unit.epoch}, partition {unit.partition},.*not deadbeef.*threads"
    with pytest.raises(ReplayDiverged, match=words):
        run(ReplaySearch(wrong), wrong.settings_like(SETTINGS), backend, ReplayChecker(wrong))
    assert backend.closed


def test_other_values_end_the_replay() -> None:
    script = RunScript.from_events(small_run())
    unit, event = next(iter(script.measured.items()))
    wrong = replace(script, measured={**script.measured, unit: replace(event, metrics=replace(event.metrics, sums={}))})
    with pytest.raises(ReplayDiverged, match=f"same weights .* evaluates differently on partition {unit.partition}"):
        run(
            ReplaySearch(wrong),
            wrong.settings_like(SETTINGS),
            WildBackend(2, Trouble(), 3, set()),
            ReplayChecker(wrong),
        )


def test_a_unit_that_was_not_repeated_is_missed() -> None:
    script = RunScript.from_events(small_run())
    with pytest.raises(ReplayDiverged, match="30 units of run r1 were not repeated, the first of them t"):
        ReplayChecker(script).finish()


def test_a_trial_that_fails_only_in_the_replay_ends_it() -> None:
    script = RunScript.from_events(small_run())
    with pytest.raises(ReplayDiverged, match=r"trial t\d failed in epoch 1, but in run r1 it did not fail.*boom"):
        replay(script, SETTINGS, 1, Trouble(trial_faults=0.5))


def test_a_trial_that_failed_ends_with_its_error_after_the_units_that_counted() -> None:
    events = wild_run(33, SETTINGS, 5, 0, Trouble(trial_faults=0.08))
    script = RunScript.from_events(events)
    failed = [course for course in script.trials if course.error is not None]
    assert failed
    assert {len(course.reports) for course in failed} == {0, 1, 2}
    _, repeated = replay(script, replace(SETTINGS, workers=4), 1, Trouble())
    assert best(repeated) == best(events)


def test_what_happens_to_a_replay_must_be_what_happened() -> None:
    checker = ReplayChecker(RunScript.from_events(small_run(threads=2)))
    checker(Turn([WorkerJoined(0.0, "w0", threads=2)]))
    with pytest.raises(ReplayDiverged, match="w1 computes with 4 threads, run r1 did with 2"):
        checker(Turn([WorkerJoined(0.0, "w1", threads=4)]))
    with pytest.raises(ReplayDiverged, match="t0 was stopped by hand"):
        checker(Turn([TrialStopped(0.0, "t0")]))


def test_a_run_whose_workers_had_other_threads_cannot_be_replayed() -> None:
    events = small_run()
    with pytest.raises(ConfigurationError, match=r"had \[1, 3\] threads"):
        RunScript.from_events([*events, WorkerJoined(9.0, "w7", threads=3)])


def test_a_log_without_digests_or_without_a_start_cannot_be_replayed() -> None:
    bare = [without_digest(event) for event in small_run()]
    with pytest.raises(ConfigurationError, match="its log has no digest of what t"):
        RunScript.from_events(bare)
    with pytest.raises(EventLogError, match="nothing to replay"):
        RunScript.from_events([])


def without_digest(event: Event) -> Event:
    if isinstance(event, UnitFinished) and event.checkpoint is not None:
        return replace(event, checkpoint=event.checkpoint._replace(digest=""))
    return event


def test_a_replay_needs_the_partitions_of_its_run() -> None:
    script = RunScript.from_events(small_run())
    with pytest.raises(ConfigurationError, match="5 partitions that are not the 3 given"):
        script.settings_like(Settings(TRAIN, 2))


def test_a_start_from_the_middle_of_an_epoch_cannot_be_replayed() -> None:
    events = small_run()
    trained = ((i, e.checkpoint) for i, e in enumerate(events) if isinstance(e, UnitFinished))
    middle, left = next((i, checkpoint) for i, checkpoint in trained if checkpoint is not None)
    clone = WorkAdded(events[middle].at, Work("t9", {"cost": 1.0}, 1, left))
    with pytest.raises(ConfigurationError, match=f"t9 started from {left.name}, which is not the end of an epoch"):
        RunScript.from_events([*events[: middle + 1], clone])


def test_the_scheduler_holds_to_its_script() -> None:
    course = TrialScript("t0", visits=("p0",), turns=(0,), stopped=True)
    scheduler = MopScheduler(Settings(TRAIN, 1, policy="random", script=(course,)))
    scheduler.handle(WorkAdded(0.0, Work("t0", {}, 1)))
    with pytest.raises(SchedulingError, match="t0 was asked for until epoch 2, but its script has 1 Works"):
        scheduler.handle(WorkAdded(0.0, Work("t0", {}, 2)))
    with pytest.raises(SchedulingError, match="trial t1 is not in the script"):
        scheduler.handle(WorkAdded(0.0, Work("t1", {}, 1)))
    with pytest.raises(SchedulingError, match="not kept"):
        scheduler.handle(WorkAdded(0.0, Work("t0", {}, 1, Checkpoint("t7", 1, 1, 4))))
    with pytest.raises(ConfigurationError, match=r"'hopper', whose plans a script would break: use one of longest"):
        MopScheduler(Settings(TRAIN, 1, script=(course,)))


def test_a_simulated_digest_stands_for_all_that_weights_depend_on() -> None:
    """Two trials with one seed differ, a trial that came another way differs; who did the work makes no difference."""
    world = World(cost=lambda params: 1.0)

    def digests(workers: int) -> dict[Any, str]:
        settings = Settings(TRAIN[:1], workers)
        backend = SimulatedBackend([SimulatedWorker(f"w{i}") for i in range(workers)], world)
        return dict(RunScript.from_events(run(FixedSearch([{"lr": 1}, {"lr": 2}], 2), settings, backend)[1]).digests)

    assert digests(1) == digests(2)
    assert len(set(digests(1).values())) == 4


def test_a_replay_keeps_the_best_checkpoints_alone_and_ends_its_trials_as_they_ended() -> None:
    starts = stops = 0
    for seed in range(12):
        trouble = Trouble(stops=0.03)
        script = RunScript.from_events(wild_run(seed, SETTINGS, 4, 14, trouble))
        starts += sum(asked.work.warm_start is not None for asked in script.works)
        engine, _ = replay(script, SETTINGS, seed, Trouble())
        trials = engine.scheduler.state.trials
        kept = engine.scheduler.state.retention.kept()
        assert set(kept) == {trial.best for trial in trials.values() if trial.best is not None}
        halted = [course.trial for course in script.trials if course.stopped]
        assert {trials[name].status for name in halted} <= {"stopped"}
        stops += len(halted)
    assert min(starts, stops) > 0
