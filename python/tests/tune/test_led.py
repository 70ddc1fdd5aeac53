"""The search that others lead: whatever they say, every trial ends once, and no more are under way than allowed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset
from wild_runs import ListedLog

from cerebro_spark import hp
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.errors import EventLogError, PreflightFailed
from cerebro_spark.events import Event, Settings
from cerebro_spark.search import Done
from cerebro_spark.tune.options import TrainingOptions
from cerebro_spark.tune.plugins.led import Absent, LedSearch, TrialProgress
from cerebro_spark.tune.plugins.led_training import LedTraining
from cerebro_spark.tune.searches import GridSearch
from cerebro_spark.types import Objective, Partition, Report, TrialId, Work

OBJECTIVE = Objective("val_loss", "min")


class Leader(LedSearch):
    """Begins `trials` trials; ends a trial after the epochs in `pruned`; stops after so many `ends`.

    One that ends trials itself, as Optuna does, takes those that a person ended for the same.
    """

    def __init__(self, epochs: int, at_once: int, sliced: bool, trials: int, pruned: set[int], ends: int = 99) -> None:
        super().__init__(OBJECTIVE, epochs, at_once, sliced)
        self.left, self.pruned, self.ends = trials, pruned, ends
        self.prunes = bool(pruned)
        self.fates: dict[TrialId, str] = {}

    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        if not self.left:
            return None
        self.left -= 1
        return f"t{self.left}", {"x": self.left}

    def described(self, trial: TrialId) -> Mapping[str, Any]:
        return {}

    def remember(self, progress: TrialProgress, about: Mapping[str, Any]) -> bool:
        self.left -= 1
        return False

    def remember_epoch(self, progress: TrialProgress, report: Report, value: float, goes_on: bool) -> None:
        if not goes_on:
            self._fate(progress, "pruned")

    def enough(self) -> bool:
        return len(self.fates) >= self.ends

    def epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        if report.epoch in self.pruned:
            self._fate(progress, "pruned")
            return False
        return True

    def finished(self, progress: TrialProgress) -> None:
        self._fate(progress, "finished")

    def ended(self, progress: TrialProgress) -> None:
        self._fate(progress, "pruned" if self.prunes else "finished")

    def failed(self, progress: TrialProgress, error: str) -> None:
        self._fate(progress, "failed")

    def _fate(self, progress: TrialProgress, fate: str) -> None:
        assert progress.trial not in self.fates, "a trial ends once"
        self.fates[progress.trial] = fate


@given(data=st.data(), epochs=st.integers(1, 4), at_once=st.integers(1, 4), trials=st.integers(0, 6))
def test_every_trial_ends_once_whatever_is_reported_in_whatever_order(
    data: st.DataObject, epochs: int, at_once: int, trials: int
) -> None:
    sliced = data.draw(st.booleans(), "sliced")
    pruned = data.draw(st.sets(st.integers(1, 4), max_size=1), "pruned") if sliced else set()
    ends = data.draw(st.integers(1, 7), "ends") if sliced else 99
    search = Leader(epochs, at_once, sliced, trials, pruned, ends)
    asked: dict[TrialId, int] = {}
    reached: dict[TrialId, int] = {}
    over = False
    while not over or any(reached[t] < asked[t] for t in asked):
        while not over and isinstance(answer := search.ask(), (Work, Done)):
            over = isinstance(answer, Done)
            if isinstance(answer, Work):
                before = asked.get(answer.trial, 0)
                assert answer.until_epoch == (before + 1 if sliced else epochs)
                asked[answer.trial] = answer.until_epoch
                reached.setdefault(answer.trial, 0)
        assert len(search.under_way) <= at_once
        running = [trial for trial in asked if reached[trial] < asked[trial]]
        if running:
            trial = data.draw(st.sampled_from(running))
            reached[trial] += 1
            if data.draw(st.integers(0, 9)) == 0:
                asked[trial] = reached[trial]
                search.tell(Report(trial, reached[trial], error="it broke"))
            else:
                search.tell(Report(trial, reached[trial], {"val_loss": 1.0 / reached[trial]}))
    assert set(asked) == set(search.fates) | set(search.under_way)
    if ends == 99:
        assert set(search.fates) == {f"t{number}" for number in range(trials)}
    for trial, fate in search.fates.items():
        assert fate != "finished" or reached[trial] == epochs


def test_a_trial_counts_by_its_best_epoch() -> None:
    search = Leader(3, 1, False, 1, set())
    search.ask()
    course = search.under_way["t0"]
    for epoch, value in ((1, float("nan")), (2, 0.25), (3, 0.5)):
        search.tell(Report("t0", epoch, {"val_loss": value, "val_auc": value}))
    assert (course.best, course.best_epoch, course.metrics["val_auc"]) == (0.25, 2, 0.25)


def test_a_trial_without_a_finite_value_has_the_metrics_of_its_last_epoch() -> None:
    search = Leader(3, 1, False, 1, set())
    search.ask()
    course = search.under_way["t0"]
    for epoch in (1, 2, 3):
        search.tell(Report("t0", epoch, {"val_loss": float("inf"), "val_auc": epoch / 4}))
    assert (course.best_epoch, course.metrics["val_auc"], search.fates) == (0, 0.75, {"t0": "failed"})


def test_a_trial_is_over_when_all_its_epochs_are_known_in_whatever_order() -> None:
    search = Leader(2, 1, False, 1, set())
    search.ask()
    course = search.under_way["t0"]
    search.tell(Report("t0", 2, {"val_loss": 0.5}))
    assert search.fates == {}
    search.tell(Report("t0", 1, {"val_loss": 0.25}))
    assert (course.best, course.best_epoch, search.fates) == (0.25, 1, {"t0": "finished"})


class Hurried(Leader):
    """Stops after a while."""

    def __init__(self, timeout: float) -> None:
        super().__init__(1, 2, True, 999, set())
        self._timeout = timeout

    def enough(self) -> bool:
        return self.timed_out()


def led(search: LedSearch, *commands: tuple[float, Command]) -> list[Event]:
    """The log of a run of this search with these commands, in virtual time."""
    log = ListedLog()
    workers = [SimulatedWorker("w0"), SimulatedWorker("w1")]
    backend = SimulatedBackend(workers, World(cost=lambda params: 1.0), 0, commands)
    parts = (Partition("p0"), Partition("v0", "validation"))
    Engine(search, Settings(parts, workers=2, objective=OBJECTIVE), backend, log).run()
    return log.events


def test_a_timeout_is_in_seconds_of_the_run_which_stand_still_while_it_is_paused() -> None:
    plain, paused = Hurried(12.0), Hurried(12.0)
    without = led(plain)
    assert 12.0 <= without[-1].at < 15.0
    events = led(paused, (3.1, Command("pause")), (503.1, Command("unpause")))
    assert 511.0 <= events[-1].at < 516.0
    assert abs(len(plain.fates) - len(paused.fates)) <= 1


def test_a_timeout_counts_from_where_the_leader_is_first_asked() -> None:
    search = Hurried(12.0)
    search.tell(Report("t9", 1, {"val_loss": 1.0}, at=100.0))
    assert isinstance(search.ask(), Work)
    search.tell(Report("t998", 1, {"val_loss": 1.0}, at=111.9))
    assert isinstance(search.ask(), Work)
    search.tell(Report("t997", 1, {"val_loss": 1.0}, at=112.0))
    assert search.ask() == Done()


def test_a_leader_that_is_gone_is_named() -> None:
    with pytest.raises(EventLogError, match=r"led by a captain.*it cannot be resumed.*ask the crew"):
        Absent("a captain", "ask the crew").ask()


class Refusing(LossyBackend):
    """Every rehearsal fails, and so does every trial."""

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        return "no such layer"


def impossible(params: Mapping[str, Any], epoch: int) -> float:
    return 1 / 0


@pytest.mark.parametrize(("trials", "at_once", "begins"), [(1, 1, True), (5, 2, True), (3, 3, False), (5, 4, False)])
def test_a_run_begins_unless_three_trials_fail_beforehand(
    trials: int, at_once: int, begins: bool, tmp_path: Path
) -> None:
    store, dataset = str(tmp_path / "runs"), small_dataset(tmp_path, rows=80)
    options = TrainingOptions(store=store, metric="val_loss", backend=Refusing(impossible))
    training = LedTraining(torch_fn, options, Absent("a test", "."))
    search = Leader(1, at_once, False, trials, set())
    if begins:
        training.lead(search, dataset)
        assert search.fates == {f"t{number}": "failed" for number in range(trials)}
    else:
        with pytest.raises(PreflightFailed, match="no such layer"):
            training.lead(search, dataset)
        assert search.run_id == ""


def test_no_run_begins_if_all_the_trials_there_will_be_fail_beforehand(tmp_path: Path) -> None:
    store, dataset = str(tmp_path / "runs"), small_dataset(tmp_path, rows=80)
    search = GridSearch(
        torch_fn, space={"x": hp.choice([1, 2])}, store=store, metric="val_loss", epochs=1, backend=Refusing(impossible)
    )
    with pytest.raises(PreflightFailed, match="one batch of 2 trials was tried"):
        search.fit(dataset)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [("hyperopt", "hyperopt", "hyperopt"), ("optuna", "optuna", "optuna"), ("trackers", "mlflow", "trackers")],
)
def test_a_library_that_is_missing_is_said_with_its_extra(module: str, library: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from cerebro_spark.errors import MissingDependency\n"
        f"try:\n    import cerebro_spark.tune.{module} as loaded; loaded.MLflowTracker()\n"
        "except MissingDependency as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    assert f"pip install 'cerebro-spark[{extra}]'" in said
