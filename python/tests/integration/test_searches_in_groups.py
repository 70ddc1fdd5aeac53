"""Searches whose trials several workers train together, as users start them: what they leave, and what they say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from chaos import Chaos, Kind, UntilCalm, WatchedLocalBackend, plan
from grouped_runs import Starts, check_exactly_once, check_survivors, digests, exchanged, recipe, sizes
from kept_workers import FOREVER, KeptWorkers
from plain_loop import logged
from small_driver import CONFIGURATIONS, SEED, Stop, stopping_after
from small_search import FEATURES, small_dataset, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp, runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.events import CostEstimated, GroupGaveUp
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import Metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS, EPOCHS = 4, 2
HEARTBEAT = 4.0


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedLocalBackend]:
    with WatchedLocalBackend(2, threads=1, idle_timeout=FOREVER, heartbeat=HEARTBEAT) as backend:
        yield backend


@pytest.fixture
def kept(watched: WatchedLocalBackend) -> Iterator[KeptWorkers]:
    """As `kept_backend`, for workers whose units can be watched, and whose heartbeat is short."""
    with KeptWorkers(watched) as workers:
        yield workers


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path, partitions=PARTITIONS)


def search(
    backend: Any, dataset: Dataset, kind: Any = cs.GridSearch, model_fn: Any = torch_model_fn, **more: Any
) -> Any:
    options = {
        "space": {"lr": hp.choice([0.01, 0.03]), "batch_size": 32},
        "epochs": EPOCHS,
        "metric": "val_loss",
        "seed": 3,
        "workers_per_trial": 2,
        "progress": False,
        **more,
    }
    return kind(model_fn, backend=backend, store=dataset.store, **options)


def test_a_search_in_groups_of_two_leaves_what_any_search_leaves(kept: KeptWorkers, dataset: Dataset) -> None:
    result = search(kept(2), dataset).fit(dataset)
    events = check_exactly_once(dataset, result.run_id)
    assert sizes(events) == [2] * (2 * EPOCHS * PARTITIONS // 2)
    assert not [event for event in events if isinstance(event, GroupGaveUp)]
    assert result.traffic.exchanged == exchanged(events) > 0
    trained = result.units[result.units.kind == "train"]
    assert set(trained.group) == {2}
    assert len(trained) == 2 * EPOCHS * PARTITIONS
    assert set(trained.worker) == {"w0", "w1"}
    rows = np.zeros((3, FEATURES), dtype=np.float32)
    assert result.transform({"x": rows}).prediction.shape == (3,)
    import torch

    # A trial draws its masks for dropout in the order of its batches: so this tells one state from another.
    assert len(result.model()(torch.from_numpy(rows))) == 3
    again = cs.replay(dataset.store, result.run_id, backend=kept(3))
    repeated = check_exactly_once(dataset, again.run_id)
    assert digests(repeated) == digests(events)
    assert again.traffic.exchanged == exchanged(repeated) > 0
    with pytest.raises(
        ConfigurationError, match=rf"run {result.run_id} had units that 2 workers trained together.*not 1"
    ):
        cs.replay(dataset.store, result.run_id, backend=kept(1))


def test_workers_that_would_idle_help(kept: KeptWorkers, dataset: Dataset) -> None:
    space = {"lr": hp.choice([0.01]), "batch_size": 32}
    result = search(kept(2), dataset, space=space, workers_per_trial="auto", epochs=3).fit(dataset)
    events = check_exactly_once(dataset, result.run_id)
    assert any(isinstance(event, CostEstimated) for event in events), "some batches were timed"
    assert max(sizes(events)) == 2
    again = cs.replay(dataset.store, result.run_id, backend=kept(2))
    assert digests(check_exactly_once(dataset, again.run_id)) == digests(events)


def test_a_run_whose_driver_died_goes_on_and_so_does_its_replay(kept: KeptWorkers, dataset: Dataset) -> None:
    store, made = dataset.store, recipe(dataset, FixedSearch(CONFIGURATIONS[:2], EPOCHS))
    with pytest.raises(Stop):
        runs.execute(made, store, kept(2), "first", [stopping_after(5, Stop())])
    runs.resume(store, "first", kept(2))
    events = check_exactly_once(dataset, "first")
    assert set(sizes(events)) == {2}
    with pytest.raises(Stop):
        runs.replay(store, "first", kept(2), "again", [stopping_after(5, Stop())])
    with pytest.raises(ConfigurationError, match=r"run first had units that 2 workers trained together.*not 1"):
        runs.resume(store, "again", kept(1))
    runs.resume(store, "again", kept(3))
    assert digests(check_exactly_once(dataset, "again")) == digests(events)


def summed_model_fn(params: Mapping[str, Any]) -> TorchModel:
    """A loss that is a sum over rows: half of a batch has half of it."""
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1), torch.nn.Flatten(0))
    loss = torch.nn.BCEWithLogitsLoss(reduction="sum")
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"] / 100), loss)


def own_steps(model: Any, batches: Any, params: Any) -> Metrics:
    """A `train_fn`: no group takes its steps."""
    import torch

    total, rows = 0.0, 0
    for batch in batches:
        model.optimizer.zero_grad()
        loss = model.loss(model.module(torch.from_numpy(batch["features"])), torch.from_numpy(batch["label"]))
        loss.backward()
        model.optimizer.step()
        total, rows = total + loss.item() * len(batch["label"]), rows + len(batch["label"])
    return Metrics({"loss": total}, {"loss": rows})


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"model_fn": summed_model_fn}, "its loss is no mean over rows"), ({"train_fn": own_steps}, "its train_fn takes")],
    ids=["sum", "train_fn"],
)
def test_what_no_group_trains_is_trained_all_the_same_and_the_reason_is_said_once(
    kept: KeptWorkers, dataset: Dataset, caplog: pytest.LogCaptureFixture, options: Any, reason: str
) -> None:
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        result = search(kept(2), dataset, framework="torch", **options).fit(dataset)
    events = check_exactly_once(dataset, result.run_id)
    assert set(sizes(events)) == {1}
    assert result.traffic.exchanged == exchanged(events) == 0
    (said,) = [record.getMessage() for record in caplog.records]
    (named,) = {
        trial for trial in ("t0", "t1") if said.startswith(f"no group can train trial {trial} exactly: {reason}")
    }
    assert "One worker at a time trains this trial, and those that differ from it in real numbers only" in said
    assert f"Not in groups: no group can train trial {named} exactly: {reason}" in repr(result)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"`workers_per_trial` is 0, but must be 'auto' or how many workers.*at least 1: write"),
        ("x", r"`workers_per_trial` is 'x', but must be 'auto'"),
        (2.5, r"`workers_per_trial` is 2.5, but must be 'auto'"),
        (True, r"`workers_per_trial` is True, but must be 'auto'"),
        (3, r"`workers_per_trial` is 3, but there are 2 workers.*use at most 2, or 'auto'"),
    ],
)
def test_what_is_no_number_of_workers_is_refused_before_any_is_started(
    dataset: Dataset, value: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        search(LocalBackend(2), dataset, workers_per_trial=value).fit(dataset)
    assert dataset.store.list("runs") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers_per_trial": 1}, r"strategy is 'shard' and `workers_per_trial` is 1, but a model lies in parts at"),
        ({"workers_per_trial": "auto"}, r"`workers_per_trial` is 'auto', but .*write workers_per_trial=2"),
        ({"fuse": "auto"}, r"strategy is 'shard' and `fuse` is 'auto', but trials in a bundle have one worker"),
        ({"fuse": 2}, r"`fuse` is 2, but .*leave out `fuse`"),
    ],
)
def test_models_in_parts_need_workers(dataset: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        search(LocalBackend(2), dataset, resources=cs.Resources(strategy="shard"), **options).fit(dataset)
    assert dataset.store.list("runs") == []


def test_more_workers_than_partitions_are_refused(tmp_path: Path) -> None:
    prepared = small_dataset(tmp_path, partitions=2)
    message = r"`workers_per_trial` is 3, but there are 2 partitions to train on.*use at most 2, or 'auto'"
    with pytest.raises(ConfigurationError, match=message):
        search(LocalBackend(4), prepared, workers_per_trial=3).fit(prepared)
    rows = {"x": np.zeros((40, FEATURES)), "y": np.zeros(40)}
    with pytest.raises(ConfigurationError, match=message):
        search(LocalBackend(4), prepared, workers_per_trial=3, partitions=2, features="x", label="y").fit(rows)


def test_a_search_with_groups_travels(dataset: Dataset) -> None:
    """As a stage of a pipeline does, and a search that is asked elsewhere."""
    made = search(None, dataset, workers_per_trial="auto")
    again = cloudpickle.loads(cloudpickle.dumps(made))
    assert again.workers_per_trial == "auto"


def test_hyperopt_and_optuna_lead_groups(kept: KeptWorkers, dataset: Dataset) -> None:
    import hyperopt
    import optuna

    from cerebro_spark.tune.hyperopt import CerebroTrials
    from cerebro_spark.tune.optuna import optimize

    options: dict[str, Any] = {
        "store": dataset.store,
        "metric": "val_loss",
        "epochs": 1,
        "workers_per_trial": 2,
        "framework": "torch",
    }
    trials = CerebroTrials(backend=kept(2), data=dataset, **options)
    space = {"lr": hyperopt.hp.uniform("lr", 0.001, 0.1)}
    hyperopt.fmin(
        torch_model_fn,
        space,
        hyperopt.rand.suggest,
        1,
        trials=trials,
        show_progressbar=False,
        rstate=np.random.default_rng(1),
    )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    led = optimize(
        study,
        torch_model_fn,
        lambda trial: {"lr": trial.suggest_float("lr", 0.001, 0.1)},
        data=dataset,
        n_trials=1,
        backend=kept(2),
        progress=False,
        **options,
    )
    for run in (trials.run_ids[-1], led.run_id):
        assert sizes(logged(dataset.store, run)) == [2, 2]


KINDS: list[Kind] = ["worker", "stall", "worker"]


def test_members_of_groups_are_killed_and_frozen_and_nothing_is_lost_or_doubled(
    kept: KeptWorkers, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    data = small_dataset(tmp_path, rows=12_000, partitions=PARTITIONS)
    calm, backend = tmp_path / "calm", kept(3)
    assert isinstance(backend, WatchedLocalBackend)
    made = recipe(data, UntilCalm([{"lr": 0.002 * number, "batch_size": 32} for number in (1, 2)], calm))
    with Chaos(backend, plan(KINDS, SEED, most_units=1), SEED, calm) as chaos:
        starts = Starts(backend)
        runs.execute(made, data.store, backend, "wild", [chaos], progress=False)
    events = check_exactly_once(data, "wild")
    for number, strike in enumerate(chaos.strikes):
        told = starts.describe(strike, events)
        print(told)
        record_property(f"blow {number}", told)
    check_survivors(chaos.strikes, data, "wild", workers=3)
    assert 2 in sizes(events)
    runs.replay(data.store, "wild", kept(2), "again", progress=False)
    assert digests(check_exactly_once(data, "again")) == digests(events)
