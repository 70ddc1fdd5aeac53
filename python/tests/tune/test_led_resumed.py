"""Runs that another library leads go on after an interruption: nothing is trained twice, and the library knows all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loop import logged
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset
from test_led import Leader

import cerebro_spark as cs
from cerebro_spark.commands import Command
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, ConfigurationError, EventLogError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    GatheringBegan,
    SearchEnded,
    UnitFinished,
    WorkAdded,
)
from cerebro_spark.hold import wait_until_free
from cerebro_spark.search import Done, Wait
from cerebro_spark.segments import Line, SegmentReader
from cerebro_spark.store import paths
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.optuna import StudySearch, optimize
from cerebro_spark.tune.plugins.led import LedSearch
from cerebro_spark.tune.plugins.recall import Answer, Proposals, Recollection
from cerebro_spark.tune.trackers import Tracker
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import ENDED_BY_A_PERSON, Report, Unit, Work

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), rows=80)


def parabola(params: Mapping[str, Any], epoch: int) -> float:
    return float(params["x"] - 1) ** 2 + 1 / epoch


def units(store: Path, run: str) -> list[Any]:
    return [event.unit for event in logged(open_store(str(store)), run) if isinstance(event, UnitFinished)]


def asked(store: Path, run: str) -> dict[str, Any]:
    works = (event.work for event in logged(open_store(str(store)), run) if isinstance(event, WorkAdded))
    return {work.trial: dict(work.params) for work in works}


@contextmanager
def interrupted(lives: int | None, way_on: str) -> Iterator[None]:
    """Expects what a backend does whose workers are all gone after so many units, if it is to do so."""
    if lives is None:
        yield
        return
    with pytest.raises(BackendError, match="all workers are gone") as caught:
        yield
    assert caught.value.__notes__ == [f"run mine can be resumed: {way_on}"]


# -- the search itself


class Asking:
    """Asks and tells a search, and notes turns, as an engine does.

    Args:
        search: The search.
        halt: After so many reports a person ends the run, so that the search is asked no more.
    """

    def __init__(self, search: LedSearch, halt: int) -> None:
        self.turns: list[Turn] = []
        self._search, self._left = search, halt
        self._over = False
        self._epochs: dict[str, int] = {}
        note(self.turns, None, self._ask())

    def tell(self, trial: str, fails: bool) -> list[Answer]:
        """Let a trial end one more epoch, or fail; returns what the search says then."""
        self._epochs[trial] = self._epochs.get(trial, 0) + 1
        report = reported(trial, self._epochs[trial], fails)
        self._left -= 1
        self._search.tell(report)
        said = self._ask()
        note(self.turns, report, said)
        return said

    def _ask(self) -> list[Answer]:
        said: list[Answer] = []
        while not self._over and self._left > 0 and isinstance(answer := self._search.ask(), (Work, Done)):
            said.append(answer)
            self._over = isinstance(answer, Done)
        return said


def reported(trial: str, epoch: int, fails: bool) -> Report:
    return Report(trial, epoch, error="it broke") if fails else Report(trial, epoch, {"val_loss": 1 / epoch})


def note(turns: list[Turn], report: Report | None, said: list[Answer]) -> None:
    cause = (
        []
        if report is None
        else [(UnitFinished(0.0, "w0", Unit(report.trial, report.epoch, "p0"), 1, 1.0), Outcome(reports=(report,)))]
    )
    answers = [WorkAdded(0.0, answer) if isinstance(answer, Work) else SearchEnded(0.0) for answer in said]
    pairs = [*cause, *((answer, Outcome()) for answer in answers)]
    turns.append(Turn([event for event, _ in pairs], [outcome for _, outcome in pairs]))


@given(data=st.data(), epochs=st.integers(1, 4), at_once=st.integers(1, 3), trials=st.integers(1, 5))
@settings(max_examples=200)
def test_a_search_that_recalls_its_past_goes_on_as_if_it_had_never_stopped(
    data: st.DataObject, epochs: int, at_once: int, trials: int
) -> None:
    sliced = data.draw(st.booleans(), "sliced")
    early = st.sets(st.integers(1, epochs - 1), max_size=1) if sliced and epochs > 1 else st.just(set())
    pruned = data.draw(early, "pruned")
    ends = data.draw(st.integers(1, 6), "ends") if sliced and not pruned else 99
    halt = data.draw(st.just(99) | st.integers(1, 8), "halt")
    whole = Leader(epochs, at_once, sliced, trials, pruned, ends)
    store = open_store("memory://recalled")
    store.delete("runs")
    whole.proposals = Proposals(store, "r1")
    told: list[tuple[str, bool]] = []
    asking = Asking(whole, halt)
    reached: dict[str, int] = {}
    until = {work.trial: work.until_epoch for work in works_of(asking.turns)}
    while running := [trial for trial in until if reached.get(trial, 0) < until[trial]]:
        trial = data.draw(st.sampled_from(running))
        reached[trial] = reached.get(trial, 0) + 1
        fails = data.draw(st.integers(0, 9)) == 0
        if fails:
            until[trial] = reached[trial]
        told.append((trial, fails))
        said = asking.tell(trial, fails)
        until |= {answer.trial: answer.until_epoch for answer in said if isinstance(answer, Work)}
    whole.run_ended()
    steps = [step for turn in asking.turns for step in turn.split()]
    cut = data.draw(st.integers(0, len(steps)), "cut")  # also between a report and what was said to it
    again = Leader(epochs, at_once, sliced, trials, pruned, ends)
    again.proposals, again.run_id = Proposals(store, "r1"), "r1"
    again.recall(Recollection(steps[:cut]))
    repeating = Asking(again, halt)
    for trial, fails in told:
        repeating.tell(trial, fails)
    again.run_ended()
    assert repeating.turns == asking.turns
    assert again.fates == whole.fates
    assert set(again.under_way) == set(whole.under_way)


@pytest.mark.parametrize(
    ("made", "told", "halt", "fates", "left"),
    [
        ((3, 1, True, 1, {1}), ["t0"], 99, {"t0": "pruned"}, set()),
        ((2, 2, True, 2, set(), 1), ["t1", "t1", "t0"], 99, {"t1": "finished"}, {"t0"}),
        ((2, 2, True, 2, set()), ["t1", "t0"], 1, {"t1": "finished", "t0": "finished"}, set()),
        ((2, 2, True, 2, set()), ["t1"], 1, {"t1": "finished"}, {"t0"}),
    ],
    ids=["prunes its last trial", "has enough", "is ended by a person", "is ended before an epoch is known"],
)
def test_a_search_that_recalls_a_run_that_is_done_knows_what_became_of_its_trials(
    made: Any, told: list[str], halt: int, fates: dict[str, str], left: set[str]
) -> None:
    store = open_store("memory://done")
    store.delete("runs")
    turns: list[Turn] = []
    for search in (Leader(*made), Leader(*made)):
        search.proposals, search.run_id = Proposals(store, "r1"), "r1"
        if turns:
            search.recall(Recollection(turns))
        asking = Asking(search, halt)
        for trial in told:
            asking.tell(trial, fails=False)
        search.run_ended()
        assert (search.fates, set(search.under_way)) == (fates, left)
        turns = asking.turns


def ended_by_a_person(trial: str, stop: Command) -> tuple[CommandReceived, Outcome]:
    """A person stops a trial: the search is told so."""
    return CommandReceived(0.0, stop), Outcome(reports=(Report(trial, 0, error=ENDED_BY_A_PERSON),))


WORK = (WorkAdded(0.0, Work("t1", {}, 1)), Outcome())
MORE = (CommandReceived(0.0, Command("add_workers", "c0", workers=1)), Outcome())
DONE = (UnitFinished(0.0, "w0", Unit("t0", 1, "p0"), 1, 1.0), Outcome(reports=(reported("t0", 1, fails=False),)))
STOP = ended_by_a_person("t0", Command("stop_trial", "c1", trial="t0"))
Step = tuple[Event, Outcome]


def answered(command: str) -> Step:
    return CommandAnswered(0.0, command, done=True), Outcome()


@pytest.mark.parametrize(
    ("steps", "cut"),
    [
        ([DONE], True),
        ([DONE, WORK], True),
        ([MORE, DONE, answered("c0")], False),
        ([MORE, DONE, WORK, answered("c0")], False),
        ([STOP], True),
        ([STOP, answered("c1")], True),
        ([STOP, answered("c1"), WORK], True),
        ([MORE, STOP, answered("c1"), answered("c0")], False),
        ([DONE, (GatheringBegan(0.0, 2), Outcome())], False),
        ([(SearchEnded(0.0), Outcome()), DONE], False),
    ],
    ids=lambda given: None if isinstance(given, bool) else "-".join(type(event).__name__ for event, _ in given),
)
def test_the_leader_is_asked_for_more_only_where_the_log_may_have_had_more(steps: list[Step], cut: bool) -> None:
    """What a backend answers a person is logged after all that the search said: more would contradict the log."""
    past = Recollection([Turn([event], [outcome]) for event, outcome in steps])
    past.ask()
    for _, outcome in steps:
        for report in outcome.reports:
            past.tell(report)
            assert past.asked_again(report) is (None if cut else False)
    said = [past.ask() for _ in range(1 + steps.count(WORK))]
    assert said[:-1] == [WORK[0].work] * steps.count(WORK)
    assert said[-1] == (None if cut else Wait())


def works_of(turns: list[Turn]) -> Iterator[Work]:
    return (event.work for turn in turns for event in turn.events if isinstance(event, WorkAdded))


# -- logs that end within a turn


def lines_of(folder: Path) -> list[Line]:
    return [line for _, line in SegmentReader(open_store(str(folder)), "mine").lines()]


def cuts_of(lines: list[Line]) -> list[int]:
    """After the start, after each event that the leader was told of, and after the first answer to it."""
    told = [number for number, line in enumerate(lines) if number == 0 or line["outcome"].get("reports")]
    first = [number + 1 for number in told if number + 1 < len(lines) and lines[number + 1]["event"] == "WorkAdded"]
    return sorted(number + 1 for number in {*told, *first})


def cut_log(folder: Path, lines: list[Line]) -> None:
    """Leave no more of the log than these lines."""
    store = open_store(str(folder))
    store.delete(paths.log_folder("mine"))
    store.write(paths.log_segment("mine", 0), "".join(json.dumps(line) + "\n" for line in lines).encode())


def no_room(log: EventLog, *turns: Turn) -> None:
    raise OSError("no room")


# -- Hyperopt

SPACE = {"x": hyperopt.hp.uniform("x", -3, 3), "kind": hyperopt.hp.choice("kind", ["wide", "flat"])}
Fmin = Callable[..., CerebroTrials]


@pytest.fixture
def new_trials(dataset: Dataset, tmp_path: Path) -> Callable[[], CerebroTrials]:
    def made() -> CerebroTrials:
        fixed: dict[str, Any] = {"metric": "val_loss", "epochs": 2, "run_id": "mine"}
        return CerebroTrials(store=str(tmp_path), data=dataset, backend=LossyBackend(parabola), **fixed)

    return made


@pytest.fixture
def fmin(new_trials: Callable[[], CerebroTrials]) -> Fmin:
    def went(
        trials: CerebroTrials | None = None,
        lives: int | None = None,
        trackers: Sequence[Tracker] = (),
        **options: Any,
    ) -> CerebroTrials:
        made = new_trials() if trials is None else trials
        made.backend, made.trackers = LossyBackend(parabola, lives=lives), trackers
        given = {"max_evals": 8, "max_queue_len": 3, "show_progressbar": False, **options}
        given.setdefault("rstate", np.random.default_rng(5))
        with interrupted(lives, "call fmin again, with CerebroTrials(..., run_id='mine')"):
            hyperopt.fmin(torch_fn, SPACE, algo=hyperopt.rand.suggest, trials=made, **given)
        return made

    return went


@pytest.mark.parametrize("same", [True, False], ids=["the same trials", "new trials"])
@pytest.mark.parametrize("timeout", [None, 900, 25], ids=["no timeout", "a long timeout", "enough time for the rest"])
def test_fmin_goes_on_with_its_run(same: bool, timeout: float | None, fmin: Fmin, tmp_path: Path) -> None:
    first = fmin(lives=20, timeout=timeout)
    before = units(tmp_path, "mine")
    assert 0 < len(before) < 8 * 2 * 4
    known = asked(tmp_path, "mine")
    if same:
        first.run_id = "mine"
    trials = fmin(first if same else None, timeout=timeout)
    after = units(tmp_path, "mine")
    assert after[: len(before)] == before
    assert len(set(after)) == len(after) == 8 * 2 * 4, "no unit is trained twice"
    assert {name: asked(tmp_path, "mine")[name] for name in known} == known
    assert trials.run_ids == ["mine"]
    assert trials.run_id is None
    assert [doc["state"] for doc in trials.trials] == [hyperopt.JOB_STATE_DONE] * 8
    assert sorted(doc["result"]["trial"] for doc in trials.trials) == [f"t{number:04d}" for number in range(8)]
    for doc in trials.trials:
        assert doc["result"]["run_id"] == "mine"
        assert doc["result"]["loss"] == pytest.approx((doc["misc"]["vals"]["x"][0] - 1) ** 2 + 1 / 2)
    assert len({doc["misc"]["vals"]["x"][0] for doc in trials.trials}) == 8, "what was drawn is not drawn again"
    assert trials.result.finished
    assert trials.result.best_trial.id == trials.best_trial["result"]["trial"]


def test_fmin_may_be_interrupted_again_and_again(fmin: Fmin, tmp_path: Path) -> None:
    for lives in (8, 8, 14, 22, None):
        fmin(lives=lives)
    after = units(tmp_path, "mine")
    assert len(set(after)) == len(after) == 8 * 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [None, 900], ids=["whole trials", "epoch by epoch"])
@pytest.mark.parametrize("same", [True, False], ids=["the same trials", "new trials"])
def test_fmin_goes_on_with_a_log_that_ends_within_a_turn(
    same: bool, timeout: float | None, fmin: Fmin, new_trials: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"timeout": timeout, "max_evals": 3, "max_queue_len": 1}
    known, lines = fmin(**options).losses(), lines_of(tmp_path)
    for cut in cuts_of(lines):
        cut_log(tmp_path, lines[:cut])
        trials = new_trials()
        if same:  # those that heard what the driver did not log any more
            with monkeypatch.context() as patched:
                patched.setattr("cerebro_spark.eventlog.EventLog.append", no_room)
                with pytest.raises(OSError, match="no room"):
                    fmin(trials, **options)
        fmin(trials, **options)
        assert trials.result.finished
        assert trials.statuses() == [hyperopt.STATUS_OK] * 3
        assert trials.losses() == known
        after = units(tmp_path, "mine")
        assert len(set(after)) == len(after) == 3 * 2 * 4


def test_a_run_that_is_done_is_not_trained_again(fmin: Fmin, tmp_path: Path) -> None:
    done = fmin()
    before = logged(open_store(str(tmp_path)), "mine")
    again = fmin()
    assert logged(open_store(str(tmp_path)), "mine") == before
    assert again.losses() == done.losses()


def test_points_that_were_tried_are_not_tried_again(fmin: Fmin, dataset: Dataset, tmp_path: Path) -> None:
    def new() -> CerebroTrials:
        return CerebroTrials(
            store=str(tmp_path),
            data=dataset,
            metric="val_loss",
            epochs=2,
            backend=LossyBackend(parabola),
            run_id="mine",
            points_to_evaluate=[{"x": 0.5, "kind": 0}, {"x": 0.25, "kind": 1}, {"x": 0.125, "kind": 1}],
        )

    fmin(new(), lives=8, max_queue_len=2)
    trials = fmin(new())
    tried = [doc["misc"]["vals"]["x"][0] for doc in trials.trials]
    assert tried[:3] == [0.5, 0.25, 0.125]
    assert len(set(tried)) == 8


def test_a_run_of_another_kind_is_not_gone_on_with(fmin: Fmin, dataset: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"store": str(tmp_path), "metric": "val_loss", "epochs": 2, "progress": False}
    grid = {"x": cs.hp.choice([0.0, 1.0])}
    cs.GridSearch(torch_fn, space=grid, backend=LossyBackend(parabola), **options).fit(dataset, run_id="mine")
    with pytest.raises(ConfigurationError, match=r"run mine was not begun by this: continue it with cs\.resume"):
        fmin()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 3}, "`epochs` is 3, but run mine trains its trials for 2"),
        ({"metric": "val_score"}, "is about 'val_loss'"),
    ],
)
def test_what_differs_from_the_run_is_said(
    change: dict[str, Any], message: str, fmin: Fmin, dataset: Dataset, tmp_path: Path
) -> None:
    fmin(lives=8)
    before = logged(open_store(str(tmp_path)), "mine")
    options: dict[str, Any] = {"store": str(tmp_path), "data": dataset, "metric": "val_loss", "epochs": 2, **change}
    options["mode"] = "max" if change.get("metric") else None
    with pytest.raises(ConfigurationError, match=message):
        fmin(CerebroTrials(backend=LossyBackend(parabola), run_id="mine", **options))
    assert logged(open_store(str(tmp_path)), "mine") == before


def test_cs_resume_names_what_goes_on_with_it(fmin: Fmin, tmp_path: Path) -> None:
    fmin(lives=8)
    with pytest.raises(EventLogError, match=r"led by hyperopt\.fmin.*call fmin again, with CerebroTrials\("):
        cs.resume(str(tmp_path), "mine", backend=LossyBackend(parabola))


def test_a_run_of_a_version_that_kept_no_proposals_is_refused(fmin: Fmin, tmp_path: Path) -> None:
    fmin(lives=8)
    open_store(str(tmp_path)).delete(paths.proposals("mine"))
    with pytest.raises(EventLogError, match="does not say what its leader knew of trial t0000, so"):
        fmin()


# -- Optuna


def define(trial: optuna.Trial) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["wide", "flat"])
    return {"x": trial.suggest_float("x", -3, 3), "net": {"kind": kind}}


COMPLETE, FAIL, PRUNED = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL, optuna.trial.TrialState.PRUNED


def new_study(**options: Any) -> optuna.Study:
    options.setdefault("pruner", optuna.pruners.ThresholdPruner(upper=6.0))
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=5), **options)


Optimize = Callable[..., Any]


@pytest.fixture
def go(dataset: Dataset, tmp_path: Path) -> Optimize:
    def went(study: optuna.Study, lives: int | None = None, space: Any = define, **options: Any) -> Any:
        given = {"metric": "val_loss", "epochs": 3, "n_trials": 10, "data": dataset, "store": str(tmp_path), **options}
        given.setdefault("max_concurrent", 3)
        backend = LossyBackend(parabola, lives=lives)
        with interrupted(lives, "call optimize again, with run_id='mine'"):
            return optimize(study, torch_fn, space, backend=backend, run_id="mine", **given)
        return None

    return went


@pytest.mark.parametrize("kind", ["the same study", "a new study", "a killed driver's study"])
def test_optimize_goes_on_with_its_run(
    kind: str, go: Optimize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def hear(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        heard.append(trial.user_attrs["cerebro_trial"])

    study = new_study()
    with monkeypatch.context() as patched:
        if kind.startswith("a killed"):  # a driver that is killed tells its study nothing
            patched.setattr("cerebro_spark.tune.optuna.StudySearch.leave", lambda self: None)
        go(study, lives=30, callbacks=[hear])
    before, known, ended = units(tmp_path, "mine"), asked(tmp_path, "mine"), list(heard)
    assert len(before) > 0
    assert 0 < len(ended) < 10
    again = new_study() if kind == "a new study" else study
    if kind == "a new study":
        again.sampler = optuna.samplers.RandomSampler(seed=6)  # what was drawn is the sampler's to know
    heard.clear()
    result = go(again, callbacks=[hear])
    after = units(tmp_path, "mine")
    assert after[: len(before)] == before
    assert len(set(after)) == len(after), "no unit is trained twice"
    assert {name: asked(tmp_path, "mine")[name] for name in known} == known
    assert len(asked(tmp_path, "mine")) == 10
    news = set(asked(tmp_path, "mine")) - (set() if kind == "a new study" else set(ended))
    assert sorted(heard) == sorted(news), "of those that ended for this study now"
    told = {t.user_attrs["cerebro_trial"]: t for t in again.trials if t.state != optuna.trial.TrialState.FAIL}
    assert set(told) == set(asked(tmp_path, "mine"))
    for name, trial in told.items():
        x = asked(tmp_path, "mine")[name]["x"]
        assert trial.params["x"] == x
        worst = [(x - 1) ** 2 + 1 / epoch for epoch in (1, 2, 3)]
        assert trial.state == (optuna.trial.TrialState.PRUNED if worst[0] > 6 else optuna.trial.TrialState.COMPLETE)
        reached = 1 if worst[0] > 6 else 3
        assert list(trial.intermediate_values.values()) == pytest.approx(worst[:reached])
        if reached == 3:
            assert trial.value == pytest.approx(worst[2])
    if kind == "a killed driver's study":
        assert len(again.trials) == 10, "those that ran go on"
    assert result.finished
    assert again.best_trial.user_attrs["cerebro_trial"] == result.best_trial.id


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["the same study", "a new study", "a killed driver's study"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_optimize_goes_on_with_a_log_that_ends_within_a_turn(
    at_once: int, kind: str, go: Optimize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"n_trials": 4, "epochs": 2, "max_concurrent": at_once}
    go(new_study(), **options)
    lines = lines_of(tmp_path)
    for cut in cuts_of(lines):
        cut_log(tmp_path, lines[:cut])
        study = new_study()
        if kind != "a new study":  # one that heard what the driver did not log any more
            with monkeypatch.context() as patched:
                patched.setattr("cerebro_spark.eventlog.EventLog.append", no_room)
                if kind.startswith("a killed"):
                    patched.setattr("cerebro_spark.tune.optuna.StudySearch.leave", lambda self: None)
                with pytest.raises(OSError, match="no room"):
                    go(study, **options)
        assert go(study, **options).finished
        after = units(tmp_path, "mine")
        assert len(set(after)) == len(after)
        told = {t.user_attrs["cerebro_trial"]: t for t in study.trials if t.state.is_finished() and t.state != FAIL}
        assert set(told) == set(asked(tmp_path, "mine"))
        for name, trial in told.items():
            values = [(trial.params["x"] - 1) ** 2 + 1 / epoch for epoch in (1, 2)]
            assert asked(tmp_path, "mine")[name]["x"] == trial.params["x"]
            assert trial.state == (PRUNED if values[0] > 6 else COMPLETE)
            assert list(trial.intermediate_values.values()) == pytest.approx(values[: 1 if values[0] > 6 else 2])
            trained = {unit.epoch for unit in after if unit.trial == name}
            assert trained == set(range(1, 1 + len(trial.intermediate_values)))


def test_a_trial_that_was_pruned_before_its_log_had_the_epoch_is_trained_no_further(
    go: Optimize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = EventLog.append

    def no_room_for_reports(log: EventLog, *turns: Turn) -> None:
        if any(turn.reports for turn in turns):
            raise OSError("no room")
        append(log, *turns)

    study = new_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))  # gives up every trial
    with monkeypatch.context() as patched:
        patched.setattr("cerebro_spark.eventlog.EventLog.append", no_room_for_reports)
        with pytest.raises(OSError, match="no room"):
            go(study, n_trials=4)
    assert [trial.state for trial in study.trials].count(PRUNED) == 1
    go(study, n_trials=4)
    assert {unit.epoch for unit in units(tmp_path, "mine")} == {1}
    assert [trial.state for trial in study.trials].count(PRUNED) == 4


@pytest.mark.filterwarnings("ignore:.*GridSampler.*")
def test_a_sampler_that_notes_what_it_gave_knows_it_again(go: Optimize, tmp_path: Path) -> None:
    grid = {"x": [float(number) for number in range(6)]}

    def study() -> optuna.Study:
        return optuna.create_study(sampler=optuna.samplers.GridSampler(grid, seed=3), pruner=optuna.pruners.NopPruner())

    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {"x": trial.suggest_float("x", 0, 5)}

    go(study(), lives=14, space=space, n_trials=6)
    go(study(), space=space, n_trials=6)
    assert sorted(params["x"] for params in asked(tmp_path, "mine").values()) == grid["x"]


@pytest.mark.filterwarnings("ignore:.constraints_func. has been deprecated:FutureWarning")
@pytest.mark.parametrize("same", [True, False], ids=["the same study", "a new study"])
def test_what_a_space_notes_at_a_trial_is_known_again(same: bool, go: Optimize, tmp_path: Path) -> None:
    def noting(trial: optuna.Trial) -> dict[str, Any]:
        trial.set_user_attr("size", np.int64(trial.number % 3))
        return {"x": trial.suggest_float("x", -3, 3)}

    def study() -> optuna.Study:
        sampler = optuna.samplers.TPESampler(seed=5, constraints_func=lambda trial: [trial.user_attrs["size"] - 1])
        return optuna.create_study(sampler=sampler, pruner=optuna.pruners.ThresholdPruner(upper=6.0))

    first = study()
    go(first, lives=30, space=noting)
    again = first if same else study()
    go(again, space=noting)
    told = {t.user_attrs["cerebro_trial"]: t for t in again.trials if t.state != FAIL}
    assert sorted(told) == sorted(asked(tmp_path, "mine"))
    assert {t.state for t in told.values()} == {COMPLETE, PRUNED}
    begun = {t.user_attrs["cerebro_trial"]: t.user_attrs["size"] for t in first.trials}
    for name, trial in told.items():
        assert trial.user_attrs["size"] == begun.get(name, trial.number % 3)
        assert trial.system_attrs["constraints"] == (trial.user_attrs["size"] - 1,)


def test_a_run_whose_proposals_have_no_user_attributes_goes_on(
    go: Optimize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions did not keep them."""
    described = StudySearch.described

    def without(search: StudySearch, trial: str) -> Mapping[str, Any]:
        return {name: value for name, value in described(search, trial).items() if name != "user_attrs"}

    with monkeypatch.context() as patched:
        patched.setattr(StudySearch, "described", without)
        go(new_study(), lives=30)
    assert go(new_study()).finished
    assert len(asked(tmp_path, "mine")) == 10


