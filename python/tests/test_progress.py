"""Progress: the counts are those of the scheduler, whatever happens on the way; what is said names who and where."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import (
    Event,
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
from cerebro_spark.progress import Best, Progress, Tally, describe, in_notebook
from cerebro_spark.search import FixedSearch
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Unit, Work

SETTINGS = Settings(
    (Partition("p0"), Partition("p1"), Partition("v0", "validation")), workers=1, objective=Objective("val_loss", "min")
)
OPENING: list[Event] = [
    RunStarted(0.0, "r1", SETTINGS),
    WorkAdded(0.0, Work("t0", {"lr": 0.1}, 1)),
    WorkerJoined(1.0, "w0", host="node7"),
    PartitionLoaded(1.0, "w0", "p0"),
]


def tally_of(events: list[Event]) -> Tally:
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally


def finished(partition: str, attempt: int, step: int, loss: float = 1.0) -> UnitFinished:
    kind = "eval" if partition.startswith("v") else "train"
    checkpoint = Checkpoint("t0", 1, step, attempt) if kind == "train" else None
    metrics = Metrics({"loss": loss}, {"loss": 1.0})
    return UnitFinished(2.0, "w0", Unit("t0", 1, partition, kind), attempt, 1.0, checkpoint, metrics)


def test_before_the_start_there_is_nothing() -> None:
    tally = tally_of([WorkerJoined(0.0, "w0")])
    assert (tally.units, tally.total, tally.running, tally.done, tally.failed, tally.workers) == (0, 0, 0, 0, 0, 0)


def test_counts_follow_the_events() -> None:
    tally = tally_of(OPENING)
    assert (tally.units, tally.total, tally.running, tally.workers) == (0, 3, 1, 1)
    tally.add(finished("p0", 1, 1))
    assert (tally.units, tally.epochs) == (1, 0)
    tally.add(PartitionLoaded(2.0, "w0", "p1"))
    tally.add(finished("p1", 2, 2))
    tally.add(PartitionLoaded(2.0, "w0", "v0"))
    assert (tally.units, tally.epochs, tally.done) == (2, 0, 0)
    reports = tally.add(finished("v0", 3, 0, loss=0.25))
    assert [(r.trial, r.epoch) for r in reports] == [("t0", 1)]
    assert (tally.units, tally.total, tally.epochs, tally.running, tally.done) == (3, 3, 1, 0, 1)
    assert tally.best == Best("t0", 1, 0.25)
    assert describe(tally) == "0 running, 1 done | 1/1 epochs | 1 worker | best val_loss 0.25 (t0)"


def test_a_promotion_makes_the_total_grow_and_a_stop_makes_it_shrink() -> None:
    tally = tally_of([*OPENING, WorkAdded(2.0, Work("t0", {"lr": 0.1}, 4)), WorkAdded(2.0, Work("t1", {}, 2))])
    assert (tally.total, tally.asked_epochs, tally.running) == (18, 6, 2)
    tally.add(TrialStopped(3.0, "t1"))
    assert (tally.total, tally.running, tally.done) == (12, 1, 1)


def test_a_failed_trial_and_its_reason_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for event in [*OPENING, UnitFailed(3.0, "w0", Unit("t0", 1, "p0"), 1, "RuntimeError: no such layer")]:
            progress(event)
    assert (progress.tally.failed, progress.tally.running, progress.tally.total) == (1, 0, 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "trial t0: t0/1/p0 failed on worker w0 on node7: RuntimeError: no such layer",
        "trial t0 failed with {'lr': 0.1}: RuntimeError: no such layer",
    ]


def test_a_lost_worker_and_what_it_had_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cerebro_spark"), Progress(show=False) as progress:
        for event in [*OPENING, PartitionLost(2.0, "w0", "p1", "disk on fire"), WorkerLost(3.0, "w0", "it hung up")]:
            progress(event)
    assert progress.tally.workers == 0
    assert [record.getMessage() for record in caplog.records] == [
        "partition p1 could not be loaded by worker w0 on node7: disk on fire",
        "worker w0 on node7 is lost while it had t0/1/p0: it hung up",
    ]


@settings(max_examples=25, deadline=None)
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
    tally = Tally()

    def watch(event: Event) -> None:
        tally.add(event)
        assert tally.units <= tally.total
        assert min(tally.running, tally.done, tally.failed) >= 0

    engine = Engine(
        FixedSearch([{"cost": 1.0 + i} for i in range(trials)], epochs), fixed, backend, DiscardingLog(), "r", [watch]
    )
    engine.run()
    failed = sum(trial.status == "failed" for trial in engine.scheduler.state.trials.values())
    assert (tally.failed, tally.running, tally.done) == (failed, 0, trials - failed)
    assert tally.units == tally.total
    if not failed:
        assert tally.total == trials * epochs * 3
        assert tally.epochs == tally.asked_epochs == trials * epochs
        assert tally.best is not None
        assert tally.best.epoch == epochs, "the simulated loss is lower with each epoch"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(file: io.StringIO, show: bool | None, earlier: list[Event] = [], more: list[Event] = OPENING) -> str:  # noqa: B006
    with Progress(show, earlier, file) as progress:
        for event in more:
            progress(event)
    return file.getvalue()


def test_the_bar_shows_units_trials_epochs_workers_and_the_best() -> None:
    rest: list[Event] = [
        finished("p0", 1, 1),
        PartitionLoaded(2.0, "w0", "p1"),
        finished("p1", 2, 2),
        PartitionLoaded(2.0, "w0", "v0"),
        finished("v0", 3, 0, loss=0.25),
    ]
    last = shown(io.StringIO(), True, more=[*OPENING, *rest]).split("\r")[-1]
    assert re.search(
        r"^r1: 100%.* 3/3 .*units/s, 0 running, 1 done \| 1/1 epochs \| 1 worker \| best val_loss 0.25", last
    )


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
        for event in OPENING:
            progress(event)
    assert "1 running" in capsys.readouterr().err


def test_nothing_is_printed_by_default() -> None:
    """A program that sets up no logging sees nothing of ours but the bar."""
    code = (
        "import cerebro_spark, logging\n"
        "from cerebro_spark.progress import Progress\n"
        "from cerebro_spark.events import *\n"
        "progress = Progress(False)\n"
        "progress(WorkerLost(0.0, 'w0', 'gone'))\n"
        "logging.getLogger('cerebro_spark.backend.driver.pool').error('something')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")
