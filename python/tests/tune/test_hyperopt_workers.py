"""CerebroTrials under hyperopt.fmin on real workers: models come out of it, and nothing that dies hangs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hyperopt
import pytest
from drivers import started_driver
from hyperopt import hp, rand, tpe
from kept_workers import KeptWorkers
from small_search import small_dataset, torch_model_fn

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, ConfigurationError, PreflightFailed
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.trackers import Tracker

NEW, RUNNING, DONE, ERROR, CANCEL = range(5)
SPACE = {"x": hp.uniform("x", -3, 3), "batch_size": 16}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"))


def states(trials: CerebroTrials) -> list[int]:
    return [doc["state"] for doc in trials._dynamic_trials]


def test_models_come_out_of_it(dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    space = {"lr": hp.loguniform("lr", -6, -2), "decay": hp.choice("decay", [0.1, 0.2]), "batch_size": 16}
    trials = CerebroTrials(
        backend=kept_backend(2), store=str(tmp_path), data=dataset, metric="val_loss", epochs=2, fuse=4
    )
    best = hyperopt.fmin(
        torch_model_fn, space, algo=tpe.suggest, max_evals=6, max_queue_len=6, trials=trials, verbose=False
    )
    assert trials.result.units["bundle"].duplicated().any(), "trials were trained together"
    assert len(trials.losses()) == 6
    assert trials.result.best_trial.params["lr"] == best["lr"]
    assert trials.result.best_trial.metrics["val_loss"] == min(trials.losses())
    assert sum(p.numel() for p in trials.result.model().parameters()) > 0
    hyperopt.fmin(torch_model_fn, space, algo=tpe.suggest, max_evals=7, trials=trials, verbose=False)
    assert trials.statuses() == ["ok"] * 7


def bare_fn(lr: float) -> Any:
    assert isinstance(lr, float)
    return torch_model_fn({"lr": lr})


def bare_input_fn(batch: dict[str, Any], lr: float) -> dict[str, Any]:
    assert isinstance(lr, float)
    return batch


def test_functions_get_the_value_of_a_space_that_is_no_dict(
    dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    backend = kept_backend(1)
    options: dict[str, Any] = {"data": dataset, "metric": "val_loss", "epochs": 1, "input_fn": bare_input_fn}
    trials = CerebroTrials(backend=backend, store=str(tmp_path), **options)
    space = hp.loguniform("lr", -6, -2)
    hyperopt.fmin(bare_fn, space, algo=rand.suggest, max_evals=2, trials=trials, verbose=False)
    assert trials.statuses() == ["ok"] * 2
    assert sum(p.numel() for p in trials.result.model().parameters()) > 0


def broken_or_number_fn(params: Mapping[str, Any]) -> Any:
    import torch

    if params["x"] > 0:
        raise ValueError(f"no such layer in {torch.__name__}")
    return 0.25


@pytest.mark.parametrize("max_queue_len", [1, 3])
def test_an_objective_that_returns_a_number_is_told_what_to_return(
    max_queue_len: int, dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    trials = CerebroTrials(backend=kept_backend(1), store=str(tmp_path), data=dataset, metric="val_loss", epochs=1)
    with pytest.raises(
        (ConfigurationError, PreflightFailed), match=r"model_fn returned 0\.25 of type float(.|\n)*|measured for it"
    ) as caught:
        hyperopt.fmin(
            broken_or_number_fn,
            {"x": hp.uniform("x", -2, -1)},
            algo=rand.suggest,
            max_evals=9,
            max_queue_len=max_queue_len,
            trials=trials,
            verbose=False,
        )
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "model_fn returned 0.25 of type float" in said
    assert "the loss" in said or "a loss" in said
    assert set(states(trials)) == {ERROR}


def test_a_first_trial_that_fails_alone_is_no_reason_to_stop(
    dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    trials = CerebroTrials(
        backend=kept_backend(1),
        store=str(tmp_path),
        data=dataset,
        metric="val_loss",
        epochs=1,
        points_to_evaluate=[{"lr": -1.0}, {"lr": 0.01}],
    )
    hyperopt.fmin(
        torch_model_fn,
        {"lr": hp.uniform("lr", 0.001, 0.1)},
        algo=rand.suggest,
        max_evals=2,
        trials=trials,
        verbose=False,
    )
    assert trials.statuses() == ["fail", "ok"]
    assert "Invalid learning rate" in trials.results[0]["error"]


def deadly_fn(params: Mapping[str, Any]) -> Any:
    import torch

    assert torch
    os._exit(3)


def test_workers_that_die_do_not_hang_it(dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    backend = kept_backend(1, max_restarts=2)
    trials = CerebroTrials(backend=backend, store=str(tmp_path), data=dataset, metric="val_loss", epochs=1)
    with pytest.raises(BackendError):
        hyperopt.fmin(deadly_fn, SPACE, algo=rand.suggest, max_evals=9, trials=trials, verbose=False)
    assert RUNNING not in states(trials)
    assert NEW not in states(trials)


class AfterAnEpoch(Tracker):
    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        if epoch == 2:
            self._act()


# In a process of its own: an interrupt that comes a moment too late would end the tests instead.
INTERRUPTED = """
import sys
from pathlib import Path
import hyperopt
from hyperopt import hp, rand
from small_search import small_dataset, torch_model_fn
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.trackers import Tracker

class Telling(Tracker):
    def epoch(self, trial, params, epoch, metrics):
        print("epoch", epoch, flush=True)

folder = Path(sys.argv[1])
trials = CerebroTrials(
    backend=LocalBackend(2, threads=1), store=str(folder / "runs"), data=small_dataset(folder), metric="val_loss",
    epochs=4000, trackers=[Telling()],
)
try:
    hyperopt.fmin(
        torch_model_fn, {"lr": hp.uniform("lr", 0.001, 0.1)}, algo=rand.suggest, max_evals=50, max_queue_len=2,
        trials=trials, verbose=False,
    )
except KeyboardInterrupt:
    states = [doc["state"] for doc in trials._dynamic_trials]
    print("interrupted", states, trials.result.finished, len(trials.result.history) >= 2)
"""


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    process = started_driver(INTERRUPTED, tmp_path)
    assert process.stdout is not None
    assert any(line.startswith("epoch 2") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=300)
    assert f"interrupted {[CANCEL] * 2} False True" in said, errors[-2000:]


def test_workers_that_are_killed_and_not_replaced_end_it(
    dataset: Dataset, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    backend = kept_backend(1, max_restarts=0)

    def kill() -> None:
        for handle in list(backend._run.pool.handles.values()):
            assert handle.pid is not None
            os.kill(handle.pid, signal.SIGKILL)

    trials = CerebroTrials(
        backend=backend,
        store=str(tmp_path),
        data=dataset,
        metric="val_loss",
        epochs=400,
        trackers=[AfterAnEpoch(kill)],
    )
    with pytest.raises(BackendError, match="no restart is left"):
        hyperopt.fmin(torch_model_fn, SPACE, algo=rand.suggest, max_evals=9, trials=trials, verbose=False)
    assert states(trials) == [ERROR]