def test_optimize_may_be_interrupted_again_and_again(go: Optimize, tmp_path: Path) -> None:
    study = new_study()
    for lives in (8, 8, 14, 22, None):
        go(study, lives=lives)
    after = units(tmp_path, "mine")
    assert len(set(after)) == len(after)
    assert len(asked(tmp_path, "mine")) == 10


@pytest.mark.parametrize("same", [True, False], ids=["the same study", "a new study"])
def test_a_study_learns_of_a_run_that_is_done_whose_last_trial_was_pruned(
    same: bool, go: Optimize, tmp_path: Path
) -> None:
    def told(study: optuna.Study) -> list[Any]:
        return [(trial.params, trial.state, trial.value, trial.intermediate_values) for trial in study.trials]

    pruner = optuna.pruners.ThresholdPruner(upper=0.0)  # gives up every trial
    study = new_study(pruner=pruner)
    go(study, n_trials=4)
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.PRUNED] * 4
    known, before = told(study), logged(open_store(str(tmp_path)), "mine")
    again = study if same else new_study(pruner=pruner)
    go(again, n_trials=4)
    assert told(again) == known
    assert logged(open_store(str(tmp_path)), "mine") == before


# -- both


class Recording(Tracker):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.epochs: list[tuple[str, int, float]] = []

    def start(self, run_id: str, objective: Any) -> None:
        self.told.append(f"start {run_id}")

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        assert metrics["val_loss"] == pytest.approx(parabola(params, epoch))
        self.told.append("epoch")
        self.epochs.append((trial, epoch, metrics["val_loss"]))

    def finish(self, result: Any) -> None:
        self.told.append("finish")

    def close(self) -> None:
        self.told.append("close")


