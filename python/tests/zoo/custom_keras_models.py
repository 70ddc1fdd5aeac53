"""Keras layers, losses, metrics and models that keep something where no checkpoint looks, and what makes them."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops


def made(*middle, loss="binary_crossentropy", eager=False, jit=False):
    """Traced, but not compiled by XLA too: Keras' default, "auto", is for a few only, as it takes long."""
    model = keras.Sequential([layers.Dense(4), *middle, layers.Dense(1, activation="sigmoid")])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer=optimizer, loss=loss, run_eagerly=eager, jit_compile=jit)
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
        lstm = layers.LSTM(4, stateful=stateful, unroll=True)
        body = [keras.Input((8,), batch_size=8), layers.Reshape((2, 4)), lstm]
        model = keras.Sequential([*body, layers.Dense(1, activation="sigmoid")])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    return model_fn


class TwoOptimizers(keras.Sequential):
    """Has an optimizer of its own beside the compiled one; the step applies both, or only the compiled one."""

    def __init__(self, parts, both):
        super().__init__(parts)
        self.body_opt = keras.optimizers.Adam(0.01)
        self.both = both

    def train_step(self, data):
        if self.both:
            body = self.layers[0].trainable_variables
            self.body_opt.apply([0.1 * ops.ones_like(variable) for variable in body], body)
        return super().train_step(data)


def two_optimizers(both, built=False):
    def model_fn(params):
        model = TwoOptimizers([keras.Input((8,)), layers.Dense(4), layers.Dense(1, activation="sigmoid")], both)
        if built:
            model.body_opt.build(model.layers[0].trainable_variables)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer=optimizer, loss="binary_crossentropy", jit_compile=False)
        return model

    return model_fn


class Nested(keras.Sequential):
    """Trains a part that was compiled by itself, with its optimizer, or does not."""

    def __init__(self, part, used):
        super().__init__([keras.Input((8,)), part, layers.Dense(1, activation="sigmoid")])
        self.used = used

    def train_step(self, data):
        if self.used:
            body = self.layers[0].trainable_variables
            self.layers[0].optimizer.apply([0.1 * ops.ones_like(variable) for variable in body], body)
        return super().train_step(data)


def with_compiled_part(used):
    def model_fn(params):
        part = keras.Sequential([keras.Input((8,)), layers.Dense(4)], name="part")
        part.compile(optimizer="adam", loss="mse")
        model = Nested(part, used)
        model.compile(optimizer="sgd", loss="binary_crossentropy", run_eagerly=not used, jit_compile=False)
        return model

    return model_fn


def known_to_its_model(params):
    """The compiled optimizer has another name in the model too."""
    model = TwoOptimizers([keras.Input((8,)), layers.Dense(4), layers.Dense(1, activation="sigmoid")], False)
    model.compile(optimizer=model.body_opt, loss="binary_crossentropy", run_eagerly=True, jit_compile=False)
    return model


class WithTorch(TwoOptimizers):
    def train_step(self, data):
        logs = super().train_step(data)
        self.body_opt.step()
        return logs


def with_torch_optimizer(params):
    import torch

    model = WithTorch([keras.Input((8,)), layers.Dense(4), layers.Dense(1, activation="sigmoid")], False)
    model.body_opt = torch.optim.Adam([variable.value for variable in model.layers[0].trainable_variables])
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="binary_crossentropy")
    return model


class Collected(keras.metrics.Metric):
    """Collects outputs in a list, as for scikit-learn."""

    def __init__(self):
        super().__init__(name="collected")
        self.outputs = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.outputs.append(ops.stop_gradient(y_pred))

    def reset_state(self):
        self.outputs.clear()

    def result(self):
        return ops.mean(ops.concatenate([ops.reshape(part, (-1,)) for part in self.outputs])) if self.outputs else 0.0


class Around(keras.metrics.Metric):
    """Measures by another metric."""

    def __init__(self, inner):
        super().__init__(name="around")
        self.inner = inner

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.inner.update_state(y_true, y_pred)

    def reset_state(self):
        self.inner.reset_state()

    def result(self):
        return self.inner.result()


class Squares(keras.metrics.Metric):
    """Sums up in variables, and knows its settings from its first update on."""

    def __init__(self):
        super().__init__(name="squares")
        self.total = self.add_variable((), initializer="zeros", name="total")
        self.width = None

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.width = y_pred.shape[-1]
        self.total.assign_add(ops.sum(ops.square(y_pred)))

    def result(self):
        return self.total / self.width


class Rate(keras.metrics.Metric):
    """Shows a setting: it has no state at all."""

    def __init__(self):
        super().__init__(name="rate")

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def result(self):
        return 0.1


def with_metric(make, eager=False, jit=False):
    def model_fn(params):
        model = keras.Sequential([layers.Dense(4), layers.Dense(1, activation="sigmoid")])
        model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=[make()], run_eagerly=eager, jit_compile=jit)
        return model

    return model_fn


def normalized(params):
    body = layers.Normalization()
    body.adapt(np.random.default_rng(0).normal(size=(20, 8)).astype("float32"))
    model = keras.Sequential([body, layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer="sgd", loss="binary_crossentropy", run_eagerly=True, jit_compile=False)
    return model


def dropout():
    return layers.Dropout(0.5)


def plain(params):
    return made()


def untraced(params):
    """For what a `train_fn` does to a model, whichever way the model computes."""
    return made(eager=True)
