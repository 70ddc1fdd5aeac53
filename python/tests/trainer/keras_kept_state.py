"""Keras models and functions that keep state outside of the model. To import it imports Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from trainer_data import columns

from cerebro_spark.trainer import Hooks, Resources
from cerebro_spark.trainer.keras.trainer import KerasTrainer

BUILT = 0


def sized(width: int) -> Any:
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def plain(params: Any) -> Any:
    return sized(4)


def counting(params: Any) -> Any:
    global BUILT
    BUILT += 1
    return sized(4 + BUILT * params["wider"])


def scaling() -> Callable[[Any], Any]:
    built: list[int] = []

    def model_fn(params: Any) -> Any:
        built.append(1)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
        model.set_weights([weight * len(built) for weight in model.get_weights()])
        return model

    return model_fn


def looping(steers: bool) -> Callable[..., dict[str, float]]:
    seen: list[int] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(1)
        model.optimizer.learning_rate = 0.1 / len(seen) if steers else 0.1
        losses = [float(model.train_on_batch(batch["features"], batch["label"])) for batch in batches]
        return {"loss": sum(losses), "rows": float(len(losses))}

    return train_fn


def trainer_of(model_fn: Any, train_fn: Any = None) -> KerasTrainer:
    return KerasTrainer(Hooks(model_fn, train_fn=train_fn), columns("tabular"), resources=Resources(device="cpu"))
