"""Progress: the counts add up, whatever happens on the way; what is said names worker, host and trial."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    GroupGaveUp,
    PartitionLoaded,
    PartitionLost,
    RunStarted,
    Settings,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.outcomes import with_outcomes
from cerebro_spark.progress import Progress, describe, in_notebook
from cerebro_spark.run_view import Counts, RunView
from cerebro_spark.search import FixedSearch
from cerebro_spark.turns import Turn, events_of
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Unit, UnitKind, Work

SETTINGS = Settings(
    (Partition("p0"), Partition("p1"), Partition("v0", "validation")), workers=1, objective=Objective("val_loss", "min")
)
OPENING: list[Event] = [
    RunStarted(0.0, "r1", SETTINGS),
    WorkAdded(0.0, Work("t0", {"lr": 0.1}, 1)),
    WorkerJoined(1.0, "w0", host="node7"),
    PartitionLoaded(1.0, "w0", "p0"),
]


def turns_of(events: list[Event]) -> list[Turn]:
    """What an engine would have made of these events, a turn each."""
    return with_outcomes([Turn([event]) for event in events])


def view_of(events: list[Event]) -> RunView:
    view = RunView()
    for turn in turns_of(events):
        view.apply(turn)
    return view


def counts_of(events: list[Event]) -> Counts:
    return view_of(events).counts()


def finished(partition: str, attempt: int, step: int, loss: float = 1.0) -> UnitFinished:
    kind: UnitKind = "eval" if partition.startswith("v") else "train"
    checkpoint = Checkpoint("t0", 1, step, attempt) if kind == "train" else None
    metrics = Metrics({"loss": loss}, {"loss": 1.0})
    return UnitFinished(2.0, "w0", Unit("t0", 1, partition, kind), attempt, 1.0, checkpoint, metrics)


REST: list[Event] = [
    finished("p0", 1, 1),
    PartitionLoaded(2.0, "w0", "p1"),
    finished("p1", 2, 2),
    PartitionLoaded(2.0, "w0", "v0"),
    finished("v0", 3, 0, loss=0.25),
]


def test_before_the_start_there_is_nothing() -> None:
    assert RunView().counts() == Counts(0, 0, 0, 0, 0, 0, 0, 0)
    assert RunView().best() is None


def test_counts_follow_the_events() -> None:
    assert counts_of(OPENING) == Counts(units=0, all_units=3, all_epochs=1, running=1, workers=1)
    assert counts_of([*OPENING, *REST[:1]]) == Counts(units=1, all_units=3, all_epochs=1, running=1, workers=1)
    assert counts_of([*OPENING, *REST[:4]]) == Counts(units=2, all_units=3, all_epochs=1, running=1, workers=1)
    view = view_of([*OPENING, *REST])
    assert view.counts() == Counts(units=3, all_units=3, epochs=1, all_epochs=1, done=1, workers=1)
    best = view.best()
    assert best is not None
    assert (best.trial, best.epoch, best.metrics["val_loss"]) == ("t0", 1, 0.25)
    assert describe(view) == "0 running, 1 done | 1/1 epochs | 1 worker | best val_loss 0.25 (t0)"


def test_a_promotion_makes_the_total_grow_and_a_stop_makes_it_shrink() -> None:
    more: list[Event] = [WorkAdded(2.0, Work("t0", {"lr": 0.1}, 4)), WorkAdded(2.0, Work("t1", {}, 2))]
    assert counts_of([*OPENING, *more]) == Counts(all_units=18, all_epochs=6, running=2, workers=1)
    stopped = counts_of([*OPENING, *more, TrialStopped(3.0, "t1")])
    assert (stopped.all_units, stopped.running, stopped.done) == (12, 1, 1)


def test_a_failed_trial_and_its_reason_are_told(caplog: pytest.LogCaptureFixture) -> None:
    failure = UnitFailed(3.0, "w0", Unit("t0", 1, "p0"), 1, "RuntimeError: no such layer")
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for turn in turns_of([*OPENING, failure]):
            progress(turn)
    counts = progress.view.counts()
    assert (counts.failed, counts.running, counts.all_units) == (1, 0, 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "trial t0: t0/1/p0 failed on worker w0 on node7: RuntimeError: no such layer",
        "trial t0 failed with {'lr': 0.1}: RuntimeError: no such layer",
    ]


@pytest.mark.parametrize("together", [False, True], ids=["a turn each", "one turn"])
def test_a_lost_worker_and_what_it_had_are_told(caplog: pytest.LogCaptureFixture, together: bool) -> None:
    lost: list[Event] = [PartitionLost(2.0, "w0", "p1", "disk on fire"), WorkerLost(3.0, "w0", "it hung up")]
    turns = turns_of([*OPENING, *lost])
    if together:
        turns = [Turn(events_of(turns), [outcome for turn in turns for outcome in turn.outcomes])]
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for turn in turns:
            progress(turn)
    assert progress.view.counts().workers == 0
    assert [record.getMessage() for record in caplog.records] == [
        "partition p1 could not be loaded by worker w0 on node7: disk on fire",
        "worker w0 on node7 is lost while it had t0/1/p0: it hung up",
    ]


def two_groups() -> list[Event]:
    """Two trials, each trained by two workers."""
    partitions = tuple(Partition(f"p{number}") for number in range(4))
    events: list[Event] = [RunStarted(0.0, "r1", Settings(partitions, workers=4, group=2))]
    events += [WorkAdded(0.0, Work(f"t{number}", {"hidden": number}, 1)) for number in range(2)]
    events += [WorkerJoined(1.0, f"w{number}", host="node7") for number in range(4)]
    return [*events, *(PartitionLoaded(1.0, f"w{number}", f"p{number}") for number in range(4))]


def test_why_a_group_gave_up_is_told_and_not_what_its_others_say(caplog: pytest.LogCaptureFixture) -> None:
    events = two_groups()
    at_work = view_of(events).workers
    (order,) = at_work["w0"].queue
    members = sorted(order.workers)
    events += [GroupGaveUp(2.0, name, order.unit, order.attempt, "they cannot reach each other") for name in members]
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for turn in turns_of(events):
            progress(turn)
    assert [record.getMessage() for record in caplog.records] == [
        f"the group of worker w0 on node7 gave up {order.unit}, which is trained again: they cannot reach each other"
    ]


def test_why_no_group_trains_trials_is_told_once_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Every member may say it, of several trials; one trial is named for all."""
    events = two_groups()
    at_work = view_of(events).workers
    assert len({assigned.attempt for worker in at_work.values() for assigned in worker.queue}) == 2
    for name, worker in at_work.items():
        (order,) = worker.queue
        measured = "a sum: 1.5e-05 for 8 rows" if order.unit.trial == "t0" else "a sum: 26.75 for 32 rows"
        reason = f"no group can train trial {order.unit.trial} exactly: its loss is {measured}"
        events.append(GroupGaveUp(2.0, name, order.unit, order.attempt, reason, lasting=True))
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for turn in turns_of(events):
            progress(turn)
    assert list(progress.view.ungrouped) == ["t0", "t1"]
    assert [record.getMessage() for record in caplog.records] == [
        "no group can train trial t0 exactly: its loss is a sum: 1.5e-05 for 8 rows. One worker at a time trains this"
        " trial, and those that differ from it in real numbers only"
    ]


