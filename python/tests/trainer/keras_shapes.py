"""A Keras model measured by losses and metrics of users' own. To import it imports Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks
from cerebro_spark.trainer.keras.shapes import fit_labels
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.types import Unit

X = np.random.default_rng(0).normal(size=(11, 1)).astype("float32")
Y = (X[:, 0] + np.random.default_rng(1).normal(size=11) > 0).astype("float32")


def measured(loss: Any, metric: Any, y: Any = Y, shape: tuple[int, ...] = (1,)) -> dict[str, float]:
    """What is measured of a model that gives `X` as it is, in a shape of its own."""

    def model_fn(params: Any) -> Any:
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), keras.layers.Reshape(shape)]
        model = keras.Sequential(layers)
        parts = [part() if isinstance(part, type) else part for part in (loss, metric)]
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=parts[0], metrics=[parts[1]])
        return model

    columns = Columns({"x": ColumnSpec("float32", (1,))}, {"y": ColumnSpec("float32", y.shape[1:])})
    trainer = KerasTrainer(Hooks(model_fn), columns)
    trainer.build("t", {})
    return trainer.finish(trainer.evaluate(Unit("t", 1, "v", "eval"), Feed({"x": X, "y": y}, batch_size=4)))


def compared(label: Any, output: Any) -> Any:
    return ops.cast((output > 0) == (label > 0), "float32")


def averaged(label: Any, output: Any) -> Any:
    return ops.mean(compared(label, output), -1)


def squeezed(label: Any, output: Any) -> Any:
    return compared(ops.reshape(label, (-1,)), ops.reshape(output, (-1,)))


def squeezing_outputs(label: Any, output: Any) -> Any:
    return compared(label, ops.squeeze(output, -1))


class Hits(keras.metrics.Metric):  # type: ignore[misc]
    """A metric of a user's own."""

    def __init__(self, name: str = "hits") -> None:
        super().__init__(name=name)
        self.hits = self.add_weight(shape=(), initializer="zeros", name="hits")
        self.rows = self.add_weight(shape=(), initializer="zeros", name="rows")

    def update_state(self, label: Any, output: Any, sample_weight: Any = None) -> None:
        found = compared(label, output)
        self.hits.assign_add(ops.sum(found))
        self.rows.assign_add(ops.cast(ops.size(found), "float32"))

    def result(self) -> Any:
        return self.hits / self.rows


class Noting(Hits):
    """Notes its updates in attributes."""

    def __init__(self, name: str = "noting") -> None:
        super().__init__(name=name)
        self.notes: list[Any] = []
        self.last: Any = None

    def update_state(self, label: Any, output: Any, sample_weight: Any = None) -> None:
        super().update_state(label, output)
        self.notes.append(label)
        self.last = label


def checked(metric: Any) -> Any:
    """The metric, once it was updated with a label for which the shape must be found first."""
    fit_labels(keras.Sequential(), {metric.name: metric})
    metric.update_state(ops.convert_to_tensor(Y), ops.convert_to_tensor(X))
    return metric


def root(label: Any, output: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(label - output)))


class Squares(keras.losses.Loss):  # type: ignore[misc]
    """A loss of a user's own."""

    def call(self, label: Any, output: Any) -> Any:
        return ops.mean(ops.square(label - output), -1) if len(output.shape) > 1 else ops.square(label - output)


def squares(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(label - output))


def squeezing_labels(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(ops.squeeze(label, -1) - output))


def one_column(label: Any, output: Any) -> Any:
    return ops.mean(ops.abs(label[:, 0] - output))


def made_column(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(label[:, None] - output))


def moments(label: Any, output: Any) -> Any:
    return ops.square(ops.mean(label) - ops.mean(output))


def masked(sequences: bool) -> Any:
    """A model of padded sequences, with an output for each of their items, or one for all."""
    inputs = keras.Input((None,))
    items = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.LSTM(4, return_sequences=sequences)(items)))
    model.compile(loss="mse")
    return model


PAIRS = np.random.default_rng(2).normal(size=(11, 2)).astype("float32")


def measured_pairs(loss: Any, metric: Any, y: Any) -> dict[str, float]:
    """What is measured of a model that gives both columns of `PAIRS` as they are."""

    def model_fn(params: Any) -> Any:
        model = keras.Sequential([keras.layers.Dense(2, use_bias=False, kernel_initializer="identity")])
        parts = [part() if isinstance(part, type) else part for part in (loss, metric)]
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=parts[0], metrics=[parts[1]] if parts[1] else [])
        return model

    columns = Columns({"x": ColumnSpec("float32", (2,))}, {"y": ColumnSpec(str(y.dtype), y.shape[1:])})
    trainer = KerasTrainer(Hooks(model_fn), columns)
    trainer.build("t", {})
    return trainer.finish(trainer.evaluate(Unit("t", 1, "v", "eval"), Feed({"x": PAIRS, "y": y}, batch_size=4)))


def gaussian(label: Any, output: Any) -> Any:
    """The loss of a mean and a logarithm of a variance."""
    return 0.5 * (output[:, 1] + ops.square(label - output[:, 0]) / ops.exp(output[:, 1]))


class Gaussian(keras.losses.Loss):  # type: ignore[misc]
    """The same as a class."""

    def call(self, label: Any, output: Any) -> Any:
        return gaussian(label, output)


def chosen(label: Any, output: Any) -> Any:
    return ops.cast(ops.equal(ops.argmax(output, -1), ops.cast(label, "int64")), "float32")


class Chosen(Hits):
    """The share of rows whose greater column the label names, as a metric with a state."""

    def update_state(self, label: Any, output: Any, sample_weight: Any = None) -> None:
        right = chosen(label, output)
        self.hits.assign_add(ops.sum(right))
        self.rows.assign_add(ops.cast(ops.size(right), "float32"))


def of_pairs(label: Any, output: Any) -> Any:
    return ops.square(output - ops.transpose(output))
