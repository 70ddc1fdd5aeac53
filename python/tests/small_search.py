"""A data set and models small enough to train in a blink, for tests of whole runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.trainer.torch.model import TorchModel

FEATURES = 6


def small_rows(rows: int = 600) -> dict[str, np.ndarray[Any, Any]]:
    """Two classes that a line divides."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = (x.sum(axis=1) + rng.normal(size=rows) > 0).astype("float32")
    return {"x": x, "y": y}


def small_dataset(folder: Path, rows: int = 600, partitions: int = 2) -> Dataset:
    """The same, prepared, with validation."""
    store = str(folder / "store")
    return prepare(small_rows(rows), store=store, features="x", label="y", validation=0.25, partitions=partitions)


def torch_model_fn(params: Mapping[str, Any]) -> TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(module.parameters(), lr=params.get("lr", 0.01))
    return TorchModel(module, optimizer, nn.BCEWithLogitsLoss())


def keras_model_fn(params: Mapping[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(
        optimizer=keras.optimizers.Adam(params.get("lr", 0.01)),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model
