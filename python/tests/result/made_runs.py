"""Runs made for the tests of results: small searches on processes of this machine, with a recipe beside their log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.prepare import prepare
from cerebro_spark.recipe import Recipe
from cerebro_spark.result import Result
from cerebro_spark.runs import execute
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import Mode, Objective

CONFIGURATIONS: list[Mapping[str, Any]] = [{"lr": lr, "hidden": 8, "batch_size": 32} for lr in (0.001, 0.05)]
FEATURES = ["age", "history", "income"]
LABEL = "churned"


@dataclass(frozen=True)
class MadeRun:
    """A finished run, and rows that it never saw."""

    store: LocalStore
    run: str
    test: pd.DataFrame

    @property
    def result(self) -> Result:
        return Result(self.store, self.run)


def customers(rows: int, seed: int) -> pd.DataFrame:
    """A scalar of each kind, an array, a name that is no feature, and a label that a line nearly divides."""
    rng = np.random.default_rng(seed)
    history = rng.normal(size=(rows, 3))
    age, income = rng.integers(18, 90, rows), rng.normal(size=rows)
    score = history.sum(axis=1) + income + (age - 54) / 20 + rng.normal(size=rows) / 2
    return pd.DataFrame(
        {
            "name": [f"customer {number}" for number in range(rows)],
            "age": age,
            "income": income,
            "history": list(history),
            "churned": (score > 0).astype("int64"),
        }
    )


def run_search(
    folder: Path,
    hooks: Hooks,
    *,
    data: Any = None,
    features: Any = None,
    label: Any = LABEL,
    weight: str | None = None,
    configurations: Sequence[Mapping[str, Any]] = tuple(CONFIGURATIONS),
    epochs: int = 3,
    objective: tuple[str, Mode] = ("val_loss", "min"),
    backend: LocalBackend | None = None,
) -> MadeRun:
    store = LocalStore(folder / "store")
    data = customers(400, seed=1) if data is None else data
    features = FEATURES if features is None else features
    dataset = prepare(data, store=store, features=features, label=label, weight=weight, validation=0.25, partitions=2)
    recipe = Recipe(FixedSearch(configurations, epochs), Objective(*objective), dataset, TrainerSpec(hooks, seed=3))
    execute(recipe, store, backend or LocalBackend(num_workers=1, threads=1), "r1", progress=False)
    return MadeRun(store, "r1", customers(90, seed=2))


def scaled(batch: dict[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """An input_fn that looks at the labels too, as one may."""
    features = batch["features"].copy()
    features[:, 0] = (features[:, 0] - 54) / 20
    return {**batch, "features": features, "label": batch["label"].astype("float32")}


def torch_model_fn(params: Mapping[str, Any]) -> TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(5, params["hidden"]), nn.ReLU(), nn.Dropout(0.2), nn.Linear(params["hidden"], 1))
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), {"accuracy": right, "worst": Worst()})


def right(output: Any, label: Any) -> Any:
    return ((output.reshape(-1) > 0) == (label.reshape(-1) > 0.5)).float()


class Worst:
    """A metric that can only be updated: the largest output times the number of rows before it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.rows, self.largest = 0, 0.0

    def update(self, output: Any, label: Any) -> None:
        self.rows += len(output)
        self.largest = max(self.largest, float(output.abs().max()))

    def compute(self) -> float:
        return self.largest * self.rows


def keras_model_fn(params: Mapping[str, Any]) -> Any:
    import keras

    model = keras.Sequential(
        [keras.layers.Dense(params["hidden"], activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
    )
    optimizer = keras.optimizers.Adam(params["lr"], use_ema=params.get("ema", False), ema_momentum=0.9)
    metrics = ["accuracy", keras.metrics.AUC(name="auc")]
    model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=metrics)
    return model


def two_headed_fn(params: Mapping[str, Any]) -> TorchModel:
    """Several inputs, several outputs: one value a row, and three."""
    import torch
    from torch import nn

    class TwoHeaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.three = nn.Linear(3, 1), nn.Linear(2, 3)

        def forward(self, seen: Any, told: Any) -> Any:
            return {"churn": self.one(seen), "kind": self.three(told)}

    def loss(output: Any, label: Any) -> Any:
        return (output["churn"].reshape(-1) - label.float()).square().mean() + output["kind"].square().mean()

    module = TwoHeaded()
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), loss)


def traced_fn(params: Mapping[str, Any]) -> TorchModel:
    """Leaves a line with the number of its process wherever a model is built."""
    with open(params["trace"], "a") as file:
        file.write(f"{os.getpid()}\n")
    return torch_model_fn(params)


def failing_fn(params: Mapping[str, Any]) -> TorchModel:
    if params["lr"] > 0.01:
        raise RuntimeError("no such <b>layer</b>")
    return torch_model_fn(params)