@settings(max_examples=drawn(25), deadline=None)
@given(
    trials=st.integers(1, 5),
    epochs=st.integers(1, 3),
    workers=st.integers(1, 3),
    failure_rate=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 99),
)
def test_whatever_happens_the_counts_add_up(
    trials: int, epochs: int, workers: int, failure_rate: float, seed: int
) -> None:
    """Workers die and report too late: a unit counts once, the total is reached at the end, and never passed."""
    world = World(
        cost=lambda params: params["cost"], jitter=0.3, failure_rate=failure_rate, repair_seconds=2.0, late_results=True
    )
    backend = SimulatedBackend([SimulatedWorker(f"w{i}") for i in range(workers)], world, seed)
    fixed = Settings(SETTINGS.partitions, workers, queue_ahead=1, objective=SETTINGS.objective)
    view = RunView()

    def watch(turn: Turn) -> None:
        for step in turn.split():
            view.apply(step)
            counts = view.counts()
            assert counts.units <= counts.all_units
            assert min(counts) >= 0

    engine = Engine(
        FixedSearch([{"cost": 1.0 + i} for i in range(trials)], epochs), fixed, backend, DiscardingLog(), "r", [watch]
    )
    engine.run()
    failed = sum(trial.status == "failed" for trial in engine.scheduler.state.trials.values())
    counts = view.counts()
    assert (counts.failed, counts.running, counts.done) == (failed, 0, trials - failed)
    assert counts.units == counts.all_units
    if not failed:
        assert counts.all_units == trials * epochs * 3
        assert counts.epochs == counts.all_epochs == trials * epochs
        best = view.best()
        assert best is not None
        assert best.epoch == epochs, "the simulated loss is lower with each epoch"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file: io.StringIO, show: bool | None, earlier: list[Event] = [], more: list[Event] = OPENING) -> str:  # noqa: B006
    turns = turns_of([*earlier, *more])
    with Progress(show, turns[: len(earlier)], file) as progress:
        for turn in turns[len(earlier) :]:
            progress(turn)
    return file.getvalue()