Drive = Callable[..., Any]


@pytest.fixture(params=["fmin", "optimize"])
def drive(request: pytest.FixtureRequest, fmin: Fmin, go: Optimize) -> Drive:
    """Begins a run, or goes on with it; returns its result, or None if it was interrupted."""

    def led_by_hyperopt(lives: int | None = None, seed: int = 5, **options: Any) -> Any:
        trials = fmin(lives=lives, rstate=np.random.default_rng(seed), **options)
        return None if lives else trials.result

    def led_by_optuna(lives: int | None = None, seed: int = 5, **options: Any) -> Any:
        study = new_study(pruner=optuna.pruners.NopPruner())
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
        return go(study, lives=lives, n_trials=8, epochs=2, **options)

    return led_by_hyperopt if request.param == "fmin" else led_by_optuna


def measured(result: Any) -> list[tuple[str, int, float]]:
    return [(row.trial, row.epoch, row.val_loss) for row in result.history.itertuples()]


def test_trackers_hear_that_a_run_goes_on_and_then_what_is_new(drive: Drive) -> None:
    first, second, third = Recording(), Recording(), Recording()
    drive(lives=22, trackers=[first])
    drive(lives=9, trackers=[second])
    result = drive(trackers=[third])
    assert [tracker.told[0] for tracker in (first, second, third)] == ["start mine"] * 3
    assert [tracker.told.count("start mine") for tracker in (first, second, third)] == [1] * 3
    assert [tracker.told[-2:] for tracker in (first, second, third)] == [["epoch", "close"]] * 2 + [["finish", "close"]]
    epochs = [*first.epochs, *second.epochs, *third.epochs]
    assert sorted(epochs) == sorted(measured(result))
    begun = {trial for trial, _, _ in first.epochs}
    assert begun & {trial for trial, _, _ in second.epochs + third.epochs}, "of trials that had begun, too"


