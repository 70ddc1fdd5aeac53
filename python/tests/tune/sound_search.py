"""A search in which nothing is wrong, on data in which nothing is wrong, for tests that change one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from cerebro_spark import hp

ROWS = 20
DATA: dict[str, Any] = {
    "age": np.arange(ROWS, dtype="float64"),
    "income": np.arange(ROWS, dtype="float64"),
    "town": ["Bern"] * ROWS,
    "held_out": np.arange(ROWS) % 4 == 0,
    "churned": np.arange(ROWS) % 2,
}
LEFT_OUT = object()


def model_fn(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(params["lr"]), loss="mse")
    return model


def search(folder: Path, kind: Any = None, **changes: Any) -> Any:
    """A search that is right, but for the changes."""
    arguments: dict[str, Any] = {
        "model_fn": model_fn,
        "space": {"lr": hp.choice([0.1, 0.2])},
        "store": str(folder / "store"),
        "metric": "val_loss",
        "epochs": 1,
        "features": ["age", "income"],
        "label": "churned",
        "validation": 0.25,
        "backend": cs.LocalBackend(num_workers=2),
        "progress": False,
        **changes,
    }
    given = {name: value for name, value in arguments.items() if value is not LEFT_OUT}
    return (kind or cs.GridSearch)(given.pop("model_fn"), **given)