def test_the_bar_shows_units_trials_epochs_workers_and_the_best() -> None:
    last = shown(io.StringIO(), True, more=[*OPENING, *REST]).split("\r")[-1]
    assert re.search(
        r"^r1: 100%.* 3/3 .*units/s, 0 running, 1 done \| 1/1 epochs \| 1 worker \| best val_loss 0.25", last
    )


def test_what_people_say_is_told_and_a_pause_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    stop, pause = Command("stop_trial", id="c1", by="ann", trial="t0"), Command("pause", id="c2")
    said: list[Event] = [
        CommandReceived(1.0, stop),
        CommandAnswered(1.0, "c1", True, "trial t0 ends with its running unit"),
        CommandReceived(1.0, pause),
        CommandAnswered(1.0, "c2", True, "nothing new begins"),
    ]
    with caplog.at_level(logging.INFO, "cerebro_spark"):
        last = shown(io.StringIO(), True, earlier=OPENING, more=said).split("\r")[-1]
    assert last.startswith("r1, paused: ")
    assert [record.getMessage() for record in caplog.records] == [
        "trial t0 was taken from the search by a person",
        "stop_trial by ann was done: trial t0 ends with its running unit",
        "pause was done: nothing new begins",
    ]


def test_a_paused_run_that_is_resumed_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    pause: list[Event] = [CommandReceived(1.0, Command("pause", id="c1")), CommandAnswered(1.0, "c1", True, "done")]
    shown(io.StringIO(), False, earlier=[*OPENING, *pause], more=[])
    assert [record.getMessage() for record in caplog.records] == [
        "run r1 is paused, and nothing begins before somebody unpauses it"
    ]


def test_a_bar_is_drawn_only_where_somebody_can_see_it_or_asked_for_it() -> None:
    assert shown(io.StringIO(), None) == ""
    assert shown(Terminal(), None) != ""
    assert shown(Terminal(), False) == ""
    assert shown(io.StringIO(), True) != ""


def test_a_resumed_run_goes_on_from_where_its_bar_was(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cerebro_spark"):
        text = shown(io.StringIO(), True, earlier=[*OPENING, finished("p0", 1, 1)], more=[])
    assert "r1:  33%" in text
    assert " 1/3 " in text
    assert caplog.records == [], "what was said before is not said again"


def test_a_notebook_without_widgets_gets_a_text_bar_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not in_notebook()
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert in_notebook()
    with Progress() as progress:
        for turn in turns_of(OPENING):
            progress(turn)
    assert "1 running" in capsys.readouterr().err


def test_nothing_is_printed_by_default() -> None:
    """A program that sets up no logging sees nothing of ours but the bar."""
    code = (
        "import cerebro_spark, logging\n"
        "from cerebro_spark.progress import Progress\n"
        "from cerebro_spark.events import *\n"
        "from cerebro_spark.turns import *\n"
        "progress = Progress(False)\n"
        "progress(Turn([WorkerLost(0.0, 'w0', 'gone')], [Outcome()]))\n"
        "logging.getLogger('cerebro_spark.backend.driver.pool').error('something')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("", "")
