"""Keras models whose labels, or random numbers, are tried. To import it imports Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources
from cerebro_spark.trainer.keras.trainer import KerasTrainer

ROWS = 96


class Noise(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Adds what `draw` gives."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)
        self.draw = draw

    def call(self, x: Any) -> Any:
        return x + self.draw(self, tf.shape(x))


def by_global_generator(layer: Any, shape: Any) -> Any:
    return tf.random.get_global_generator().normal(shape)


def in_a_branch(layer: Any, shape: Any) -> Any:
    return tf.cond(shape[0] > 1, lambda: tf.random.uniform(shape), lambda: tf.zeros(shape))


def in_a_function(layer: Any, shape: Any) -> Any:
    return tf.function(lambda: tf.random.truncated_normal(shape))()


DRAWS: dict[str, Any] = {
    "normal": lambda layer, shape: tf.random.normal(shape),
    "dropout": lambda layer, shape: tf.nn.dropout(tf.ones(shape), 0.5),
    "shuffle": lambda layer, shape: tf.random.shuffle(tf.ones(shape)),
    "global generator": by_global_generator,
    "branch": in_a_branch,
    "function": in_a_function,
    "keras": lambda layer, shape: keras.random.normal(shape, seed=layer.seed_generator),
    "stateless": lambda layer, shape: tf.random.stateless_normal(shape, [1, 2]),
}


def feed_of(labels: Any, names: tuple[str, ...] = ("y",)) -> Feed:
    rows = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return Feed({"x": rows, **{name: np.asarray(labels).copy() for name in names}}, batch_size=32, key="p")


def trainer_of(model_fn: Any, labels: Any, names: tuple[str, ...] = ("y",)) -> KerasTrainer:
    spec = ColumnSpec(str(np.asarray(labels).dtype), np.asarray(labels).shape[1:])
    columns = Columns({"x": ColumnSpec("float32", (4,))}, dict.fromkeys(names, spec))
    trainer = KerasTrainer(Hooks(model_fn), columns, resources=Resources(device="cpu"))
    trainer.build("t", {})
    return trainer


def predicting(loss: Any, outputs: int, labels: Any) -> KerasTrainer:
    """A trainer of a small model with this loss."""

    def model_fn(params: Any) -> Any:
        activation = "sigmoid" if outputs == 1 else "softmax"
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(outputs, activation=activation)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
        return model

    return trainer_of(model_fn, labels)


def with_two_outputs(labels: Any) -> KerasTrainer:
    """A trainer of a model whose second output is that of two classes."""

    def model_fn(params: Any) -> Any:
        given = keras.Input((4,))
        outputs = {name: keras.layers.Dense(1, name=name, activation="sigmoid")(given) for name in ("size", "sold")}
        model = keras.Model(given, outputs)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss={"size": "mse", "sold": "binary_crossentropy"})
        return model

    return trainer_of(model_fn, labels, ("size", "sold"))


def drawing(kind: str, eagerly: bool = False) -> KerasTrainer:
    """A trainer of a model with noise."""

    def model_fn(params: Any) -> Any:
        model = keras.Sequential([keras.Input((4,)), Noise(DRAWS[kind]), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", run_eagerly=eagerly)
        return model

    return trainer_of(model_fn, np.zeros(ROWS, "float32"))
