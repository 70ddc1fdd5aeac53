"""What a result says of a run, from its log alone: simulated runs with deaths, stops and failures."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.errors import CerebroError, ConfigurationError, EventLogError, NotFoundInStore, TrialFailed
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    RunStarted,
    Settings,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.outcomes import view_of
from cerebro_spark.result import Result, load_result
from cerebro_spark.result.listing import listed, read_view
from cerebro_spark.result.tables import best_trial, find_best, history_table, trials_table, units_table
from cerebro_spark.run_view import RunView
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.opening import open_store
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Unit, UnitKind, Work

PARTITIONS = (*(Partition(f"p{i}", rows=10) for i in range(3)), Partition("v0", "validation", rows=10))


def simulated(folder: Path, world: World, trials: int = 3, epochs: int = 2, seed: int = 0) -> tuple[LocalStore, Engine]:
    store = LocalStore(folder)
    backend = SimulatedBackend([SimulatedWorker(f"w{i}", host=f"h{i}") for i in range(2)], world, seed)
    search = FixedSearch([{"lr": 0.1 * i, "act": "relu"} for i in range(trials)], epochs)
    engine = Engine(search, Settings(PARTITIONS, 2, seed=seed, max_kills=99), backend, EventLog(store, "r1"), run="r1")
    engine.run()
    return store, engine


def unit_cost(params: Mapping[str, Any]) -> float:
    return 1.0 + float(params["lr"])


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), failure_rate=st.sampled_from([0.0, 0.1, 0.3]), late=st.booleans())
def test_units_that_count_are_each_there_once_whoever_dies(
    tmp_path_factory: pytest.TempPathFactory, seed: int, failure_rate: float, late: bool
) -> None:
    world = World(cost=unit_cost, failure_rate=failure_rate, repair_seconds=2.0, late_results=late)
    store, engine = simulated(tmp_path_factory.mktemp("run"), world, seed=seed)
    view = read_view(store, "r1")
    assert view.finished
    assert {trial: shown.units for trial, shown in view.trials.items()} == {
        trial: record.finished for trial, record in engine.scheduler.state.trials.items()
    }
    found = [(unit.trial, unit.epoch, unit.partition, unit.kind) for unit in view.units]
    train = [(f"t{t}", e, f"p{p}", "train") for t in range(3) for e in (1, 2) for p in range(3)]
    evaluations = [(f"t{t}", e, "v0", "eval") for t in range(3) for e in (1, 2)]
    assert sorted(found) == sorted(train + evaluations)
    assert {view.status(trial) for trial in view.trials} == {"finished"}
    table = units_table(view)
    assert ((table["end"] - table["start"] - table["seconds"]).abs() < 1e-9).all()
    assert set(table["host"]) <= {"h0", "h1"}
    history = history_table(view)
    assert list(zip(history["trial"], history["epoch"], strict=True)) == [
        (f"t{t}", e) for t in range(3) for e in (1, 2)
    ]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    store, _ = simulated(tmp_path_factory.mktemp("run"), World(cost=unit_cost))
    return list(EventLog(store, "r1").read())


@settings(max_examples=drawn(20), deadline=None)
@given(cut=st.integers(1, 60))
def test_a_run_cut_anywhere_gives_what_was_there(whole_run: list[Event], cut: int) -> None:
    events = whole_run
    view = view_of([Turn(events[:cut])])
    assert len(trials_table(view)) == len({e.work.trial for e in events[:cut] if isinstance(e, WorkAdded)})
    assert len(view.units) == sum(isinstance(e, UnitFinished) for e in events[:cut])
    over = cut >= len(events)
    assert over or {view.status(trial) for trial in view.trials} <= {"running", "paused", "finished"}


# A run told by hand: one worker, one partition, so that every number is known.


LOSS = Objective("val_loss", "min")


class Story:
    """Tells events of a run with one worker and a partition of each split, and says what a result makes of them."""

    def __init__(self, objective: Objective | None = LOSS) -> None:
        parts = (Partition("p0", rows=10), Partition("v0", "validation", rows=10))
        start = RunStarted(0.0, "r1", Settings(parts, 1, objective=objective))
        self.events: list[Event] = [start, WorkerJoined(0.0, "w0", "h0", holds=("p0", "v0"))]
        self.attempt = 0

    def ask(self, trial: str, epochs: int, **params: Any) -> None:
        self.events.append(WorkAdded(0.0, Work(trial, params, epochs)))

    def epoch(self, trial: str, epoch: int, value: float, name: str = "loss") -> None:
        kinds: tuple[tuple[str, UnitKind], ...] = (("p0", "train"), ("v0", "eval"))
        for partition, kind in kinds:
            unit = self.assigned()
            assert unit == Unit(trial, epoch, partition, kind)
            written = Checkpoint(trial, epoch, 1, self.attempt) if kind == "train" else None
            at = self.events[-1].at + 1.0
            self.events.append(
                UnitFinished(at, "w0", unit, self.attempt, 0.5, written, Metrics({name: value * 10}, {name: 10.0}))
            )

    def fail(self, trial: str, error: str) -> None:
        unit = self.assigned()
        assert unit.trial == trial
        self.events.append(UnitFailed(self.events[-1].at + 1.0, "w0", unit, self.attempt, error))

    def assigned(self) -> Unit:
        """What the worker is at."""
        given = self.view.workers["w0"].queue[0]
        self.attempt = given.attempt
        return given.unit

    @property
    def view(self) -> RunView:
        return view_of([Turn(self.events)])


@pytest.mark.parametrize(("mode", "endless"), [("max", math.inf), ("min", -math.inf)])
def test_what_is_not_finite_is_never_the_best(mode: Any, endless: float) -> None:
    story = Story(Objective("val_sharpe", mode))
    story.ask("a", 3)
    for epoch, value in ((1, 0.9), (2, endless), (3, math.nan)):
        story.epoch("a", epoch, value, "sharpe")
    story.ask("b", 1)
    story.epoch("b", 1, endless, "sharpe")
    assert best_trial(story.view).id == "a"
    assert best_trial(story.view).epoch == 1
    assert story.view.ranked() == ["a", "b"]


def test_if_nothing_is_finite_no_trial_is_the_best() -> None:
    story = Story(Objective("val_sharpe", "max"))
    story.ask("a", 1)
    assert find_best(story.view) is None
    story.epoch("a", 1, math.nan, "sharpe")
    assert find_best(story.view) is None
    with pytest.raises(CerebroError, match=r"'val_sharpe' was no finite number in any epoch of run .*result\.history"):
        best_trial(story.view)
    story.ask("b", 1)
    story.epoch("b", 1, 0.3, "sharpe")
    assert find_best(story.view) == best_trial(story.view)


def test_the_best_epoch_counts_with_its_own_params_and_metrics() -> None:
    story = Story()
    story.ask("t0", 2, lr=0.1)
    story.epoch("t0", 1, 0.5)
    story.epoch("t0", 2, 0.9)
    story.ask("t0", 3, lr=0.7)
    story.epoch("t0", 3, 0.8)
    best = best_trial(story.view)
    assert (best.id, best.epoch, best.params) == ("t0", 1, {"lr": 0.1})
    assert best.metrics == {"loss": 0.5, "val_loss": 0.5}
    story.ask("t0", 4, lr=0.7)
    story.epoch("t0", 4, 0.1)
    assert (best_trial(story.view).epoch, best_trial(story.view).params) == (4, {"lr": 0.7})


def test_trials_are_listed_best_first_and_failed_ones_last_with_their_error() -> None:
    story = Story(Objective("val_auc", "max"))
    for trial, value in (("a", 0.6), ("b", float("nan")), ("c", 0.9)):
        story.ask(trial, 1, lr=0.1)
        story.epoch(trial, 1, value, "auc")
    story.ask("d", 2, lr=9.0)
    story.epoch("d", 1, 0.99, "auc")
    story.fail("d", "Traceback\nValueError: boom")
    story.ask("e", 1, lr=0.2)
    table = trials_table(story.view)
    assert table["trial"].tolist() == ["c", "a", "b", "e", "d"]
    assert table["status"].tolist() == ["paused", "paused", "paused", "running", "failed"]
    assert list(table.columns[:5]) == ["trial", "status", "epoch", "epochs", "val_auc"]
    assert table["error"].tolist() == [None] * 4 + ["Traceback\nValueError: boom"]
    assert table["epoch"].isna().tolist() == [False, False, False, True, False]
    assert best_trial(story.view).id == "c"


def test_none_stays_none_beside_text() -> None:
    """Whatever pandas makes of text: an optimizer that is None is not one that the trial does not have."""
    story = Story()
    story.ask("a", 1, optimizer="adam")
    story.ask("b", 1, optimizer=None)
    story.ask("c", 1, lr=0.1)
    shown = trials_table(story.view)["param_optimizer"].tolist()
    assert shown[:2] == ["adam", None]
    assert math.isnan(shown[2])


def test_a_run_in_which_all_trials_failed_says_why() -> None:
    story = Story()
    story.ask("t0", 2, lr=0.1)
    story.epoch("t0", 1, 0.5)
    story.fail("t0", "Traceback\nRuntimeError: no such layer")
    with pytest.raises(TrialFailed, match=r"all 1 trials of run r1 failed(.|\n)*model\('t0'\)(.|\n)*no such layer"):
        best_trial(story.view)


def test_a_run_without_an_epoch_has_no_best_trial_yet() -> None:
    story = Story()
    with pytest.raises(CerebroError, match="no best trial yet"):
        best_trial(story.view)
    story.ask("t0", 2, lr=0.1)
    with pytest.raises(CerebroError, match="no best trial yet"):
        best_trial(story.view)


def test_a_run_that_a_person_ended_before_an_epoch_is_not_to_be_resumed() -> None:
    story = Story()
    story.ask("t0", 2, lr=0.1)
    story.events += [CommandReceived(0.0, Command("end", id="c1")), CommandAnswered(0.0, "c1", True, "it is over")]
    story.events.append(WorkerLost(0.0, "w0", "gone"))
    assert story.view.finished
    with pytest.raises(CerebroError, match=r"run r1 is over and has no best trial: none of its 1 trials.*") as raised:
        best_trial(story.view)
    assert "resume" not in str(raised.value)
    assert "start another one" in str(raised.value)


def test_a_metric_that_nobody_measured_is_named_beside_those_that_were() -> None:
    story = Story(Objective("val_f1", "max"))
    story.ask("t0", 1, lr=0.1)
    story.epoch("t0", 1, 0.5)
    with pytest.raises(ConfigurationError, match=r"'val_f1'.*\['loss', 'val_loss'\]"):
        best_trial(story.view)


@pytest.mark.parametrize("name", ["error", "epoch", "seconds"])
def test_a_metric_with_the_name_of_a_column_keeps_out_of_its_way(name: str) -> None:
    story = Story()
    story.ask("t0", 1, lr=0.1)
    story.epoch("t0", 1, 0.5, name)
    for table in (trials_table(story.view), history_table(story.view)):
        assert table.columns.is_unique
        assert table[f"metric_{name}"].tolist() == [0.5]


def test_a_log_that_is_none_and_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="must begin with the start"):
        view_of([Turn([WorkerJoined(0.0, "w0")])])
    store, _ = simulated(tmp_path, World(cost=unit_cost))
    with pytest.raises(NotFoundInStore, match=r"no run 'r2': it has \['r1'\]"):
        Result(store, "r2")


def test_a_simulated_run_has_tables_and_charts_but_no_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    store, _ = simulated(tmp_path, World(cost=unit_cost))
    result = Result(store, "r1")
    assert result.finished
    assert len(result.plot().axes) == 3
    with pytest.raises(ConfigurationError, match="no functions beside its log"):
        result.model()
    with pytest.raises(ConfigurationError, match="has no trial 't9'"):
        result.model("t9")
    with pytest.raises(ConfigurationError, match="'curves', 'parallel', 'gantt'"):
        result.plot("pie")


def test_a_chart_shows_every_trial_and_epoch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    store, _ = simulated(tmp_path, World(cost=unit_cost), trials=4, epochs=3)
    result = Result(store, "r1")
    (curves,) = result.plot("curves").axes
    lines = {line.get_label(): list(line.get_xdata()) for line in curves.get_lines()}
    assert {name: xs for name, xs in lines.items() if name.startswith("t")} == {f"t{i}": [1, 2, 3] for i in range(4)}
    (parallel,) = result.plot("parallel").axes
    assert [label.get_text() for label in parallel.get_xticklabels()] == ["lr", "val_loss"], "act never varies"
    (lanes,) = result.plot("gantt").axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["w0", "w1"]
    result.plot().savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_where_a_store_knows_no_times_the_log_says_when_a_run_began() -> None:
    store = open_store("memory://listed-runs")
    backend = SimulatedBackend([SimulatedWorker("w0")], World(cost=unit_cost))
    log, clock = EventLog(store, "mine"), iter(range(1_800_000_000, 1_900_000_000, 60))
    Engine(
        FixedSearch([{"lr": 0.1}], 1), Settings(PARTITIONS, 1), backend, log, "mine", clock=lambda: float(next(clock))
    ).run()
    (line,) = listed(store)
    assert (line.run, line.when, line.state) == ("mine", "2027-01-15 08:00", "finished")


def test_a_copied_run_reads_the_same_but_is_no_saved_result(tmp_path: Path) -> None:
    store, _ = simulated(tmp_path / "run", World(cost=unit_cost))
    result = Result(store, "r1")
    assert pickle.loads(pickle.dumps(result)).trials.equals(result.trials)
    copy = LocalStore(tmp_path / "copy")
    EventLog(copy, "r1").append(*EventLog(store, "r1").turns())
    assert Result(copy, "r1").trials.equals(result.trials)
    with pytest.raises(NotFoundInStore, match="holds no saved result"):
        load_result(copy)


def test_tables_in_terminals_and_notebooks_say_the_same_and_escape_names() -> None:
    from cerebro_spark.result.display import as_html, as_text

    story = Story()
    story.ask("t0", 1, note="<script>alert(1)</script>")
    story.epoch("t0", 1, 0.5)
    story.ask("t1", 1, note="b")
    story.fail("t1", "Traceback (most recent call last):\n  ...\nValueError: <b>boom</b>")
    text, page = as_text(story.view), as_html(story.view)
    assert "Best: trial t0 at epoch 1, val_loss 0.5" in text
    assert "ValueError: <b>boom</b>" in text
    assert "<script>" not in page
    assert "<b>boom" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;boom" in page
    assert "no trials yet" in as_text(Story().view)
    assert "no best trial yet" in as_html(Story().view)


def test_long_tables_are_cut_and_say_so() -> None:
    from cerebro_spark.result.display import as_html, as_text

    story = Story()
    for number in range(25):
        story.ask(f"t{number:02d}", 1, lr=0.1)
        story.epoch(f"t{number:02d}", 1, float(number))
    for shown in (as_text(story.view), as_html(story.view)):
        assert "t19" in shown
        assert "t20" not in shown
        assert "5 more" in shown
