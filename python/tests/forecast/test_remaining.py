"""Forecasts of runs in virtual time, cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cut_runs import KnownRun, settings_of, simulated_run
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.commands import Command
from cerebro_spark.errors import EventLogError
from cerebro_spark.events import CommandAnswered, CommandReceived, Event, RunUnit, UnitFinished, WorkerLost
from cerebro_spark.forecast.remaining import forecast
from cerebro_spark.search import FixedSearch


def fixed(costs: list[float], epochs: int = 3) -> Callable[[], FixedSearch]:
    return lambda: FixedSearch([{"cost": cost, "name": f"{cost}"} for cost in costs], epochs)


def workers(speeds: list[float]) -> list[SimulatedWorker]:
    return [SimulatedWorker(f"w{i}", speed) for i, speed in enumerate(speeds)]


def all_measured(run: KnownRun) -> int:
    """After how many turns every trial was trained and evaluated on every worker that will ever do so."""
    seen: dict[Any, int] = {}
    for number, turn in enumerate(run.turns, 1):
        for event in turn:
            if isinstance(event, UnitFinished):
                seen.setdefault((event.unit.trial, event.unit.kind, event.worker), number)
    return max(seen.values())


def turn_of(run: KnownRun, wanted: Callable[[Event], bool]) -> int:
    """The number of the first turn that has such an event, from 1 on."""
    return next(number for number, turn in enumerate(run.turns, 1) if any(map(wanted, turn)))


@settings(max_examples=drawn(20), deadline=None)
@given(
    costs=st.lists(st.floats(0.5, 8.0), min_size=2, max_size=5, unique=True),
    speeds=st.lists(st.sampled_from([1.0, 1.7, 0.6]), min_size=1, max_size=3),
    train=st.integers(3, 4),
    validation=st.integers(0, 2),
    queue_ahead=st.integers(0, 1),
    cut=st.floats(0.0, 1.0),
)
def test_a_deterministic_search_with_exact_times_ends_when_it_was_said_to(
    costs: list[float], speeds: list[float], train: int, validation: int, queue_ahead: int, cut: float
) -> None:
    made = settings_of(train, validation, len(speeds), queue_ahead=queue_ahead)
    run = simulated_run(fixed(costs, 2), made, workers(speeds), load_seconds=0.25)
    first = all_measured(run)
    turns = first + int(cut * (len(run.turns) - first))
    found = forecast(run.until(turns), run.search)
    assert found.exact
    assert found.done_at == pytest.approx(run.end, rel=1e-9)
    assert found.low == found.done_at == found.high


@settings(max_examples=drawn(25), deadline=None)
@given(
    trials=st.integers(1, 6),
    count=st.integers(1, 3),
    queue_ahead=st.integers(0, 1),
    validation=st.integers(0, 2),
    cut=st.floats(0.0, 1.0),
)
def test_trials_of_one_structure_need_not_all_be_measured(
    trials: int, count: int, queue_ahead: int, validation: int, cut: float
) -> None:
    made = settings_of(3, validation, count, queue_ahead=queue_ahead)
    search = lambda: FixedSearch([{"cost": 1.25, "lr": 0.1 * i} for i in range(trials)], 2)  # noqa: E731
    run = simulated_run(search, made, workers([1.0] * count))
    last = "eval" if validation else "train"
    first = turn_of(run, lambda event: isinstance(event, UnitFinished) and event.unit.kind == last)
    turns = first + int(cut * (len(run.turns) - first))
    found = forecast(run.until(turns), run.search)
    assert found.exact
    assert found.done_at == pytest.approx(run.end, rel=1e-9)


@settings(max_examples=drawn(25), deadline=None)
@given(cut=st.floats(0.0, 1.0), jitter=st.sampled_from([0.0, 0.3]), elapsed=st.floats(0.0, 9.0), fuse=st.integers(1, 3))
def test_whenever_it_is_asked_it_answers_a_time_to_come_or_why_not(
    cut: float, jitter: float, elapsed: float, fuse: int
) -> None:
    made = settings_of(2, 1, 2, queue_ahead=1, fuse=fuse)
    search = lambda: FixedSearch([{"cost": 1.0 + i % 2, "size": i % 2, "lr": 0.1 * i} for i in range(4)], 2)  # noqa: E731
    run = simulated_run(search, made, workers([1.0, 0.7]), jitter=jitter, failure_rate=0.02, repair_seconds=3.0)
    events = run.until(max(1, int(cut * len(run.turns))))
    now = events[-1].at + elapsed
    found = forecast(events, run.search, now, simulations=2)
    assert found.events == len(events)
    if found.done_at is None:
        assert found.reason
    elif len(events) < len(run.events):
        assert found.low is not None
        assert found.high is not None
        assert now <= found.low <= found.done_at <= found.high < float("inf")


def test_before_the_first_unit_nothing_is_known() -> None:
    run = simulated_run(fixed([1.0, 2.0]), settings_of(), workers([1.0, 1.0]))
    first = turn_of(run, lambda event: isinstance(event, UnitFinished))
    for turns in range(1, first):
        found = forecast(run.until(turns), run.search)
        assert (found.done_at, found.low, found.high) == (None, None, None)
        assert found.reason == "no unit has ended"
    assert forecast(run.until(first), run.search).known


def test_the_end_of_a_finished_run_is_its_end() -> None:
    run = simulated_run(fixed([1.0, 2.0]), settings_of(workers=1), workers([1.0]))
    found = forecast(run.events, run.search, now=run.end + 100.0)
    assert (found.low, found.done_at, found.high) == (run.end, run.end, run.end)


def test_without_a_worker_nothing_is_known() -> None:
    run = simulated_run(fixed([1.0, 2.0]), settings_of(workers=1), workers([1.0]))
    events = run.until_units(0.5)
    lost = [*events, WorkerLost(events[-1].at, "w0", "gone")]
    assert forecast(lost, run.search, now=events[-1].at + 60.0).reason == "no worker is left"


def test_a_lost_worker_is_expected_back_after_as_long_as_before() -> None:
    dies = SimulatedWorker("w1", deaths=((4.0, 7.0), (12.0, 15.0)))
    run = simulated_run(fixed([1.0, 1.5, 2.0]), settings_of(), [SimulatedWorker("w0"), dies])
    second = [n for n, turn in enumerate(run.turns, 1) if any(isinstance(event, WorkerLost) for event in turn)][1]
    found = forecast(run.until(second), run.search)
    assert found.done_at == pytest.approx(run.end)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.high, "workers die in this run, so later ones may die as well"


def test_a_worker_that_stays_away_is_not_waited_for() -> None:
    dies = SimulatedWorker("w1", deaths=((16.0, float("inf")),))
    run = simulated_run(fixed([1.0, 1.5, 2.0]), settings_of(), [SimulatedWorker("w0"), dies])
    after = turn_of(run, lambda event: isinstance(event, WorkerLost)) + 2
    assert forecast(run.until(after), run.search, simulations=2).done_at == pytest.approx(run.end)


def test_the_running_unit_counts_with_the_time_that_it_has_run() -> None:
    run = simulated_run(fixed([4.0], epochs=2), settings_of(2, 0, 1), workers([1.0]))
    events = run.until(turn_of(run, lambda event: isinstance(event, UnitFinished)))
    assert forecast(events, run.search, now=events[-1].at + 3.0).done_at == pytest.approx(run.end)
    overdue = forecast(events, run.search, now=events[-1].at + 8.0).done_at
    assert overdue is not None
    assert overdue > run.end + 4.0, "what lasts longer than ever is not over now"


class SlowStart(SimulatedBackend):
    """The first unit of every worker takes nine seconds longer."""

    def _schedule(self, order: RunUnit, state: Any) -> Any:
        known = self.__dict__.setdefault("_known", set())
        longer = 0.0 if state.spec.id in known else 9.0
        known.add(state.spec.id)
        return [
            (member, at + longer, own + longer, width) for member, at, own, width in super()._schedule(order, state)
        ]


def test_the_first_unit_of_a_process_says_little_about_the_others() -> None:
    run = simulated_run(fixed([2.0, 2.5]), settings_of(2, 1, 2), workers([1.0, 1.0]), SlowStart)
    assert forecast(run.until_units(0.5), run.search).done_at == pytest.approx(run.end)


def test_stopping_a_trial_ends_the_run_as_if_it_had_been_stopped() -> None:
    run = simulated_run(fixed([1.0, 1.5, 6.0]), settings_of(3, 1, 1), workers([1.0]))
    events = run.until_units(0.4)
    found = forecast(events, run.search, questions=[Command("stop_trial", trial="t2")])
    stopped = forecast([*events, CommandReceived(events[-1].at, Command("stop_trial", trial="t2"))], run.search)
    answer = found.what_if["stop_trial t2"]
    assert found.done_at == pytest.approx(run.end)
    assert answer.done_at == pytest.approx(stopped.done_at)
    assert answer.done_at is not None
    assert answer.done_at < run.end - 5.0
    assert not answer.what_if


def test_a_worker_more_or_less_changes_the_end() -> None:
    run = simulated_run(fixed([1.0, 1.5, 2.0, 2.5]), settings_of(6, 0, 2), workers([1.0, 1.0]))
    asked = [Command("add_workers", workers=1), Command("remove_worker", worker="w1")]
    found = forecast(run.until_units(0.3), run.search, questions=asked)
    more, fewer = found.what_if["add_workers 1"].done_at, found.what_if["remove_worker w1"].done_at
    assert more is not None
    assert fewer is not None
    assert found.done_at is not None
    assert more < found.done_at < fewer


def test_a_paused_run_ends_when_it_is_let_go_on_and_not_before() -> None:
    run = simulated_run(fixed([1.0, 1.5]), settings_of(3, 1, 1, queue_ahead=1), workers([1.0]))
    events = run.until_units(0.4)
    command = Command("pause")
    at = events[-1].at
    paused = [
        *events,
        CommandReceived(at, command),
        CommandAnswered(at, command.id, True, "running units end, and nothing new begins"),
    ]
    found = forecast(paused, run.search)
    assert found.done_at is None
    assert found.reason == "the run is paused"
    assert found.what_if["unpause"].done_at == pytest.approx(run.end)


def test_a_run_that_was_paused_and_then_ended_is_about_to_end() -> None:
    run = simulated_run(fixed([1.0, 1.5]), settings_of(3, 1, 1), workers([1.0]))
    events = run.until_units(0.4)
    at = events[-1].at
    said = {"pause": "running units end, and nothing new begins", "end": "running units end, then the run is over"}
    for verb, words in said.items():
        command = Command(verb)  # type: ignore[arg-type]
        events += [CommandReceived(at, command), CommandAnswered(at, command.id, True, words)]
    found = forecast(events, run.search)
    assert found.reason == ""
    assert found.done_at is not None
    assert at <= found.done_at <= at + 1.5, "one unit is under way"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Command("stop_trial", trial="nobody"), "there is no trial 'nobody'"),
        (Command("unpause"), "the run is not paused"),
        (Command("remove_worker", worker="w0"), "is the last one"),
        (Command("pause"), "would stand still"),
        (Command("kill"), "was killed"),
    ],
)
def test_a_command_that_has_no_end_has_a_reason(command: Command, reason: str) -> None:
    run = simulated_run(fixed([1.0, 1.5]), settings_of(3, 1, 1), workers([1.0]))
    found = forecast(run.until_units(0.4), run.search, questions=[command])
    (answer,) = found.what_if.values()
    assert answer.done_at is None
    assert reason in answer.reason
    assert found.done_at == pytest.approx(run.end)


def test_a_clone_and_a_trial_that_goes_on_take_longer_and_an_end_is_soon() -> None:
    run = simulated_run(fixed([1.0, 1.5]), settings_of(3, 1, 1), workers([1.0]))
    asked = [Command("clone", trial="t1"), Command("resume_trial", trial="t1", epochs=2), Command("end")]
    found = forecast(run.until_units(0.5), run.search, questions=asked)
    clone, on, end = (found.what_if[label].done_at for label in ("clone t1", "resume_trial t1, 2 epochs", "end"))
    assert clone is not None
    assert on is not None
    assert end is not None
    assert found.made_at <= end <= found.made_at + 1.5
    assert run.end < min(clone, on)


def test_another_search_than_that_of_the_run_is_noticed() -> None:
    run = simulated_run(fixed([1.0, 2.0]), settings_of(workers=1), workers([1.0]))
    with pytest.raises(EventLogError, match="the search now says"):
        forecast(run.until_units(0.5), fixed([1.0, 3.0]))
    with pytest.raises(EventLogError, match="does not begin with the start of a run"):
        forecast([], run.search)
