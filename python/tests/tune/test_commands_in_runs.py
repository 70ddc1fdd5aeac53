"""Whatever people tell a run, and whenever: no search waits in vain, no unit is lost, every log can be gone on with."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from commanded_runs import SEARCHES, Cluster, CommandedRun, Told, play, replayed, searching, settings, told
from fast_tier import drawn
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cerebro_spark.codec import decode, encode
from cerebro_spark.commands import Command
from cerebro_spark.events import CommandAnswered, CommandReceived, Event, UnitFinished, WorkAdded, WorkCommanded
from cerebro_spark.outcomes import view_of
from cerebro_spark.search import Search
from cerebro_spark.turns import Turn

# Of all searches together.
EXAMPLES = -(-int(os.environ.get("CEREBRO_COMMAND_EXAMPLES", "0")) // len(SEARCHES)) or drawn(30) // 2
STOPS: list[dict[str, Any]] = [{}, {}, {"patience": 1}, {"time_budget": 12.0}]
patiently = examples(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def check_all_done(run: CommandedRun) -> None:
    """What was asked for is trained and told, but for trials that failed or were stopped."""
    scheduler = run.engine.scheduler
    counts = Counter(event.unit for event in run.events if isinstance(event, UnitFinished))
    known = run.auditor.finished
    assert all(known[unit] == 1 for unit in known)
    assert set(known) <= set(counts)
    if scheduler.finished and not scheduler.state.ending:
        run.auditor.complete({t.id: t.until for t in scheduler.state.trials.values() if t.status == "paused"})
        assert {t.status for t in scheduler.state.trials.values()} <= {"paused", "stopped", "failed"}


def heard(events: Sequence[Event]) -> list[str]:
    return [event.command.id for event in events if isinstance(event, CommandReceived)]


def check_answers(run: CommandedRun) -> None:
    """Every command that was heard is answered once."""
    answers = [event for event in run.events if isinstance(event, CommandAnswered)]
    assert sorted(heard(run.events)) == sorted(answer.command for answer in answers)
    assert all(answer.reason for answer in answers)


def check_heard(run: CommandedRun, commands: Told, begun: float = 0.0, before: Sequence[str] = ()) -> None:
    """Commands are heard in the order in which people gave them, and all that came in time.

    Args:
        run: The run.
        commands: What people said, and how many seconds after the driver began.
        begun: When this driver began, in seconds of the run.
        before: The commands that an earlier driver heard.
    """
    said = [(begun + at, command.id) for at, command in sorted(commands, key=lambda said: said[0])]
    new = [(at, command) for at, command in said if command not in before]
    assert heard(run.events) == [*before, *(command for _, command in new)][: len(heard(run.events))]
    in_time = sum(at < run.events[-1].at for at, _ in new)
    waits = not run.killed and not run.engine.scheduler.finished
    assert len(heard(run.events)) - len(before) >= (len(new) if waits else in_time)


@pytest.mark.parametrize("name", sorted(SEARCHES))
@patiently
@given(
    commands=told,
    stop=st.sampled_from(STOPS),
    seed=st.integers(0, 10**6),
    limit=st.none() | st.integers(2, 5),
    faults=st.sampled_from([(0.0, 0.0), (0.0, 0.03), (0.05, 0.02)]),
    batch=st.sampled_from([1, 1, 4]),
    options=st.fixed_dictionaries(
        {
            "fuse": st.sampled_from([1, 8]),
            "queue_ahead": st.integers(0, 1),
            "keep_last": st.sampled_from([True, True, False]),
        }
    ),
    part=st.floats(0.0, 1.0),
)
def test_whatever_people_say(
    name: str,
    commands: Told,
    stop: dict[str, Any],
    seed: int,
    limit: int | None,
    faults: tuple[float, float],
    batch: int,
    options: dict[str, Any],
    part: float,
) -> None:
    def search() -> Search:
        return searching(name, limit, stop)

    chosen = settings(**options)
    whole = play(search(), chosen, Cluster(seed, *faults, batch, commands))
    check_all_done(whole)
    check_answers(whole)
    check_heard(whole, commands)
    events = whole.events
    assert events == [decode(encode(event)) for event in events]
    assert view_of([Turn(events)]) == view_of([Turn(turn.events, turn.outcomes) for turn in whole.log.written])
    cut = max(1, round(part * len(events)))
    # Those that were heard before the cut come again, and are ignored.
    again = play(search(), chosen, Cluster(seed + 1, *faults, batch, commands), events[:cut])
    check_all_done(again)
    check_answers(again)
    check_heard(again, commands, events[cut - 1].at, heard(events[:cut]))
    works = [event.work for event in events[:cut] if isinstance(event, WorkAdded)]
    assert [event.work for event in again.events if isinstance(event, WorkAdded)][: len(works)] == works
    for run in (whole, again):
        replayed(run.events, chosen, seed)


def test_a_trial_that_lacks_only_its_evaluation_gets_it_also_in_runs_that_go_on_or_are_repeated() -> None:
    def search() -> Search:
        return searching("fixed", None, {})

    chosen = settings(keep_last=True)
    quiet = play(search(), chosen, Cluster(0, 0.0, 0.0, 1))
    units = [event for event in quiet.events if isinstance(event, UnitFinished) and event.unit.kind == "train"]
    trained = {event.unit.trial: event.at for event in units}
    trial = min(trained, key=lambda name: trained[name])
    commands = [
        (trained[trial] - 1e-3, Command("stop_trial", trial=trial)),
        (trained[trial] + 1e-3, Command("resume_trial", trial=trial)),
    ]
    run = play(search(), chosen, Cluster(0, 0.0, 0.0, 1, commands))
    events = run.events
    assert [event.done for event in events if isinstance(event, CommandAnswered)] == [True, True]
    assert not any(isinstance(event, WorkCommanded) for event in events)
    first = next(number for number, event in enumerate(events) if isinstance(event, CommandReceived))
    for cut in range(first, len(events) + 1):
        again = play(search(), chosen, Cluster(1, 0.0, 0.0, 1, commands), events[:cut])
        check_all_done(again)
        check_answers(again)
        replayed(again.events, chosen, 0)
    assert (trial, 2) in run.auditor.told


def test_it_is_a_run_as_ever_if_nobody_says_anything() -> None:
    run = play(searching("grid", None, {}), settings(), Cluster(0, 0.0, 0.0, 1))
    assert not any(isinstance(event, (CommandReceived, CommandAnswered)) for event in run.events)
    assert Command("pause").id != Command("pause").id
