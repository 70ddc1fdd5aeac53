"""Runs that another library leads go on after an interruption: nothing is trained twice, and the library knows all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, ConfigurationError, EventLogError
from cerebro_spark.events import UnitFinished, WorkAdded
from cerebro_spark.search import Done
from cerebro_spark.store import paths
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.optuna import optimize
from cerebro_spark.tune.plugins.led import LedSearch
from cerebro_spark.tune.plugins.recall import Proposals, Recollection
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Report, Unit, Work

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


def play(search: LedSearch, answers: list[tuple[str, bool]], turns: list[Turn]) -> bool:
    """Let a search be asked and told, as an engine does; returns whether it has said that it is done."""

    def ask() -> tuple[list[Work], bool]:
        works: list[Work] = []
        while isinstance(answer := search.ask(), Work):
            works.append(answer)
        return works, isinstance(answer, Done)

    epochs: dict[str, int] = {}
    works, over = ask()
    note(turns, None, works)
    for trial, fails in answers:
        epochs[trial] = epochs.get(trial, 0) + 1
        report = reported(trial, epochs[trial], fails)
        search.tell(report)
        works, over = ask() if not over else ([], over)
        note(turns, report, works)
    return over


def reported(trial: str, epoch: int, fails: bool) -> Report:
    return Report(trial, epoch, error="it broke") if fails else Report(trial, epoch, {"val_loss": 1 / epoch})


def note(turns: list[Turn], report: Report | None, works: list[Work]) -> None:
    cause = (
        []
        if report is None
        else [(UnitFinished(0.0, "w0", Unit(report.trial, report.epoch, "p0"), 1, 1.0), Outcome(reports=(report,)))]
    )
    pairs = [*cause, *((WorkAdded(0.0, work), Outcome()) for work in works)]
    turns.append(Turn([event for event, _ in pairs], [outcome for _, outcome in pairs]))


@given(data=st.data(), epochs=st.integers(1, 4), at_once=st.integers(1, 3), trials=st.integers(1, 5))
@settings(max_examples=100)
def test_a_search_that_recalls_its_past_goes_on_as_if_it_had_never_stopped(
    data: st.DataObject, epochs: int, at_once: int, trials: int
) -> None:
    sliced = data.draw(st.booleans(), "sliced")
    early = st.sets(st.integers(1, epochs - 1), max_size=1) if sliced and epochs > 1 else st.just(set())
    pruned = data.draw(early, "pruned")
    whole = Leader(epochs, at_once, sliced, trials, pruned)
    store = open_store("memory://recalled")
    store.delete("runs")
    whole.proposals = Proposals(store, "r1")
    told: list[tuple[str, bool]] = []
    turns: list[Turn] = []
    over = play(whole, told, turns)
    reached: dict[str, int] = {}
    until = {work.trial: work.until_epoch for work in works_of(turns)}
    while running := [trial for trial in until if reached.get(trial, 0) < until[trial]]:
        trial = data.draw(st.sampled_from(running))
        reached[trial] = reached.get(trial, 0) + 1
        fails = data.draw(st.integers(0, 9)) == 0
        if fails:
            until[trial] = reached[trial]
        told.append((trial, fails))
        report = reported(trial, reached[trial], fails)
        whole.tell(report)
        works: list[Work] = []
        while not over and isinstance(answer := whole.ask(), (Work, Done)):
            over = isinstance(answer, Done)
            if isinstance(answer, Work):
                works.append(answer)
                until[answer.trial] = answer.until_epoch
        note(turns, report, works)
    cut = data.draw(st.integers(1, len(turns)), "cut")
    again = Leader(epochs, at_once, sliced, trials, pruned)
    again.proposals, again.run_id = Proposals(store, "r1"), "r1"
    again.recall(Recollection(turns[:cut]))
    repeated: list[Turn] = []
    play(again, told, repeated)
    assert [list(works_of([turn])) for turn in repeated] == [list(works_of([turn])) for turn in turns]
    assert again.fates == whole.fates
    assert set(again.under_way) == set(whole.under_way)


def works_of(turns: list[Turn]) -> Iterator[Work]:
    return (event.work for turn in turns for event in turn.events if isinstance(event, WorkAdded))


# -- Hyperopt

SPACE = {"x": hyperopt.hp.uniform("x", -3, 3), "kind": hyperopt.hp.choice("kind", ["wide", "flat"])}
Fmin = Callable[..., CerebroTrials]


@pytest.fixture
def fmin(dataset: Dataset, tmp_path: Path) -> Fmin:
    def went(trials: CerebroTrials | None = None, lives: int | None = None, **options: Any) -> CerebroTrials:
        made = (
            trials
            if trials is not None
            else CerebroTrials(
                store=str(tmp_path),
                data=dataset,
                metric="val_loss",
                epochs=2,
                backend=LossyBackend(parabola),
                run_id="mine",
            )
        )
        made.backend = LossyBackend(parabola, lives=lives)
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


def new_study(**options: Any) -> optuna.Study:
    options.setdefault("pruner", optuna.pruners.ThresholdPruner(upper=6.0))
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=5), **options)


Optimize = Callable[..., Any]


@pytest.fixture
def go(dataset: Dataset, tmp_path: Path) -> Optimize:
    def went(study: optuna.Study, lives: int | None = None, space: Any = define, **options: Any) -> Any:
        given = {"metric": "val_loss", "epochs": 3, "n_trials": 10, "data": dataset, "store": str(tmp_path), **options}
        backend = LossyBackend(parabola, lives=lives)
        with interrupted(lives, "call optimize again, with run_id='mine'"):
            return optimize(study, torch_fn, space, backend=backend, max_concurrent=3, run_id="mine", **given)
        return None

    return went


@pytest.mark.parametrize("kind", ["the same study", "a new study", "a killed driver's study"])
def test_optimize_goes_on_with_its_run(
    kind: str, go: Optimize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = new_study()
    with monkeypatch.context() as patched:
        if kind.startswith("a killed"):  # a driver that is killed tells its study nothing
            patched.setattr("cerebro_spark.tune.optuna.StudySearch.leave", lambda self: None)
        go(study, lives=30)
    before, known = units(tmp_path, "mine"), asked(tmp_path, "mine")
    assert len(before) > 0
    again = new_study() if kind == "a new study" else study
    if kind == "a new study":
        again.sampler = optuna.samplers.RandomSampler(seed=6)  # what was drawn is the sampler's to know
    result = go(again)
    after = units(tmp_path, "mine")
    assert after[: len(before)] == before
    assert len(set(after)) == len(after), "no unit is trained twice"
    assert {name: asked(tmp_path, "mine")[name] for name in known} == known
    assert len(asked(tmp_path, "mine")) == 10
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


def test_optimize_may_be_interrupted_again_and_again(go: Optimize, tmp_path: Path) -> None:
    study = new_study()
    for lives in (8, 8, 14, 22, None):
        go(study, lives=lives)
    after = units(tmp_path, "mine")
    assert len(set(after)) == len(after)
    assert len(asked(tmp_path, "mine")) == 10


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
