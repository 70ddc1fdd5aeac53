"""Keras models that groups train exactly, and some that they must not, each as a `model_fn`. It imports Keras.

They run on TensorFlow, and most of them on PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops, optimizers
from keras.optimizers import schedules

ModelFn = Callable[[Any], Any]


def make(model: Callable[[], Any], optimizer: Any = None, loss: Any = "binary_crossentropy", **more: Any) -> ModelFn:
    """Return a `model_fn`; it trains by SGD unless another `optimizer` is given."""

    def model_fn(params: Any) -> Any:
        built = model()
        metrics = {name: [made() for made in makes] for name, makes in more.items() if name.endswith("metrics")}
        chosen = loss() if isinstance(loss, type) else loss
        built.compile(optimizer() if optimizer else optimizers.SGD(0.1), loss=chosen, **{**more, **metrics})
        return built

    return model_fn


def mlp(*middle: Callable[[], Any], out: int = 1, activation: Any = "sigmoid") -> Callable[[], Any]:
    def model() -> Any:
        first, last = layers.Dense(16, activation="tanh"), layers.Dense(out, activation=activation)
        return keras.Sequential([first, *(each() for each in middle), last])

    return model


def over_tokens(*parts: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes a model of six tokens."""
    return lambda: keras.Sequential([*(part() for part in parts), layers.Dense(1, activation="sigmoid")])


def embedding() -> Any:
    return layers.Embedding(20, 6)


def several() -> Any:
    wide, deep = keras.Input((5,), name="wide"), keras.Input((3,), name="deep")
    x = layers.Dense(8, activation="relu")(layers.Concatenate()([wide, deep]))
    click = layers.Dense(1, activation="sigmoid", name="click")(x)
    return keras.Model([wide, deep], {"click": click, "price": layers.Dense(1, name="price")(x)})


def cnn() -> Any:
    parts = [layers.Permute((2, 3, 1)), layers.Conv2D(4, 3), layers.GroupNormalization(2), layers.ReLU()]
    return keras.Sequential([*parts, layers.Flatten(), layers.Dense(3, activation="softmax")])


def frozen(layer: Any) -> Any:
    layer.trainable = False
    return layer


class Added(layers.Layer):  # type: ignore[misc]
    """Adds a loss, by what its inputs are."""

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.loss = loss

    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(self.loss(x, training))
        return x


class Counting(layers.Layer):  # type: ignore[misc]
    """Has a number that goes by steps."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(1.0)
        return x * (1 + 1e-2 * self.seen)


class Unused(layers.Layer):  # type: ignore[misc]
    """Has a weight without a gradient."""

    def build(self, shape: Any) -> None:
        self.idle = self.add_weight(shape=(3,), name="idle")

    def call(self, x: Any) -> Any:
        return x


class OwnLoss(keras.Sequential):  # type: ignore[misc]
    """Computes its loss itself."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        error = ops.reshape(y_pred, (-1,)) - ops.cast(y, y_pred.dtype)
        return ops.mean(ops.abs(error) * (1 + ops.abs(x[:, 0])))


def own_loss(*middle: Any, kind: Any = OwnLoss) -> Any:
    return kind([layers.Dense(16, activation="tanh"), *middle, layers.Dense(1)])


def fine_tuned() -> Any:
    return own_loss(frozen(layers.Dense(8)), frozen(layers.BatchNormalization()))


