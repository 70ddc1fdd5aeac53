"""Small data sets for the trainer's tests, made from a seed. They hold nothing that a framework is needed for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources

ROWS = 90
BATCH = 16
THREADS = int(os.environ.get("TRAINER_TEST_THREADS", "1"))


@dataclass(frozen=True)
class Case:
    """One kind of model, and the data it is trained on."""

    model_fn: Callable[[Any], Any]
    data: str = "tabular"
    input_fn: Callable[..., Any] | None = None
    train_fn: Callable[..., Any] | None = None
    eval_fn: Callable[..., Any] | None = None
    precision: Any = None

    def hooks(self) -> Hooks:
        return Hooks(self.model_fn, self.input_fn, self.train_fn, self.eval_fn)

    def resources(self) -> Resources:
        return Resources(threads=THREADS, device="cpu", precision=self.precision)


def arrays(kind: str, partition: int, rows: int = ROWS) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng([partition, rows])
    features = rng.normal(size=(rows, 8)).astype("float32")
    binary = (features[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype("int64")
    classes = rng.integers(0, 3, rows)
    made: dict[str, Callable[[], dict[str, np.ndarray[Any, Any]]]] = {
        "tabular": lambda: {"features": features, "label": binary},
        "weighted": lambda: {"features": features, "label": binary, "weight": rng.random(rows).astype("float32")},
        "classes": lambda: {"features": features, "label": classes},
        "onehot": lambda: {"features": features, "label": np.eye(3, dtype="float32")[classes]},
        "images": lambda: {"image": rng.normal(size=(rows, 1, 8, 8)).astype("float32"), "label": classes},
        "masks": lambda: {
            "image": rng.integers(0, 1 << 16, (rows, 8)).astype("uint16"),
            "mask": rng.integers(0, 3, (rows, 8)).astype("uint8"),
        },
        "tokens": lambda: {"tokens": rng.integers(0, 20, (rows, 6)), "label": binary},
        "several": lambda: {
            "wide": features[:, :5],
            "deep": features[:, 5:],
            "click": binary.astype("float32"),
            "price": features[:, 1].copy(),
        },
    }
    return made[kind]()


ROLES = {
    "tabular": (["features"], ["label"], None),
    "weighted": (["features"], ["label"], "weight"),
    "classes": (["features"], ["label"], None),
    "onehot": (["features"], ["label"], None),
    "images": (["image"], ["label"], None),
    "masks": (["image"], ["mask"], None),
    "tokens": (["tokens"], ["label"], None),
    "several": (["wide", "deep"], ["click", "price"], None),
}


def columns(kind: str) -> Columns:
    sample = arrays(kind, 0, 2)
    inputs, labels, weight = ROLES[kind]

    def specs(names: list[str]) -> dict[str, ColumnSpec]:
        return {name: ColumnSpec(str(sample[name].dtype), sample[name].shape[1:]) for name in names}

    return Columns(specs(inputs), specs(labels), weight)


def feed(kind: str, partition: int, epoch: int = 1, rows: int = ROWS, batch_size: int = BATCH) -> Feed:
    order = np.random.default_rng([partition, epoch, 99]).permutation(rows)
    return Feed(arrays(kind, partition, rows), order, batch_size=batch_size, key=f"{kind}-{partition}")