def test_trackers_hear_no_epoch_of_a_run_that_is_done(drive: Drive) -> None:
    drive()
    tracker = Recording()
    drive(trackers=[tracker])
    assert tracker.told == ["start mine", "finish", "close"]


@pytest.mark.parametrize("lives", [20, None], ids=["goes on", "comes to its end"])
def test_what_another_driver_does_until_the_run_is_free_is_known(
    lives: int | None, drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive(lives=8)
    others, mine = Recording(), Recording()

    def wait(store: Any, run: str) -> None:
        """The other one is alive, but does not hold the run for long. What it draws nobody else would."""
        monkeypatch.setattr("cerebro_spark.runs.wait_until_free", wait_until_free)
        drive(lives=lives, seed=6, trackers=[others])

    monkeypatch.setattr("cerebro_spark.runs.wait_until_free", wait)
    result = drive(trackers=[mine])
    after = units(tmp_path, "mine")
    assert len(set(after)) == len(after) == 8 * 2 * 4, "no unit is trained twice"
    assert others.epochs
    assert not set(others.epochs) & set(mine.epochs)
    assert set(others.epochs) | set(mine.epochs) <= set(measured(result))
    assert mine.told[-2:] == ["finish", "close"]


def test_a_proposal_is_found_by_the_params_that_the_log_has() -> None:
    """One that was never logged is left by a driver that died, or wrote after it was taken over."""
    store = open_store("memory://proposals")
    store.delete("runs")
    proposals = Proposals(store, "r1")
    for x in (1.0, 2.0, (3, float("inf")), float("nan")):
        proposals.keep("t1", {"x": x}, {"point": {"x": x}})
        proposals.keep("t1", {"x": x}, {"point": {"x": x}})
    assert Proposals(store, "r1").read("t1", {"x": 2.0}) == {"point": {"x": 2.0}}
    assert Proposals(store, "r1").read("t1", {"x": (3, float("inf"))}) == {"point": {"x": (3, float("inf"))}}
    assert str(Proposals(store, "r1").read("t1", {"x": float("nan")})) == "{'point': {'x': nan}}"
    with pytest.raises(EventLogError, match="does not say what its leader knew of trial t1"):
        Proposals(store, "r1").read("t1", {"x": 4.0})
    store.write(paths.proposal("r1", "t2", "5e8c"), b"[]")
    with pytest.raises(EventLogError, match=r"proposals/t2-5e8c\.json in .* is damaged"):
        Proposals(store, "r1").read("t2", {})
