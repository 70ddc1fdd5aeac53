"""Keras models that keep something where no checkpoint looks, or change themselves: each hops, or is refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops
from law import Case as AnyCase


def Case(model_fn, **options):
    return AnyCase(model_fn, framework="keras", **options)


def made(*middle, loss="binary_crossentropy", eager=False):
    model = keras.Sequential([layers.Dense(4), *middle, layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, run_eagerly=eager)
    return model


def with_layer(make, **options):
    return lambda params: made(make(), **options)


class Counting(layers.Layer):
    """Counts its calls in a weight, in evaluations too."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        self.seen.assign_add(1.0)
        return x / (1 + self.seen)


class Drawing(layers.Layer):
    """Draws from a generator that Keras knows of."""

    def __init__(self):
        super().__init__()
        self.noise = keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        return x + keras.random.normal(ops.shape(x), seed=self.noise) if training else x


class Anneal(layers.Layer):
    """Counts its steps in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def call(self, x, training=False):
        self.steps += 1
        return x / self.steps


class Symbols(layers.Layer):
    """Keeps what it was last called with, a symbol of the graph."""

    def call(self, x):
        self.last = x
        return x * 1.0


class Beside(layers.Layer):
    """Counts in a variable of TensorFlow's own, which Keras does not know of."""

    def __init__(self):
        super().__init__()
        import tensorflow as tf

        self.holder = [tf.Variable(0.0, trainable=False)]

    def call(self, x, training=False):
        if training:
            self.holder[0].assign_add(1.0)
        return x / (1 + self.holder[0])


class Hidden(layers.Layer):
    """Counts in a Keras variable that it keeps from Keras."""

    def __init__(self):
        super().__init__()
        self.holder = Box(keras.Variable(0.0, trainable=False))

    def call(self, x):
        self.holder.inside.assign_add(1.0)
        return x / (1 + self.holder.inside)


class Box:
    def __init__(self, inside):
        self.inside = inside


class CountingLoss(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, y_true, y_pred):
        self.calls += 1
        return ops.square(y_pred[:, 0] - y_true)


def recurrent(stateful):
    def model_fn(params):
        body = [keras.Input((8,), batch_size=8), layers.Reshape((2, 4)), layers.LSTM(4, stateful=stateful)]
        model = keras.Sequential([*body, layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "mse")
        return model

    return model_fn


def steps(model, batches, params):
    total, rows = 0.0, 0
    for batch in batches:
        loss = model.train_on_batch(batch["features"], batch["label"])
        model.reset_metrics()
        total, rows = total + float(np.asarray(loss).reshape(-1)[0]) * len(batch["label"]), rows + len(batch["label"])
    return {"loss": total, "rows": rows}


def changing(change):
    def train_fn(model, batches, params):
        if params.get("change"):
            change(model)
        return steps(model, batches, params)

    return train_fn


def set_rate(model):
    model.layers[1].rate = 0.9


def freeze(model):
    model.layers[0].trainable = False


def freeze_variable(model):
    model.layers[0].kernel.trainable = False


def swap_activation(model):
    model.layers[0].activation = keras.activations.tanh


def compile_again(model):
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse")


def set_attribute(model):
    model.temperature = 2.0


def same_again(model):
    model.layers[0].trainable = True
    model.layers[1].rate = float("0.5")


def eval_that_trains(model, batches, params):
    return steps(model, batches, params)


def augmenting(batch, params):
    return {**batch, "features": batch["features"] + OWN.normal(size=8).astype("float32")}


OWN = np.random.default_rng(0)
CHANGED: dict[str, Any] = {"params": {"change": True}}


def dropout():
    return layers.Dropout(0.5)


def plain(params):
    return made()


CASES = {
    # What hops.
    "batch norm": Case(with_layer(layers.BatchNormalization)),
    "counting in a weight": Case(with_layer(Counting)),
    "generator": Case(with_layer(Drawing)),
    "recurrent": Case(recurrent(False)),
    "set to the same": Case(with_layer(dropout), train_fn=changing(same_again), **CHANGED),
    "evaluation that trains": Case(plain, eval_fn=eval_that_trains),
    # What is refused, by name.
    "attribute": Case(with_layer(Anneal), refused="`Anneal.steps` changed from .* use `self.add_weight"),
    "attribute, eagerly": Case(with_layer(Anneal, eager=True), refused="`Anneal.steps` changed from"),
    "hidden variable": Case(with_layer(Hidden), refused="`Box.inside`"),
    "loss attribute": Case(lambda params: made(loss=CountingLoss()), refused="`CountingLoss.calls`"),
    "stateful": Case(recurrent(True), refused=r"'lstm' \(LSTM\) has stateful=True"),
    "dropout's rate": Case(
        with_layer(dropout), train_fn=changing(set_rate), refused="`Dropout.rate` changed from 0.5 to 0.9", **CHANGED
    ),
    "frozen": Case(plain, train_fn=changing(freeze), refused="trainable|variables", **CHANGED),
    "frozen variable": Case(plain, train_fn=changing(freeze_variable), refused="dense/kernel", **CHANGED),
    "activation": Case(plain, train_fn=changing(swap_activation), refused="`Dense.activation`", **CHANGED),
    "compiled again": Case(plain, train_fn=changing(compile_again), refused="`optimizer`|`Sequential.loss`", **CHANGED),
    "new attribute": Case(
        plain, train_fn=changing(set_attribute), refused="`Sequential.temperature` changed from .nothing", **CHANGED
    ),
    "global generator": Case(plain, input_fn=augmenting, refused="OWN"),
}
if keras.backend.backend() == "tensorflow":
    CASES["symbols"] = Case(with_layer(Symbols))
    CASES["variable of TensorFlow's own"] = Case(with_layer(Beside), refused=r"`Beside.holder\[0\]`")