class Centred(optimizers.SGD):  # type: ignore[misc]
    """Makes gradients smaller, by how large those of all rows are."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        pairs = [(gradient / (0.1 + ops.norm(gradient)), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs)


def decaying() -> Any:
    rate = schedules.ExponentialDecay(0.1, 3, 0.9)
    return optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=0.01, global_clipnorm=0.05)


def averaging() -> Any:
    return optimizers.SGD(0.1, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=4)


def squares(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(ops.reshape(output, (-1,)) - ops.reshape(ops.cast(label, output.dtype), (-1,))))


def auc() -> Any:
    return keras.metrics.AUC(num_thresholds=20, name="auc")


def accuracy() -> Any:
    return keras.metrics.BinaryAccuracy(name="accuracy")


def penalized() -> Any:
    first = layers.Dense(16, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")
    added = Added(lambda x, training: 0.1 * ops.mean(ops.square(x)))
    return keras.Sequential([first, added, layers.Dense(1, kernel_constraint="max_norm", activation="sigmoid")])


def paced() -> Any:
    normalized = layers.SpectralNormalization(layers.Dense(16))
    return keras.Sequential([keras.Input((8,)), normalized, Counting(), layers.Dense(1, activation="sigmoid")])


def in_float64() -> Any:
    parts = [layers.Dense(16, activation="tanh", dtype="float64"), layers.Dense(1, dtype="float64")]
    return keras.Sequential([keras.Input((8,)), *parts])


EXACT = {
    "sgd": ("tabular", make(mlp(), metrics=[accuracy, auc, keras.metrics.Precision])),
    "decaying": ("tabular", make(mlp(), decaying)),
    "adam_decoupled": ("tabular", make(mlp(), lambda: optimizers.AdamW(0.01, clipnorm=0.02))),
    "clip_value": ("tabular", make(mlp(Unused), lambda: optimizers.SGD(0.1, clipvalue=0.005), squares)),
    "penalized": ("tabular", make(penalized, averaging)),
    "weighted": ("weighted", make(mlp(), weighted_metrics=[accuracy])),
    "several": (
        "several",
        make(several, loss={"click": "binary_crossentropy", "price": "mse"}, loss_weights={"click": 1.0, "price": 0.5}),
    ),
    "cnn": ("images", make(cnn, loss="sparse_categorical_crossentropy")),
    "adam_rows": ("tokens", make(over_tokens(embedding, layers.Flatten), lambda: optimizers.Adam(0.01, clipnorm=0.1))),
    "own_loss": ("tabular", make(fine_tuned, loss=None)),
    "paced": ("tabular", make(paced)),
    "own_optimizer": ("tabular", make(in_float64, lambda: Centred(0.1), "mse")),
}
OTHERS = {
    "compiled": ("tabular", make(mlp(), jit_compile=True)),
    "drawing": ("tabular", make(mlp(lambda: layers.Dropout(0.5), lambda: Noise()))),
    "float16": ("tabular", make(lambda: in_policy("mixed_float16"))),
    "bfloat16": ("tabular", make(lambda: in_policy("bfloat16"))),
    "noisy": ("tabular", make(mlp(), lambda: Drifting(0.1))),
    "counting": ("tabular", make(mlp(), loss=lambda label, output: of_labels_that_count(label, output))),
    "root": ("tabular", make(mlp(), loss=lambda label, output: root(label, output))),
}


class Noise(layers.Layer):  # type: ignore[misc]
    """Draws from the default generator, which no variable of the model shows."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.1 * keras.random.normal(ops.shape(x)) if training else x


def in_policy(name: str) -> Any:
    keras.config.set_dtype_policy(name)  # with mixed_float16, Keras scales the loss
    return mlp()()


class Drifting(optimizers.SGD):  # type: ignore[misc]
    """An optimizer that adds noise, another at each member."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = 1e-3 * keras.random.normal(variable.shape)
        super().update_step(gradient + noise, variable, learning_rate)


# What no group trains.


class Standardized(layers.Layer):  # type: ignore[misc]
    """Takes the mean of a batch without being a BatchNormalization; while training only, or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def call(self, x: Any, training: bool = False) -> Any:
        return x - ops.mean(x, axis=0) if self.always or training else x


class Remembering(layers.Layer):  # type: ignore[misc]
    """Keeps a mean of its batches, which changes no output."""

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="seen")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign(0.9 * self.seen + 0.1 * ops.mean(x, axis=0))
        return x


class Clipping(layers.Layer):  # type: ignore[misc]
    """Changes gradients on their way, by how large those of all rows are."""

    def call(self, x: Any) -> Any:
        return clipped(x)


@ops.custom_gradient  # type: ignore[untyped-decorator]
def clipped(x: Any) -> Any:
    def gradient(*given: Any, upstream: Any = None) -> Any:
        up = given[0] if given else upstream
        return up / (1e-6 + ops.norm(up))

    return ops.add(x, 0.0), gradient


