"""An Optuna study that leads a run: in virtual time what ask and tell promise, on real workers that models come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset, torch_model_fn

import cerebro_spark.tune.optuna
from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, ConfigurationError, EventLogError
from cerebro_spark.result import Result
from cerebro_spark.tune.options import TrainingOptions
from cerebro_spark.tune.optuna import optimize

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"))


Optimize = Callable[..., Result]


@pytest.fixture
def go(dataset: Dataset, tmp_path: Path) -> Optimize:
    def went(study: optuna.Study, space: Any = None, **options: Any) -> Result:
        given = {"metric": "val_loss", "epochs": 3, "n_trials": 6, "data": dataset, "store": str(tmp_path), **options}
        given.setdefault("backend", LossyBackend(parabola))
        return optimize(study, torch_fn, space or define, **given)

    return went


def define(trial: optuna.Trial) -> dict[str, Any]:
    kind = trial.suggest_categorical("kind", ["wide", "flat"])
    units = trial.suggest_int("units", 8, 64) if kind == "wide" else 1
    return {"x": trial.suggest_float("x", -3, 3), "net": {"kind": kind, "units": units}, "batch_size": 16}


def parabola(params: Mapping[str, Any], epoch: int) -> float:
    return float(params["x"] - 1) ** 2 + 1 / epoch


def seeded(**options: Any) -> optuna.Study:
    options.setdefault("pruner", optuna.pruners.NopPruner())
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=5), **options)


def states(study: optuna.Study) -> list[TrialState]:
    return [trial.state for trial in study.trials]


@pytest.mark.parametrize("kind", ["memory", "journal", "sqlite"])
def test_the_study_knows_all_that_became_of_its_trials(kind: str, go: Optimize, tmp_path: Path) -> None:
    journal = JournalFileBackend(str(tmp_path / "journal"))
    storages: dict[str, Any] = {
        "memory": None,
        "journal": JournalStorage(journal),
        "sqlite": f"sqlite:///{tmp_path}/study.db",
    }
    study = seeded(storage=storages[kind], study_name="s")
    result = go(study, n_trials=8)
    read = study if kind == "memory" else optuna.load_study(study_name="s", storage=storages[kind])
    assert states(read) == [TrialState.COMPLETE] * 8
    for trial in read.trials:
        assert trial.value == pytest.approx((trial.params["x"] - 1) ** 2 + 1 / 3)
        assert list(trial.intermediate_values) == [0, 1, 2]
        assert trial.user_attrs["cerebro_run"] == result.run_id
        assert trial.user_attrs["val_loss"] == trial.value
    best = result.best_trial
    assert read.best_trial.user_attrs["cerebro_trial"] == best.id == f"t{read.best_trial.number:04d}"
    assert best.params["x"] == read.best_params["x"]
    assert best.params["net"]["kind"] == read.best_params["kind"]


def test_trials_may_train_together(go: Optimize) -> None:
    study = seeded()
    result = go(study, {"x": FloatDistribution(-3, 3)}, n_trials=24, fuse="auto")
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 24
    assert result.units["width"].max() > 1
    assert not result.units.duplicated(["trial", "epoch", "partition", "kind"]).any()


def test_every_option_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is forgotten, and none is another's."""
    given: dict[str, Any] = {field.name: object() for field in fields(TrainingOptions)}
    monkeypatch.setattr(cerebro_spark.tune.optuna, "find_mode", lambda study, metric, mode: mode)

    def stop(model_fn: Any, options: TrainingOptions, absent: Any) -> None:
        assert {name: getattr(options, name) for name in given} == given
        raise InterruptedError

    monkeypatch.setattr(cerebro_spark.tune.optuna, "LedTraining", stop)
    with pytest.raises(InterruptedError):
        optimize(seeded(), torch_fn, {}, data={}, epochs=1, n_trials=1, **given)


def test_distributions_do_instead_of_a_function(go: Optimize) -> None:
    study = seeded(direction="maximize")
    space = {"x": FloatDistribution(-1, 1), "kind": CategoricalDistribution(["a", "b"])}
    result = go(study, space, metric="val_score", n_trials=4)
    assert study.best_params == result.best_trial.params
    values = [trial.value for trial in study.trials if trial.value is not None]
    assert len(values) == 4
    assert study.best_value == max(values)


