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


def tracking(resets: bool) -> Callable[..., dict[str, float]]:
    tracker = keras.metrics.Mean()

    def begin() -> None:
        tracker.reset_state()

    def go_on() -> None:
        assert tracker.name

    start = begin if resets else go_on

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        start()
        for batch in batches:
            tracker.update_state(float(model.train_on_batch(batch["features"], batch["label"])))
        model.optimizer.learning_rate = 0.1 * float(tracker.result())
        return {"loss": float(tracker.result()), "rows": 1.0}

    return train_fn


SEEN = keras.metrics.Sum()


class Summing(keras.layers.Layer):  # type: ignore[misc]
    """Divides by the sum of all that it has seen."""

    def call(self, inputs: Any) -> Any:
        SEEN.update_state(keras.ops.abs(inputs))
        return inputs / (1 + SEEN.result())


def summing(params: Any) -> Any:
    model = keras.Sequential([Summing(), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def drawing() -> Callable[..., dict[str, float]]:
    import tensorflow as tf

    numbers = iter(tf.data.Dataset.range(1000))

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        model.optimizer.learning_rate = 0.1 / (1 + int(next(numbers)))
        losses = [float(model.train_on_batch(batch["features"], batch["label"])) for batch in batches]
        return {"loss": sum(losses), "rows": float(len(losses))}

    return train_fn


def trainer_of(model_fn: Any, train_fn: Any = None) -> KerasTrainer:
    return KerasTrainer(Hooks(model_fn, train_fn=train_fn), columns("tabular"), resources=Resources(device="cpu"))
