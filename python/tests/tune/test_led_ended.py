"""A person ends a run that another library leads: what its trials have reached counts, as if they had been stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from plain_loop import logged
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset

from cerebro_spark.commands import Command
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import CerebroError
from cerebro_spark.result import Result
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.optuna import optimize

pytestmark = pytest.mark.timeout(600)
SOON, LATER = 1.5, 20.0
"""Seconds of the run: before an epoch is known, and when some epochs of both trials are."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), rows=80)


def wavy(params: Mapping[str, Any], epoch: int) -> float:
    """The best epoch of a trial is not its last."""
    return float(params["x"] - 1) ** 2 + (epoch % 3 + 1) / epoch


def ending(at: float | None) -> LossyBackend:
    """A person ends the run then; or none does."""
    return LossyBackend(wavy, commands=[] if at is None else [(at, Command("end"))])


def reached(folder: Path, run: str = "mine") -> dict[str, list[float]]:
    """What was measured, by trial."""
    found: dict[str, list[float]] = {}
    for row in Result(open_store(str(folder)), run).history.itertuples():
        found.setdefault(str(row.trial), []).append(float(row.val_loss))  # type: ignore[arg-type]
    return found


# -- Optuna


def studied(
    folder: Path, dataset: Dataset, at: float | None, study: optuna.Study | None = None, **options: Any
) -> optuna.Study:
    if study is None:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=5), pruner=optuna.pruners.NopPruner())
    space = {"x": optuna.distributions.FloatDistribution(-3, 3)}
    fixed: dict[str, Any] = {"metric": "val_loss", "epochs": 100, "n_trials": 2, "max_concurrent": 2, "run_id": "mine"}
    given = {"backend": ending(at), **fixed, **options}
    optimize(study, torch_fn, space, store=str(folder), data=dataset, **given)
    return study


def known(study: optuna.Study) -> list[Any]:
    return [(trial.params, trial.state, trial.value, trial.user_attrs) for trial in study.trials]


def test_a_study_has_pruned_trials_with_what_they_reached(dataset: Dataset, tmp_path: Path) -> None:
    heard: list[int] = []
    study = studied(tmp_path, dataset, LATER, callbacks=[lambda study, trial: heard.append(trial.number)])
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED] * 2
    assert sorted(heard) == [0, 1]
    for trial in study.trials:
        values = reached(tmp_path)[trial.user_attrs["cerebro_trial"]]
        assert 1 < len(values) < 100
        assert list(trial.intermediate_values.values()) == pytest.approx(values)
        assert trial.value == pytest.approx(values[-1]), "as Optuna has it"
        assert trial.user_attrs["val_loss"] == pytest.approx(min(values))


@pytest.mark.parametrize("same", [True, False], ids=["the same study", "a new study"])
def test_a_study_that_is_told_again_of_a_run_that_was_ended_knows_the_same(
    same: bool, dataset: Dataset, tmp_path: Path
) -> None:
    study = studied(tmp_path, dataset, LATER)
    told, before = known(study), logged(open_store(str(tmp_path)), "mine")
    assert known(studied(tmp_path, dataset, None, study if same else None)) == told
    assert logged(open_store(str(tmp_path)), "mine") == before


def test_a_study_has_failed_trials_if_nothing_is_known_of_them(dataset: Dataset, tmp_path: Path) -> None:
    study = studied(tmp_path, dataset, SOON)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 2


@pytest.mark.filterwarnings("ignore:.constraints_func. has been deprecated:FutureWarning")
def test_a_trial_that_is_stopped_before_its_first_epoch_has_failed(dataset: Dataset, tmp_path: Path) -> None:
    """A sampler is asked for constraints of pruned trials, which depend on what was measured."""

    def constraints(trial: optuna.trial.FrozenTrial) -> list[float]:
        return [trial.user_attrs["val_loss"] - 1.0]

    def new_study() -> optuna.Study:
        sampler = optuna.samplers.TPESampler(seed=5, constraints_func=constraints)
        return optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())

    stops = [(SOON, Command("stop_trial", trial="t0000")), (LATER, Command("end"))]
    study = studied(tmp_path, dataset, None, new_study(), backend=LossyBackend(wavy, commands=stops))
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.PRUNED]
    assert "before an epoch of it was measured" in study.trials[0].user_attrs["error"]
    assert "t0000" not in reached(tmp_path)
    assert known(studied(tmp_path, dataset, None, new_study())) == known(study)


# -- Hyperopt

TIMEOUTS = pytest.mark.parametrize("timeout", [None, 900], ids=["whole trials", "epoch by epoch"])


def new_trials(folder: Path, dataset: Dataset) -> CerebroTrials:
    fixed: dict[str, Any] = {"metric": "val_loss", "epochs": 100, "run_id": "mine"}
    return CerebroTrials(store=str(folder), data=dataset, backend=ending(None), **fixed)


def minimized(trials: CerebroTrials, at: float | None, timeout: float | None) -> Any:
    trials.backend = ending(at)
    options: dict[str, Any] = {"max_evals": 2, "max_queue_len": 2, "show_progressbar": False, "timeout": timeout}
    space, rstate = {"x": hyperopt.hp.uniform("x", -3, 3)}, np.random.default_rng(5)
    return hyperopt.fmin(torch_fn, space, hyperopt.rand.suggest, trials=trials, rstate=rstate, **options)


@TIMEOUTS
def test_fmin_returns_the_best_of_what_was_reached(timeout: float | None, dataset: Dataset, tmp_path: Path) -> None:
    trials = new_trials(tmp_path, dataset)
    best = minimized(trials, LATER, timeout)
    assert trials.statuses() == [hyperopt.STATUS_OK] * 2
    for result in trials.results:
        values = reached(tmp_path)[result["trial"]]
        assert 1 < len(values) < 100
        assert result["loss"] == pytest.approx(min(values))
    assert best == trials.argmin == {"x": trials.result.best_trial.params["x"]}


@TIMEOUTS
@pytest.mark.parametrize("same", [True, False], ids=["the same trials", "new trials"])
def test_trials_that_are_told_again_of_a_run_that_was_ended_know_the_same(
    same: bool, timeout: float | None, dataset: Dataset, tmp_path: Path
) -> None:
    trials = new_trials(tmp_path, dataset)
    best, results = minimized(trials, LATER, timeout), list(trials.results)
    before = logged(open_store(str(tmp_path)), "mine")
    again = trials if same else new_trials(tmp_path, dataset)
    again.run_id = "mine"
    assert minimized(again, None, timeout) == best
    assert again.results == results
    assert logged(open_store(str(tmp_path)), "mine") == before


@TIMEOUTS
def test_fmin_says_so_if_nothing_is_known_of_any_trial(timeout: float | None, dataset: Dataset, tmp_path: Path) -> None:
    trials = new_trials(tmp_path, dataset)
    with pytest.raises(CerebroError, match="no trial was finished"):
        minimized(trials, SOON, timeout)
    assert [document["state"] for document in trials._dynamic_trials] == [hyperopt.base.JOB_STATE_CANCEL] * 2


def test_trials_that_a_timeout_ends_are_cancelled_as_ever(dataset: Dataset, tmp_path: Path) -> None:
    trials = new_trials(tmp_path, dataset)
    with pytest.raises(CerebroError, match="no trial was finished"):
        minimized(trials, None, LATER)
    assert [document["state"] for document in trials._dynamic_trials] == [hyperopt.base.JOB_STATE_CANCEL] * 2