def test_the_studys_pruner_is_asked_after_every_epoch(go: Optimize) -> None:
    pruner = optuna.pruners.ThresholdPruner(upper=1.5, n_warmup_steps=1)
    study = seeded(pruner=pruner)
    result = go(study, n_trials=12, epochs=4)
    for trial in study.trials:
        second = (trial.params["x"] - 1) ** 2 + 1 / 2
        assert trial.state == (TrialState.PRUNED if second > 1.5 else TrialState.COMPLETE)
        assert list(trial.intermediate_values) == ([0, 1] if second > 1.5 else [0, 1, 2, 3])
    assert set(states(study)) == {TrialState.PRUNED, TrialState.COMPLETE}
    assert len(result.history) == sum(len(trial.intermediate_values) for trial in study.trials), "no epoch in vain"


def test_what_is_no_number_is_for_the_pruner_to_judge(go: Optimize) -> None:
    study = seeded(pruner=optuna.pruners.ThresholdPruner(upper=10))
    backend = LossyBackend(lambda params, epoch: float("nan") if params["x"] < 0 else 1.0)
    result = go(study, n_trials=6, epochs=4, backend=backend)
    pruned = [trial.state == TrialState.PRUNED for trial in study.trials]
    assert pruned == [trial.params["x"] < 0 for trial in study.trials]
    assert set(pruned) == {True, False}
    assert sorted(set(result.history.groupby("trial").size())) == [1, 4]


@pytest.mark.filterwarnings("ignore:.constraints_func. has been deprecated:FutureWarning")
def test_a_pruned_trial_without_a_finite_value_has_the_metrics_of_its_last_epoch(go: Optimize) -> None:
    """A sampler asks for constraints of pruned trials, too."""

    def constraints(trial: optuna.trial.FrozenTrial) -> list[float]:
        loss = trial.user_attrs["val_loss"]
        return [1.0 if math.isnan(loss) else loss - 1.0]

    sampler = optuna.samplers.TPESampler(seed=5, constraints_func=constraints)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.ThresholdPruner(upper=10))
    backend = LossyBackend(lambda params, epoch: float("nan") if params["x"] < 0 else 1.0)
    go(study, n_trials=6, epochs=4, backend=backend)
    assert set(states(study)) == {TrialState.PRUNED, TrialState.COMPLETE}
    for trial in study.trials:
        assert math.isnan(trial.user_attrs["val_score"]) == (trial.state == TrialState.PRUNED)
        assert trial.system_attrs["constraints"] == ((1.0,) if trial.state == TrialState.PRUNED else (0.0,))


class Broken(optuna.samplers.RandomSampler):
    """Has a bug that shows when trials end."""

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        raise RuntimeError(f"the bug, for trial {trial.number}")


def broken_constraints(trial: optuna.trial.FrozenTrial) -> list[float]:
    raise RuntimeError("the bug")


@pytest.mark.filterwarnings("ignore:.constraints_func. has been deprecated:FutureWarning")
@pytest.mark.parametrize(
    "sampler",
    [lambda: optuna.samplers.TPESampler(constraints_func=broken_constraints), Broken],
    ids=["of its constraints", "of its own"],
)
def test_an_error_of_the_sampler_is_raised(sampler: Callable[[], Any], go: Optimize) -> None:
    study = optuna.create_study(sampler=sampler(), pruner=optuna.pruners.NopPruner())
    with pytest.raises(RuntimeError, match="the bug"):
        go(study, max_concurrent=3)
    assert len(study.trials) == 3
    assert TrialState.RUNNING not in states(study)


@pytest.mark.filterwarnings("ignore:BruteForceSampler is experimental")
@pytest.mark.parametrize("kind", [optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler])
@pytest.mark.parametrize("n_trials", [2, 9])
def test_a_sampler_with_nothing_left_to_propose_ends_the_run(kind: Any, n_trials: int, go: Optimize) -> None:
    grid = kind is optuna.samplers.GridSampler
    study = optuna.create_study(sampler=kind({"x": [0.0, 1.0]}) if grid else kind(), pruner=optuna.pruners.NopPruner())
    result = go(study, {"x": CategoricalDistribution([0.0, 1.0])}, n_trials=n_trials, max_concurrent=1)
    assert states(study) == [TrialState.COMPLETE] * 2
    assert result.finished
    assert result.best_trial.params["x"] == 1.0


