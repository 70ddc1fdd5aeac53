"""`search.fit(df)` as users call it: the whole of the public example, on processes and on Spark, in both frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_workers import KeptWorkers

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import UnitFinished
from cerebro_spark.store import paths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FEATURES = ["age", "income", "history"]


def keras_model_fn(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential(
        [keras.layers.Dense(params["hidden"], activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(params["lr"]),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


def torch_model_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(5, params["hidden"]), nn.ReLU(), nn.Linear(params["hidden"], 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])

    def accuracy(output: Any, label: Any) -> Any:
        return ((output > 0) == (label > 0)).float()

    def loss(output: Any, label: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(output, label.float())

    return cs.TorchModel(module, optimizer, loss, metrics={"accuracy": accuracy})


def churn(rows: int = 1200, seed: int = 3) -> pd.DataFrame:
    """Two scalar columns and an array column, side by side as one matrix."""
    rng = np.random.default_rng(seed)
    history = rng.normal(size=(rows, 3)).astype("float32")
    age, income = rng.normal(size=rows), rng.normal(size=rows)
    churned = (age - income + history.sum(axis=1) + rng.normal(size=rows) > 0).astype("int64")
    return pd.DataFrame({"age": age, "income": income, "history": list(history), "churned": churned})


MODELS = {"keras": (keras_model_fn, "val_auc"), "torch": (torch_model_fn, "val_accuracy")}


@pytest.fixture(scope="module", params=["local", pytest.param("spark", marks=pytest.mark.jvm)])
def place(request: pytest.FixtureRequest) -> str:
    """Of the module's scope, so that all tests of one place run before those of the next."""
    return str(request.param)