class Masking(layers.Layer):  # type: ignore[misc]
    """Takes the mean of what is not masked, and masks rows of which nothing is left."""

    supports_masking = True

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return None if mask is None else ops.any(mask, axis=1)

    def call(self, x: Any) -> Any:
        return ops.mean(x, axis=1)


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """A metric that can only be updated."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.largest = self.add_variable((), initializer="zeros", name="largest")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))

    def result(self) -> Any:
        return self.largest + 0.0


class OwnStep(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class OwnMetrics(keras.Sequential):  # type: ignore[misc]
    def compute_metrics(self, *given: Any, **named: Any) -> Any:
        return super().compute_metrics(*given, **named)


class LossByTraining(keras.Sequential):  # type: ignore[misc]
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        error = ops.square(ops.reshape(y_pred, (-1,)) - ops.cast(y, y_pred.dtype))
        return ops.sum(error) if training else ops.mean(error)


def by_class(label: Any, output: Any) -> Any:
    weight = 1.0 + 5.0 * ops.reshape(ops.cast(label, output.dtype), (-1,))
    error = ops.square(ops.reshape(output, (-1,)) - ops.reshape(ops.cast(label, output.dtype), (-1,)))
    return ops.sum(weight * error) / ops.sum(weight)


def of_labels_that_count(label: Any, output: Any) -> Any:
    """The mean over rows whose label is not -1."""
    given, output = ops.reshape(ops.cast(label, output.dtype), (-1,)), ops.reshape(output, (-1,))
    counts = ops.cast(given >= 0, output.dtype)
    return ops.sum(counts * ops.square(output - given)) / ops.sum(counts)


def root(label: Any, output: Any) -> Any:
    return ops.sqrt(squares(label, output))


def slightly_contrastive(label: Any, output: Any) -> Any:
    return squares(label, output) - 1e-2 * ops.var(output)


def ranked(label: Any, output: Any) -> Any:
    """A metric whose value of a row depends on the other rows."""
    return ops.mean(ops.cast(ops.argsort(ops.argsort(output, axis=0), axis=0), "float32") ** 2, axis=-1)


def jitter(batch: Any, params: Any) -> Any:
    return {**batch, "features": batch["features"] + np.random.normal(size=batch["features"].shape).astype("float32")}


def own_loop(model: Any, batches: Any, params: Any) -> Any:
    return {"loss": 0.0, "rows": sum(len(batch["label"]) for batch in batches)}


def reduced(reduction: Any) -> Any:
    return lambda: keras.losses.BinaryCrossentropy(reduction=reduction)


def with_loss(loss: Callable[[], Any], kind: str = "tabular", out: int = 1) -> tuple[str, ModelFn, dict[str, Any]]:
    """Return a case with a loss that must be made anew for each model."""
    return kind, lambda params: make(mlp(out=out), loss=loss())(params), {}


REFUSED = {
    "slightly_contrastive": ("tabular", make(mlp(), loss=slightly_contrastive), {}, "its loss is no mean over rows"),
    "train_fn": ("tabular", make(mlp()), {"train_fn": own_loop}, "its train_fn takes the steps"),
    "train_step": ("tabular", make(lambda: own_loss(kind=OwnStep)), {}, "it has a train_step of its own"),
    "compute_metrics": ("tabular", make(lambda: own_loss(kind=OwnMetrics)), {}, "it has a compute_metrics of its own"),
    "eager": ("tabular", make(mlp(), run_eagerly=True), {}, "it is compiled with run_eagerly=True"),
    "series": ("tabular", make(mlp(), metrics=[Largest]), {}, "its metric 'largest' has no state that adds up"),
    "ranked": (
        "onehot",
        make(mlp(out=3, activation="softmax"), loss="categorical_crossentropy", metrics=[lambda: ranked]),
        {},
        "its metric 'ranked' does not add up",
    ),
    "batchnorm": (
        "tabular",
        make(mlp(layers.BatchNormalization)),
        {},
        "its BatchNormalization 'batch_normalization' takes the statistics of a batch",
    ),
    "noise_shape": (
        "tabular",
        make(mlp(lambda: layers.Dropout(0.5, noise_shape=(1, 16)))),
        {},
        "its Dropout 'dropout' drops the same units of all rows of a batch",
    ),
    "sum": (*with_loss(reduced("sum")), "its loss BinaryCrossentropy has reduction='sum', which is no mean over rows"),
    "by_weights": (
        *with_loss(reduced("mean_with_sample_weight"), "weighted"),
        "its loss BinaryCrossentropy is divided by the sum of the sample weights",
    ),
    "ignore_class": (
        *with_loss(lambda: keras.losses.SparseCategoricalCrossentropy(ignore_class=2), "classes", out=3),
        "its loss SparseCategoricalCrossentropy leaves rows out (ignore_class)",
    ),
    "dice": (*with_loss(lambda: keras.losses.Dice(), "onehot", out=3), "its loss is no mean over rows"),
    "by_class": ("tabular", make(mlp(), loss=by_class), {}, "its loss is no mean over rows"),
    "masked": (
        "tokens",
        make(over_tokens(lambda: layers.Embedding(20, 6, mask_zero=True), Masking)),
        {},
        "its outputs have a mask, by which the loss of a batch is divided",
    ),
    "outputs": ("tabular", make(mlp(lambda: Standardized(True))), {}, "what its model gives for a row depends on"),
    "training": (
        "tabular",
        make(mlp(lambda: Standardized(False))),
        {},
        "what its model gives for a row while training depends on the other rows of the batch",
    ),
    "statistic": ("tabular", make(mlp(Remembering)), {}, "it keeps a statistic of its batches, 'sequential/rem"),
    "added_sum": (
        "tabular",
        make(mlp(lambda: Added(lambda x, training: 1e-6 * ops.sum(ops.square(x))))),
        {},
        "a loss that it adds is no mean over rows",
    ),
    "added_in_training": (
        "tabular",
        make(mlp(lambda: Added(lambda x, training: ops.sum(ops.square(x)) if training else ops.mean(x)))),
        {},
        "a loss that it adds is no mean over rows",
    ),
    "added_by_chance": (
        "tabular",
        make(mlp(lambda: layers.Dropout(0.5), lambda: Added(lambda x, training: ops.mean(x)))),
        {},
        "its Added 'added' adds a loss (add_loss), which cannot be tried on parts",
    ),
    "loss_by_chance": (
        "tabular",
        make(lambda: own_loss(layers.Dropout(0.5), kind=LossByTraining), loss=None),
        {},
        "its compute_loss has an argument `training`, and cannot be tried",
    ),
    "loss_by_training": ("tabular", make(lambda: own_loss(kind=LossByTraining), loss=None), {}, "its loss is no mean"),
    "random_input": ("tabular", make(mlp()), {"input_fn": jitter}, "its input_fn draws random numbers"),
    "clips_inside": ("tabular", make(mlp(Clipping)), {}, "the gradient of a batch is not that of its parts"),
}