def test_callbacks_hear_of_every_end(go: Optimize) -> None:
    def loss(params: Mapping[str, Any], epoch: int) -> float:
        return 1 / 0 if params["x"] < -1 else params["x"] ** 2

    def fussy(trial: optuna.Trial) -> dict[str, Any]:
        if trial.suggest_float("x", -3, 3) > 2:
            raise optuna.TrialPruned
        return trial.params

    heard: list[tuple[int, TrialState]] = []
    study = seeded()

    def note(told: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        assert told is study
        trial.set_user_attr("a copy", "changes nothing")
        heard.append((trial.number, trial.state))

    go(study, fussy, n_trials=20, backend=LossyBackend(loss), callbacks=iter([note, note]))
    assert sorted(heard) == sorted([(trial.number, trial.state) for trial in study.trials] * 2)
    assert {state for _, state in heard} == {TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED}
    assert not any("a copy" in trial.user_attrs for trial in study.trials)


def stopping_space(trial: optuna.Trial) -> dict[str, Any]:
    if trial.number == 4:
        trial.study.stop()
    return {"x": trial.suggest_float("x", -3, 3)}


def test_a_study_is_stopped_from_within_the_space(go: Optimize) -> None:
    """As Optuna has it: the trial that is being made still runs, and is the last one."""
    study = seeded()
    result = go(study, stopping_space, n_trials=50)
    assert states(study) == [TrialState.COMPLETE] * 5
    assert result.finished
    go(study, n_trials=2)
    assert len(study.trials) == 7, "it was stopped once, not for ever"
    with pytest.raises(RuntimeError, match="inside an objective function or a callback"):
        study.stop()


def test_a_study_is_stopped_by_its_callbacks(go: Optimize) -> None:
    study = seeded()
    enough = optuna.study.MaxTrialsCallback(5, states=(TrialState.COMPLETE,))
    go(study, n_trials=None, callbacks=[enough], max_concurrent=2)
    assert states(study) == [TrialState.COMPLETE] * len(study.trials)
    assert 5 <= len(study.trials) <= 6, "what was under way came to its end"


def test_a_callback_that_raises_ends_the_run(go: Optimize) -> None:
    def broken(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        raise ZeroDivisionError("the callback")

    study = seeded()
    with pytest.raises(ZeroDivisionError, match="the callback"):
        go(study, callbacks=[broken])
    assert TrialState.RUNNING not in states(study)
    go(study, n_trials=1)
    assert TrialState.RUNNING not in states(study)


def test_enqueued_trials_come_first_and_a_second_call_goes_on(go: Optimize) -> None:
    study = seeded()
    study.enqueue_trial({"x": 1.0, "kind": "flat"})
    go(study, n_trials=3)
    assert study.trials[0].params == {"x": 1.0, "kind": "flat"}
    second = go(study, n_trials=4)
    assert states(study) == [TrialState.COMPLETE] * 7
    assert {trial.user_attrs["cerebro_run"] for trial in study.trials[3:]} == {second.run_id}


@settings(deadline=None, max_examples=8)
@given(at_once=st.integers(1, 5), n_trials=st.integers(1, 9), workers=st.integers(1, 3))
def test_never_more_than_max_concurrent_are_under_way(
    at_once: int, n_trials: int, workers: int, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    study, backend, seen = seeded(), LossyBackend(parabola, workers), []
    backend.at_unit = lambda number: seen.append(states(study).count(TrialState.RUNNING))
    store = str(tmp_path_factory.mktemp("runs"))
    options: dict[str, Any] = {"metric": "val_loss", "epochs": 2, "n_trials": n_trials, "max_concurrent": at_once}
    optimize(study, torch_fn, define, store=store, data=dataset, backend=backend, **options)
    assert max(seen) == min(at_once, n_trials)
    assert states(study) == [TrialState.COMPLETE] * n_trials


def test_failed_trials_and_losses_that_are_no_numbers_are_told_as_failed(go: Optimize) -> None:
    def loss(params: Mapping[str, Any], epoch: int) -> float:
        if params["x"] < -1:
            return 1 / 0
        return float("nan") if params["x"] < 1 else 0.5

    study = seeded()
    go(study, n_trials=15, backend=LossyBackend(loss))
    for trial in study.trials:
        assert trial.state == (TrialState.FAIL if trial.params["x"] < 1 else TrialState.COMPLETE)
    errors = [trial.user_attrs["error"] for trial in study.trials if trial.state == TrialState.FAIL]
    assert any("it broke" in error for error in errors)
    assert any("no finite number" in error for error in errors)


def test_after_a_timeout_what_is_under_way_comes_to_its_end(go: Optimize) -> None:
    backend = LossyBackend(parabola)
    study = seeded()
    go(study, n_trials=None, timeout=20.0, backend=backend)
    assert len(study.trials) >= 4
    assert set(states(study)) == {TrialState.COMPLETE}
    assert 20 <= backend.now() < 40


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("all workers are gone")])
def test_what_ends_the_run_ends_it_and_leaves_no_trial_running(error: BaseException, go: Optimize) -> None:
    backend = LossyBackend(parabola)

    def fall(number: int) -> None:
        if number == 30:
            raise error

    backend.at_unit = fall
    study = seeded()
    with pytest.raises(type(error)):
        go(study, n_trials=50, backend=backend)
    assert set(states(study)) == {TrialState.COMPLETE, TrialState.FAIL}
    assert states(study).count(TrialState.FAIL) == 2


def test_a_space_may_prune_and_its_errors_are_raised(go: Optimize) -> None:
    def fussy(trial: optuna.Trial) -> dict[str, Any]:
        if trial.suggest_float("x", -3, 3) < 0:
            raise optuna.TrialPruned
        return trial.params

    study = seeded()
    go(study, fussy, n_trials=10)
    assert [s == TrialState.PRUNED for s in states(study)] == [trial.params["x"] < 0 for trial in study.trials]

    def broken(trial: optuna.Trial) -> dict[str, Any]:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        go(study, broken, n_trials=2)
    with pytest.raises(ConfigurationError, match="must return a dict of params"):
        go(study, lambda trial: 0.5, n_trials=2)
    assert TrialState.RUNNING not in states(study)


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        ({"directions": ["minimize", "maximize"]}, {}, "2 objectives"),
        ({}, {"n_trials": None}, "would never end"),
        ({}, {"n_trials": 0}, "`n_trials` is 0"),
        ({}, {"timeout": -1.0}, "`timeout` is -1"),
        ({}, {"metric": "val_auc"}, "would minimize 'val_auc', of which more is better"),
        ({"direction": "maximize"}, {"metric": "val_gain", "mode": "min"}, "would maximize 'val_gain'"),
        ({}, {"mode": "maximum"}, "`mode` is 'maximum', but must be 'min' or 'max'"),
        ({}, {"metric": None}, "`metric` is None, but must be the name of a metric"),
        ({}, {"target": 0.5}, "ThresholdPruner"),
        ({}, {"max_concurrent": 0}, "`max_concurrent` is 0"),
        ({}, {"callbacks": print}, "`callbacks` is .*print.*, but must be a list of functions"),
        (
            {},
            {"callbacks": ["stop"]},
            r"`callbacks` has 'stop', but must be functions, called as callback\(study, trial\)",
        ),
        ({}, {"trial": 3}, "optimize has no argument 'trial': did you mean 'n_trials'"),
        ({}, {"n_jobs": 4}, r"optimize has no argument 'n_jobs': give it as optimize\(..., max_concurrent=8\)"),
        ({}, {"data": None}, "`data` is None, but must be a DataFrame"),
    ],
)
def test_wrong_arguments(study: dict[str, Any], options: dict[str, Any], message: str, go: Optimize) -> None:
    made = optuna.create_study(**study)
    with pytest.raises(ConfigurationError, match=message):
        go(made, **options)
    assert made.trials == []


def test_its_run_is_not_resumed_without_it_and_says_so(go: Optimize, tmp_path: Path) -> None:
    result = go(seeded(), n_trials=2)
    with pytest.raises(EventLogError, match=r"led by an Optuna study(.|\n)*call optimize again"):
        runs.resume(str(tmp_path), result.run_id, LossyBackend(parabola))


def test_models_come_out_of_it(dataset: Dataset, tmp_path: Path) -> None:
    study = seeded()
    result = optimize(
        study,
        torch_model_fn,
        {"lr": FloatDistribution(1e-3, 1e-1, log=True)},
        backend=LocalBackend(2, threads=1),
        store=str(tmp_path),
        data=dataset,
        metric="val_loss",
        epochs=2,
        n_trials=6,
        max_concurrent=6,
        fuse=4,
    )
    assert result.units["bundle"].duplicated().any(), "trials were trained together"
    assert study.best_value == result.best_trial.metrics["val_loss"]
    assert sum(p.numel() for p in result.model().parameters()) > 0
