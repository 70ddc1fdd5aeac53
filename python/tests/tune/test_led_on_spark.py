"""Hyperopt and Optuna as leaders of runs whose workers are tasks of a real Spark, and whose data is its DataFrame."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import optuna
import pytest
from hyperopt import hp, tpe
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_rows, torch_model_fn

from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.optuna import optimize

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(600)]

DATA: dict[str, Any] = {"features": ["x"], "label": "y", "validation": 0.25, "metric": "val_loss", "epochs": 2}


@pytest.fixture
def frame(spark: Any) -> Any:
    rows = small_rows()
    cells = [(x.tolist(), float(y)) for x, y in zip(rows["x"], rows["y"], strict=True)]
    return spark.createDataFrame(cells, ["x", "y"])


def check_that_it_hopped(result: Any, trials: int) -> None:
    """Every trial trained on both partitions, and on a worker that is not always the same."""
    units = result.units
    train = units[units.kind == "train"]
    assert len(train) == trials * 2 * DATA["epochs"]
    assert (train.groupby("trial").worker.nunique() == 2).all()


def test_fmin_on_spark_trains_twice_as_many_trials_as_workers_at_a_time(spark: Any, frame: Any, tmp_path: Path) -> None:
    trials = CerebroTrials(backend=SparkBackend(spark, num_workers=2), store=str(tmp_path), data=frame, **DATA)
    options: dict[str, Any] = {"algo": tpe.suggest, "max_queue_len": 4, "trials": trials, "verbose": False}
    space = {"lr": hp.loguniform("lr", -6, -2), "batch_size": hp.choice("batch_size", [16, 32])}
    best = hyperopt.fmin(torch_model_fn, space, max_evals=4, rstate=np.random.default_rng(1), **options)
    assert trials.statuses() == ["ok"] * 4
    result = trials.result
    check_that_it_hopped(result, 4)
    assert result.best_trial.params["lr"] == best["lr"]
    assert result.best_trial.metrics["val_loss"] == min(trials.losses())
    assert result.transform(frame).select("prediction").count() == frame.count()
    # The same trials go on, in another run on the same prepared data, with new workers of the same session.
    hyperopt.fmin(torch_model_fn, space, max_evals=6, rstate=np.random.default_rng(2), **options)
    assert trials.statuses() == ["ok"] * 6
    assert len(set(trials.run_ids)) == 2


def broken_above_fn(params: dict[str, Any]) -> Any:
    if params["lr"] > 0.05:
        raise ValueError("too steep")
    return torch_model_fn(params)


def test_fmin_on_spark_stops_early_and_leaves_the_session_as_it_was(spark: Any, frame: Any, tmp_path: Path) -> None:
    points = [{"lr": 0.01}, {"lr": 0.09}]
    trials = CerebroTrials(
        backend=SparkBackend(spark, num_workers=2),
        store=str(tmp_path),
        data=frame,
        framework="torch",
        points_to_evaluate=points,
        **DATA,
    )
    hyperopt.fmin(
        broken_above_fn,
        {"lr": hp.uniform("lr", 0.001, 0.05)},
        algo=tpe.suggest,
        max_evals=50,
        max_queue_len=2,
        loss_threshold=10.0,
        trials=trials,
        verbose=False,
    )
    assert len(trials.statuses()) < 50
    assert trials.statuses().count("ok") >= 1
    assert "too steep" in next(result["error"] for result in trials.results if result["status"] == "fail")
    assert not {doc["state"] for doc in trials._dynamic_trials} & {hyperopt.JOB_STATE_NEW, hyperopt.JOB_STATE_RUNNING}
    assert spark.range(10).count() == 10, "its slots are free again"


def test_trials_of_which_the_validation_is_a_frame_of_spark_are_pickled(frame: Any, tmp_path: Path) -> None:
    def loss(params: Any, epoch: int) -> float:
        return float(params["lr"])

    def minimize(trials: CerebroTrials, max_evals: int) -> None:
        space = {"lr": hp.uniform("lr", 0.001, 0.05)}
        options: dict[str, Any] = {"max_queue_len": 2, "rstate": np.random.default_rng(1), "verbose": False}
        hyperopt.fmin(torch_fn, space, tpe.suggest, max_evals, trials=trials, **options)

    options = DATA | {"validation": frame, "data": frame, "store": str(tmp_path)}
    trials = CerebroTrials(backend=LossyBackend(loss), **options)
    early = pickle.loads(pickle.dumps(trials))
    early.backend = LossyBackend(loss)
    with pytest.raises(ConfigurationError, match=r"pickled before their `data` and `validation` were prepared"):
        minimize(early, 2)
    minimize(trials, 2)
    again = pickle.loads(pickle.dumps(trials))
    assert (again.losses(), again.validation, again.data.validation) == (trials.losses(), None, trials.data.validation)
    again.backend = LossyBackend(loss)
    minimize(again, 3)
    assert again.statuses() == ["ok"] * 3
    rows = {"x": small_rows(40)["x"], "y": small_rows(40)["y"]}
    mixed = pickle.loads(pickle.dumps(CerebroTrials(backend=LossyBackend(loss), **options | {"data": rows})))
    assert (mixed.data, mixed.validation) == (None, None), "no rows are better than half of them"


def test_a_study_leads_a_run_on_spark(spark: Any, frame: Any, tmp_path: Path) -> None:
    sampler, pruner = optuna.samplers.TPESampler(seed=5), optuna.pruners.NopPruner()
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    result = optimize(
        study,
        torch_model_fn,
        {"lr": FloatDistribution(1e-3, 1e-1, log=True)},
        backend=SparkBackend(spark, num_workers=2),
        store=str(tmp_path),
        data=frame,
        n_trials=4,
        max_concurrent=4,
        **DATA,
    )
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 4
    check_that_it_hopped(result, 4)
    assert study.best_value == result.best_trial.metrics["val_loss"]
    assert study.best_params["lr"] == result.best_trial.params["lr"]
    assert result.transform(frame).select("prediction").count() == frame.count()
