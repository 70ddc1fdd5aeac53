"""Keras models that keep something where no checkpoint looks, or change themselves: each hops, or is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras_models import SHORT, application
from law import Case as AnyCase
from specimen import arrays


def Case(model_fn, **options):
    return AnyCase(model_fn, framework="keras", **options)


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
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss="mse", run_eagerly=True)


def set_attribute(model):
    model.temperature = 2.0


def same_again(model):
    model.layers[0].trainable = True
    model.layers[1].rate = float("0.5")


def eval_that_trains(model, batches, params):
    return steps(model, batches, params)


def fit(model, batches, params, **options):
    """Let `fit` train, batch after batch."""
    total, rows = 0.0, 0
    for batch in batches:
        history = model.fit(batch["features"], batch["label"], epochs=2, batch_size=8, verbose=0, **options)
        total, rows = total + history.history["loss"][-1] * len(batch["label"]), rows + len(batch["label"])
    return {"loss": total, "rows": rows}


def fit_in_order(model, batches, params):
    return fit(model, batches, params, shuffle=False)


def fit_and_validate(model, batches, params):
    stop = keras.callbacks.EarlyStopping(patience=0, monitor="val_loss")
    return fit(model, batches, params, shuffle=False, validation_split=0.5, callbacks=[stop])


def predict(model, batches, params):
    """Measure by what `predict` returns."""
    total, rows = 0.0, 0
    for batch in batches:
        outputs = model.predict(batch["features"], verbose=0)
        total, rows = total + float(np.abs(outputs[:, 0] - batch["label"]).sum()), rows + len(batch["label"])
    return {"error": total, "rows": rows}


def evaluate(model, batches, params):
    total, rows = 0.0, 0
    for batch in batches:
        loss = model.evaluate(batch["features"], batch["label"], verbose=0)
        total, rows = total + float(loss) * len(batch["label"]), rows + len(batch["label"])
    return {"loss": total, "rows": rows}


def predict_and_train(model, batches, params):
    kept = list(batches)
    return {**steps(model, kept, params), **predict(model, kept, params)}


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


def with_global_optimizer(model, batches, params):
    body = model.layers[0].trainable_variables
    SECOND.apply([0.1 * ops.ones_like(variable) for variable in body], body)
    return steps(model, batches, params)


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


def adapt_again(model):
    model.layers[0].adapt(np.ones((20, 8), "float32"))


def augmenting(batch, params):
    return {**batch, "features": batch["features"] + OWN.normal(size=8).astype("float32")}


OWN = np.random.default_rng(0)
CHANGED: dict[str, Any] = {"params": {"change": True}}


def dropout():
    return layers.Dropout(0.5)


def plain(params):
    return made()


def untraced(params):
    """For what a `train_fn` does to a model, whichever way the model computes."""
    return made(eager=True)


ONE_BATCH: dict[str, Any] = {"batch_size": 16}
"""For functions that call `fit` and its like, each of which makes a data set of its batch: one a unit."""
VARIANT: dict[str, Any] = {"quick": False}


CASES = {
    # What hops.
    "batch norm": Case(with_layer(layers.BatchNormalization, jit="auto")),
    "counting in a weight": Case(with_layer(Counting)),
    "generator": Case(with_layer(Drawing, jit="auto")),
    "recurrent": Case(recurrent(False)),
    "set to the same": Case(with_layer(dropout, eager=True), train_fn=changing(same_again), **CHANGED),
    "evaluation that trains": Case(untraced, eval_fn=eval_that_trains),
    "fit": Case(plain, train_fn=fit_in_order, **ONE_BATCH, **VARIANT),
    "fit, shuffled": Case(plain, train_fn=fit, **ONE_BATCH, **VARIANT),
    "fit with validation": Case(plain, train_fn=fit_and_validate, eval_fn=evaluate, **ONE_BATCH),
    "evaluate": Case(plain, eval_fn=evaluate, **VARIANT),
    "predict": Case(with_layer(layers.BatchNormalization), eval_fn=predict, **ONE_BATCH, **VARIANT),
    "predict while training": Case(with_layer(dropout), train_fn=predict_and_train, eval_fn=predict, **ONE_BATCH),
    "predict eagerly": Case(with_layer(dropout, eager=True), eval_fn=predict, **ONE_BATCH, **VARIANT),
    "second optimizer, never applied": Case(two_optimizers(False), **VARIANT),
    "second optimizer, built and never applied": Case(two_optimizers(False, built=True)),
    "compiled part": Case(with_compiled_part(False)),
    "optimizer of two names": Case(known_to_its_model, **VARIANT),
    "metric in variables": Case(with_metric(Squares, jit="auto")),
    "metric around one of Keras": Case(with_metric(lambda: Around(keras.metrics.MeanSquaredError())), **VARIANT),
    "metric around one in variables": Case(with_metric(lambda: Around(Squares())), **VARIANT),
    "metric without a state": Case(with_metric(Rate, eager=True)),
    "normalized": Case(normalized),
    # What is refused, by name.
    "second optimizer": Case(
        two_optimizers(True),
        refused="`TwoOptimizers.body_opt.*iteration` .*beside the one .*compiled with, and only that",
    ),
    "compiled part, trained by itself": Case(with_compiled_part(True), refused="`Sequential.optimizer.*iteration`"),
    "second optimizer, built": Case(two_optimizers(True, built=True), refused="`TwoOptimizers.body_opt", **VARIANT),
    "metric in a list": Case(with_metric(Collected), refused="`Collected.outputs"),
    "metric in a list, eagerly": Case(with_metric(Collected, eager=True), refused="`Collected.outputs"),
    "metric around one in a list": Case(
        with_metric(lambda: Around(Collected())), refused="`Collected.outputs", **VARIANT
    ),
    "attribute": Case(with_layer(Anneal, jit="auto"), refused="`Anneal.steps` changed from .* use `self.add_weight"),
    "attribute, eagerly": Case(with_layer(Anneal, eager=True), refused="`Anneal.steps` changed from", **VARIANT),
    "hidden variable": Case(with_layer(Hidden), refused="`Box.inside`"),
    "loss attribute": Case(lambda params: made(loss=CountingLoss()), refused="`CountingLoss.calls`"),
    "stateful": Case(recurrent(True), refused=r"'lstm' \(LSTM\) has stateful=True"),
    "dropout's rate": Case(
        with_layer(dropout, eager=True),
        train_fn=changing(set_rate),
        refused="`Dropout.rate` changed from 0.5 to 0.9",
        **CHANGED,
    ),
    "frozen": Case(untraced, train_fn=changing(freeze), refused="trainable|variables", **CHANGED),
    "frozen variable": Case(untraced, train_fn=changing(freeze_variable), refused="dense/kernel", **CHANGED, **VARIANT),
    "activation": Case(
        untraced, train_fn=changing(swap_activation), refused="`Dense.activation`", **CHANGED, **VARIANT
    ),
    "compiled again": Case(
        untraced, train_fn=changing(compile_again), refused="`optimizer`|`Sequential.loss`", **CHANGED
    ),
    "new attribute": Case(
        untraced, train_fn=changing(set_attribute), refused="`Sequential.temperature` changed from .nothing", **CHANGED
    ),
    "global generator": Case(untraced, input_fn=augmenting, refused="OWN"),
}
if keras.backend.backend() == "tensorflow":
    CASES["symbols"] = Case(with_layer(Symbols))
    CASES["variable of TensorFlow's own"] = Case(with_layer(Beside), refused=r"`Beside.holder\[0\]`")
    # On PyTorch the layer computes with views of its variables, which hop.
    CASES["adapted while training"] = Case(
        normalized, train_fn=changing(adapt_again), refused="`Normalization.mean` changed", **CHANGED
    )
else:
    # TensorFlow would begin its threads here. The next trainer of this process gets an optimizer that was applied to
    # the variables of the first one: hence no rehearsal.
    SECOND = keras.optimizers.Adam(0.01)
    refusal = "`with_global_optimizer.*SECOND.*iteration.* changed from variable.0. to variable.1."
    CASES["application"] = Case(
        application("mobilenet.MobileNet", 32, SHORT["mobilenet.MobileNet"]),
        rows=partial(arrays, "pixels-32"),
        inputs=("pixels",),
        params={"lr": 0.1},
        other={"lr": 0.2},
    )
    CASES["global optimizer"] = Case(plain, train_fn=with_global_optimizer, refused=refusal, late=True)
    CASES["optimizer of PyTorch"] = Case(with_torch_optimizer, refused="`WithTorch.body_opt.state")