@pytest.fixture(params=["keras", "torch"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def backend_and_frames(place: str, request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    train, test = churn(), churn(rows=150, seed=4)
    if place == "local":
        return cs.LocalBackend(num_workers=2), train, test
    spark = request.getfixturevalue("spark")
    frames = [
        spark.createDataFrame(frame.assign(history=[row.tolist() for row in frame.history])) for frame in (train, test)
    ]
    return cs.SparkBackend(spark, num_workers=2), *frames


def test_the_public_example(place: str, framework: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    backend, train, test = backend_and_frames(place, request)
    model_fn, metric = MODELS[framework]
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([1e-2, 1e-3]), "hidden": hp.choice([8, 16]), "batch_size": 64},
        backend=backend,
        store=str(tmp_path / "store"),
        features=FEATURES,
        label="churned",
        validation=0.2,
        metric=metric,
        mode="max",
        epochs=2,
        seed=7,
        # The loss of the torch model is a function of its own, of which nothing is known.
        kind="binary_logits" if framework == "torch" else None,
    )
    result = search.fit(train)

    best = result.best_trial
    assert set(best.params) == {"lr", "hidden", "batch_size"}
    assert best.metrics[metric] == result.history[metric].max()
    assert result.trials[metric].is_monotonic_decreasing, "best first: the mode is max"
    assert len(result.trials) == 4
    assert len(result.history) == 4 * 2
    assert len(result.units[result.units.kind == "train"]) == 4 * 2 * 2
    assert best.epoch in (1, 2)
    assert result.run_id in paths.run_ids(cs.open_store(str(tmp_path / "store")).list())

    scored = result.transform(test)
    rows = scored.toPandas() if place == "spark" else scored
    added = ["prediction", "probability", "rawPrediction"]
    assert list(rows.columns) == ["age", "income", "history", "churned", *added]
    own = own_predictions(framework, result.model(), rows)
    told = [row[1] for row in (rows.probability if framework == "keras" else rows.rawPrediction)]
    assert np.allclose(told, own, atol=1e-5)
    threshold = 0.5 if framework == "keras" else 0.0
    assert rows.prediction.tolist() == (own > threshold).astype(float).tolist()
    measured = result.evaluate(test)
    assert {"loss", "accuracy"} <= set(measured)
    assert measured["accuracy"] == pytest.approx((rows.prediction == rows.churned).mean())

    result.save(str(tmp_path / "saved"))
    again = cs.load_result(str(tmp_path / "saved"))
    assert again.best_trial == best


def own_predictions(framework: str, model: Any, rows: pd.DataFrame) -> Any:
    """What the live model itself says of the same rows."""
    x = np.column_stack([rows.age, rows.income, np.stack(rows.history.tolist())]).astype("float32")
    if framework == "keras":
        return model.predict(x, verbose=0)[:, 0]
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


def small_search(folder: Path, **more: Any) -> cs.RandomSearch:
    options: dict[str, Any] = {
        "space": {"lr": hp.loguniform(1e-3, 1e-1), "hidden": 8, "batch_size": 64},
        "store": str(folder / "store"),
        "features": FEATURES,
        "label": "churned",
        "validation": 0.25,
        "metric": "val_accuracy",
        "epochs": 2,
        "num_trials": 4,
        "partitions": 3,
        "seed": 5,
    }
    return cs.RandomSearch(torch_model_fn, **{**options, **more})


def test_a_replay_trains_the_same_bits_without_the_old_checkpoints(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    search = small_search(tmp_path, backend=kept_backend(2))
    first = search.fit(churn())
    store = cs.open_store(str(tmp_path / "store"))
    digests = trained(store, first.run_id)
    store.delete(paths.checkpoint_folder(first.run_id))
    second = cs.replay(store, first.run_id, backend=kept_backend(3), new_run_id="again")
    assert second.run_id == "again"
    assert trained(store, second.run_id) == digests
    assert second.history.drop(columns="seconds").equals(first.history.drop(columns="seconds"))


def test_the_old_form_of_a_replay_still_works_and_names_the_new_one(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    search = small_search(tmp_path, backend=kept_backend(2), epochs=1, num_trials=1)
    first = search.fit(churn(rows=200))
    with pytest.warns(
        DeprecationWarning, match=r"search.fit\(replay=run_id\).* 0\.2\.0: call `cs.replay\(store"
    ) as caught:
        second = search.fit(replay=first.run_id)
    assert caught[0].filename == __file__, "it points to the line of the caller"
    assert second.best_trial.metrics == first.best_trial.metrics


def trained(store: Any, run: str) -> dict[Any, tuple[str, ...]]:
    """By trial: what its units left, in their order."""
    found: dict[Any, tuple[str, ...]] = {}
    for event in EventLog(store, run).read():
        if isinstance(event, UnitFinished) and event.checkpoint is not None:
            found[event.unit.trial] = (*found.get(event.unit.trial, ()), event.checkpoint.digest)
    return found


def test_two_fits_with_one_seed_ask_for_the_same_trials(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    search = small_search(tmp_path, backend=kept_backend(2))
    data = cs.prepare(
        churn(), store=str(tmp_path / "store"), features=FEATURES, label="churned", validation=0.25, partitions=3
    )
    params = [sorted(search.fit(data).trials.param_lr) for _ in range(2)]
    assert params[0] == params[1]


def test_a_resumed_run_gives_its_result(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    search = small_search(tmp_path, backend=kept_backend(2))
    result = search.fit(churn(), run_id="mine")
    again = cs.resume(str(tmp_path / "store"), "mine", backend=kept_backend())
    assert again.best_trial == result.best_trial
    assert again.finished


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (cs.TPESearch, {"num_trials": 5, "epochs": 1}),
        (cs.Hyperband, {"max_epochs": 3}),
        (cs.ASHA, {"num_trials": 6, "max_epochs": 3}),
        (cs.PBT, {"population": 4, "epochs": 4, "perturb_every": 2}),
    ],
    ids=["tpe", "hyperband", "asha", "pbt"],
)
def test_every_search_runs_to_its_end(
    tmp_path: Path, kind: Any, own: dict[str, Any], kept_backend: KeptWorkers
) -> None:
    result = kind(
        torch_model_fn,
        space={"lr": hp.loguniform(1e-3, 1e-1), "hidden": 8, "batch_size": 64},
        store=str(tmp_path / "store"),
        backend=kept_backend(2),
        features=FEATURES,
        label="churned",
        validation=0.25,
        metric="val_accuracy",
        **own,
    ).fit(churn(rows=400))
    assert result.finished
    assert result.best_trial.metrics["val_accuracy"] == result.history.val_accuracy.max()


def test_early_stopping_ends_a_search(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    search = small_search(tmp_path, backend=kept_backend(2), target=0.01, num_trials=40, epochs=50)
    result = search.fit(churn(rows=400))
    assert len(result.history) < 200
