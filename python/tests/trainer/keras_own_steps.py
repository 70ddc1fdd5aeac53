"""Keras models with steps of users' own. To import it imports Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.types import Metrics, Unit

X = np.random.default_rng(0).normal(size=(11, 1)).astype("float32")
Y = (X[:, :1] + np.random.default_rng(1).normal(size=(11, 1))).astype("float32")


def squares(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(label - output))


class Plain(keras.Model):  # type: ignore[misc]
    """Returns plain values, as many users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return self.layer(x)

    def train_step(self, data: Any) -> Any:
        return self.test_step(data)

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"loss": squares(y, self(x))}


class Tracked(Plain):
    """Keeps a mean of its own, as Keras' guide does."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self) -> Any:
        return [self.tracker]

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.tracker.update_state(squares(y, self(x)))
        return {"tracked": self.tracker.result()}


class Skipping(Plain):
    """Updates all metrics but the loss, and returns all."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}


class Guided(Plain):
    """Returns all metrics, among them the container of those that were compiled, as Keras' guide does."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(squares(y, self(x)))
            else:
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}


class Renaming(Tracked):
    """Returns its mean by another name, as Keras' example of a variational autoencoder does."""

    def test_step(self, data: Any) -> Any:
        return {"loss": super().test_step(data)["tracked"]}


class Derived(Plain):
    """Returns by the name of a metric what it makes of another's result, which is a mean already."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = keras.metrics.Mean(name="tracked")

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.tracker.update_state(squares(y, self(x)))
        return {"loss": 2 * self.tracker.result()}


class Uncalled(keras.Model):  # type: ignore[misc]
    """Has layers that are built, and no `call`, as Keras' example of a variational autoencoder."""

    def __init__(self, built: bool = True) -> None:
        super().__init__()
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.encoder = keras.Sequential([keras.Input((1,)), layer] if built else [layer])

    def train_step(self, data: Any) -> Any:
        return self.test_step(data)

    def test_step(self, data: Any) -> Any:
        x, y = data
        return {"loss": squares(y, self.encoder(x))}


class Computing(Plain):
    """Has Keras' own step, and metrics of its own."""

    train_step = keras.Model.train_step
    test_step = keras.Model.test_step

    def compute_metrics(self, *args: Any, **named: Any) -> Any:
        return {**super().compute_metrics(*args, **named), "computed": 1.0}


class More(Plain):
    """Returns a value that no metric keeps."""

    def test_step(self, data: Any) -> Any:
        return {**super().test_step(data), "more": 1.0}


def measured(
    kind: Any, size: int, cuts: tuple[int, ...] = (), metrics: Any = ("mae",), loss: Any = "mse"
) -> dict[str, float]:
    """What is measured of a model that gives `X` as it is, in batches of a size and partitions cut at some rows."""

    def model_fn(params: Any) -> Any:
        model = kind()
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss, metrics=list(metrics) or None)
        return model

    columns = Columns({"x": ColumnSpec("float32", (1,))}, {"y": ColumnSpec("float32", (1,))})
    trainer = KerasTrainer(Hooks(model_fn), columns)
    trainer.build("t", {})
    parts: list[Metrics] = []
    for start, stop in zip([0, *cuts], [*cuts, 11], strict=True):
        feed = Feed({"x": X[start:stop], "y": Y[start:stop]}, batch_size=size)
        parts.append(trainer.evaluate(Unit("t", 1, "v", "eval"), feed, parts[-1] if parts else None))
    return trainer.finish(Metrics.merge(parts))


def measured_in_turns(kind: Any) -> list[dict[str, float]]:
    """What is measured of all rows in one batch, from a list of batches and from a feed in turn."""

    def model_fn(params: Any) -> Any:
        model = kind()
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
        return model

    columns = Columns({"x": ColumnSpec("float32", (1,))}, {"y": ColumnSpec("float32", (1,))})
    trainer = KerasTrainer(Hooks(model_fn), columns)
    trainer.build("t", {})
    feed = Feed({"x": X, "y": Y}, batch_size=11)
    unit = Unit("t", 1, "v", "eval")
    return [trainer.finish(trainer.evaluate(unit, given)) for given in (list(feed), feed, list(feed), feed)]


def scalar_error(label: Any, output: Any) -> Any:
    return ops.mean(ops.abs(label - output))


def whole() -> Any:
    """A model with Keras' own steps."""
    return keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
