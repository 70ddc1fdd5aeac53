"""The Keras models that the law is checked on: one `model_fn` a case. They run on TensorFlow and on PyTorch."""

from __future__ import annotations

from functools import partial

import keras
import numpy as np
from keras import layers, ops, optimizers
from keras.optimizers import schedules
from trainer_data import Case


def compiled(model, optimizer=None, loss="binary_crossentropy", **options):
    model.compile(optimizer=optimizer or keras.optimizers.Adam(0.01), loss=loss, **options)
    return model


def mlp(*middle, out=1, activation="sigmoid"):
    return keras.Sequential([layers.Dense(16, activation="relu"), *middle, layers.Dense(out, activation=activation)])


def with_optimizer(make):
    return lambda params: compiled(mlp(), make(), metrics=["accuracy"])


def with_layers(*makes, **options):
    return lambda params: compiled(mlp(*[make() for make in makes]), **options)


@keras.saving.register_keras_serializable("tests")
class Noise(layers.Layer):
    """Draws from the default generator, which no variable of the model shows."""

    def call(self, x, training=False):
        return x + 0.1 * keras.random.normal(ops.shape(x)) if training else x


@keras.saving.register_keras_serializable("tests")
class Scaled(layers.Layer):
    """A custom layer with a weight of its own and a state that changes as it trains."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(1.0)
        return x * self.scale * (1 + 1e-3 * self.seen)


def focal(y_true, y_pred):
    return ops.mean(keras.losses.binary_crossentropy(y_true, y_pred) ** 1.5)


def cnn(params):
    inputs = keras.Input((1, 8, 8), name="image")
    x = layers.Permute((2, 3, 1))(inputs)
    x = layers.Conv2D(4, 3, activation="relu")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.2)(layers.Flatten()(layers.MaxPooling2D()(x)))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
    return compiled(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"])


def lstm(params):
    head = [layers.LSTM(8), layers.Dense(1, activation="sigmoid")]
    return compiled(keras.Sequential([layers.Embedding(20, 6), *head]))


def attention(params):
    inputs = keras.Input((6,), dtype="int64")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    x = layers.GlobalAveragePooling1D()(x)
    return compiled(keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x)))


def several(params):
    wide, deep = keras.Input((5,), name="wide"), keras.Input((3,), name="deep")
    x = layers.Dense(8, activation="relu")(layers.Concatenate()([wide, deep]))
    click = layers.Dense(1, activation="sigmoid", name="click")(x)
    price = layers.Dense(1, name="price")(x)
    model = keras.Model([wide, deep], {"click": click, "price": price})
    losses = {"click": "binary_crossentropy", "price": "mse"}
    metrics = {"click": [keras.metrics.AUC(name="auc")], "price": ["mae"]}
    return compiled(model, loss=losses, loss_weights={"click": 1.0, "price": 0.5}, metrics=metrics)


def in_dtype(dtype):
    def model_fn(params):
        model = keras.Sequential([layers.Dense(16, activation="tanh", dtype=dtype), layers.Dense(1, dtype=dtype)])
        return compiled(model, keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")

    return model_fn


def mixed_float16(params):
    keras.config.set_dtype_policy("mixed_float16")
    return compiled(mlp(layers.Dropout(0.2)))


def jitter(batch, params):
    return {**batch, "features": batch["features"] + np.random.normal(size=batch["features"].shape).astype("float32")}


def own_loop(model, batches, params):
    total, rows = 0.0, 0
    for batch in batches:
        loss = model.train_on_batch(batch["features"], batch["label"])
        model.reset_metrics()
        total, rows = total + float(np.asarray(loss).reshape(-1)[0]) * len(batch["label"]), rows + len(batch["label"])
    return {"loss": total, "rows": rows}


def clearing(params):
    keras.backend.clear_session()
    return with_layers(Noise)(params)


def three_classes(loss):
    return lambda params: compiled(mlp(out=3, activation="softmax"), loss=loss, metrics=["accuracy"])


CASES = {
    "dropout": Case(with_layers(lambda: layers.Dropout(0.5))),
    "sgd_momentum": Case(with_optimizer(lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True))),
    "adam": Case(with_optimizer(lambda: optimizers.Adam(0.01))),
    "adamw": Case(with_optimizer(lambda: optimizers.AdamW(0.01, weight_decay=0.1))),
    "adam_accumulating": Case(with_optimizer(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=4))),
    "rmsprop": Case(with_optimizer(lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True))),
    "gaussian": Case(with_layers(lambda: layers.GaussianNoise(0.2), lambda: layers.AlphaDropout(0.1))),
    "noise": Case(with_layers(Noise)),
    "clear_session": Case(clearing),
    "batchnorm": Case(with_layers(layers.BatchNormalization)),
    "schedule_batch": Case(with_optimizer(lambda: optimizers.SGD(schedules.ExponentialDecay(0.1, 1, 0.9)))),
    "schedule_cosine": Case(with_optimizer(lambda: optimizers.Adam(schedules.CosineDecay(0.1, 20, warmup_steps=5)))),
    "clip_norm": Case(with_optimizer(lambda: optimizers.Adam(0.01, global_clipnorm=0.01))),
    "clip_value": Case(with_optimizer(lambda: optimizers.SGD(0.1, clipvalue=0.001))),
    "several": Case(several, "several"),
    "cnn": Case(cnn, "images"),
    "lstm": Case(lstm, "tokens"),
    "attention": Case(attention, "tokens"),
    "custom": Case(with_layers(Scaled, loss=focal)),
    "float16": Case(in_dtype("float16")),
    "bfloat16": Case(in_dtype("bfloat16")),
    "mixed": Case(with_layers(lambda: layers.Dropout(0.2)), precision="bfloat16"),
    "loss_scale": Case(mixed_float16),
    "weighted": Case(with_layers(weighted_metrics=["accuracy"]), "weighted"),
    "classes": Case(three_classes("sparse_categorical_crossentropy"), "classes"),
    "onehot": Case(three_classes("categorical_crossentropy"), "onehot"),
    "input_fn": Case(with_layers(), input_fn=jitter),
    "train_fn": Case(with_layers(lambda: layers.Dropout(0.2)), train_fn=own_loop),
}


class Largest(keras.metrics.Metric):
    """A metric that can only be updated: the largest output so far, with the number of updates."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.largest = self.add_variable((), initializer=keras.initializers.Constant(-1e9), name="largest")
        self.updates = self.add_variable((), initializer="zeros", name="updates")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.updates.assign_add(1.0)

    def result(self):
        return self.largest + 0.0


def with_numbers(params):
    rate = params["lr"]
    if params.get("schedule"):
        rate = schedules.ExponentialDecay(rate, 3, 0.5)
    return compiled(mlp(layers.Dropout(0.2)), optimizers.AdamW(rate, weight_decay=params["decay"]))


def with_metrics(params):
    metrics = [
        "accuracy",
        keras.metrics.AUC(),
        keras.metrics.Precision(),
        keras.metrics.Recall(),
        keras.metrics.RootMeanSquaredError(),
        Largest(),
    ]
    return compiled(mlp(layers.BatchNormalization()), metrics=metrics)


def with_class_metrics(params):
    metrics = [
        "accuracy",
        keras.metrics.TopKCategoricalAccuracy(k=2, name="top"),
        keras.metrics.F1Score(),
        keras.metrics.OneHotMeanIoU(num_classes=3, name="iou"),
        keras.metrics.PrecisionAtRecall(0.5, class_id=1),
    ]
    return compiled(mlp(out=3, activation="softmax"), loss="categorical_crossentropy", metrics=metrics)


def with_closure(params):
    class Times(layers.Layer):
        def call(self, x):
            return x * params["factor"]

    return compiled(mlp(Times()), optimizers.SGD(0.1))


def with_failure(params):
    if params.get("raises"):
        raise RuntimeError("no such layer")
    if params.get("returns") == "module":
        return mlp()
    if params.get("returns") == "class":
        return keras.Sequential
    if params.get("returns") == "plateau":
        return None
    model = keras.Sequential([layers.Dense(16), layers.Dense(1)])
    return compiled(model, optimizers.SGD(params["lr"]), loss="mse")


def with_width(params):
    body = [layers.Dense(2000, activation="relu"), layers.Dense(2000, activation="relu"), layers.Dense(2000)]
    return compiled(keras.Sequential([*body, layers.Dense(1, activation="sigmoid")]))


def scaled_tanh(factor):
    def scaled(x):
        return ops.tanh(x) * factor

    return scaled


def squares(factor):
    def penalty(weights):
        return factor * ops.sum(weights * weights)

    return penalty


class Private(layers.Layer):
    """Keeps what it does where its configuration does not show it."""

    def __init__(self, factor):
        super().__init__()
        self._factor = factor

    def get_config(self):
        return {}

    def call(self, x):
        return x * self._factor


class Steps(optimizers.SGD):
    """An optimizer with a number of its own."""

    def __init__(self, share):
        super().__init__(0.1)
        self._share = share

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self._share, variable, learning_rate)


class Rate(schedules.LearningRateSchedule):
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate

    def get_config(self):
        return {}


def power(exponent, y_true, y_pred):
    return ops.mean(keras.losses.binary_crossentropy(y_true, y_pred) * exponent)


def with_constant(v):
    layer = Private(1.0)
    layer._factor = ops.convert_to_tensor(v)
    return layer


def plain(*middle, optimizer=None, **options):
    return compiled(mlp(*middle), optimizer or optimizers.SGD(0.1), **options)


def adapted(layer, rows):
    layer.adapt(rows)
    return layer


def after(*first, optimizer=None):
    return compiled(keras.Sequential([*first, layers.Dense(1, activation="sigmoid")]), optimizer or optimizers.SGD(0.1))


def normalized(v, optimizer=None):
    """Normalizes by rows that are spread by `v`."""
    rows = np.random.default_rng(0).normal(1.0, v, (50, 8)).astype("float32")
    return after(adapted(layers.Normalization(), rows), optimizer=optimizer)


def in_bins(v):
    bins = layers.Discretization(num_bins=4, output_mode="one_hot")
    return after(adapted(bins, np.linspace(-v, v, 50, dtype="float32")), layers.Flatten())


def looked_up(v):
    """Knows numbers in the order of how often they were seen."""
    words = np.repeat(np.arange(4), np.arange(1, 5) if v > 0.1 else np.arange(4, 0, -1))
    lookup = adapted(layers.IntegerLookup(output_mode="multi_hot"), words)
    return after(layers.Lambda(lambda x: ops.cast(3 * ops.abs(x), "int64")), lookup)


# By `v`, which no variable holds: such trials must not share a traced model.
UNLIKE = {
    "partial loss": lambda v: plain(loss=partial(power, v)),
    "named activation": lambda v: plain(layers.Dense(4, activation=scaled_tanh(v))),
    "partial activation": lambda v: plain(layers.Dense(4, activation=partial(ops.multiply, v))),
    "named regularizer": lambda v: plain(layers.Dense(4, kernel_regularizer=squares(v))),
    "private attribute": lambda v: plain(Private(v)),
    "constant": lambda v: plain(with_constant(v)),
    "custom optimizer": lambda v: plain(optimizer=Steps(v)),
    "custom schedule": lambda v: plain(optimizer=optimizers.SGD(Rate(v))),
    "adapted normalization": normalized,
    "adapted bins": in_bins,
    "adapted vocabulary": looked_up,
}
# Here `v` is only a number that a variable holds.
ALIKE = {
    "rate": lambda v: plain(optimizer=optimizers.SGD(v)),
    "named activation": lambda v: plain(layers.Dense(4, activation=scaled_tanh(2.0)), optimizer=optimizers.SGD(v)),
    "custom layer": lambda v: plain(Private(2.0), Scaled(), optimizer=optimizers.Adam(v)),
    "adapted alike": lambda v: normalized(0.5, optimizers.SGD(v)),
    "custom metric": lambda v: plain(metrics=[Largest(), "accuracy"], optimizer=optimizers.RMSprop(v)),
}


def by_number(table):
    return lambda params: table[params["case"]](params["v"])


def named_loss(params):
    return compiled(mlp(), metrics=[keras.metrics.BinaryAccuracy(name="loss")])


def masks(params):
    steps = [layers.Rescaling(2**-16), layers.Dense(24), layers.Reshape((8, 3)), layers.Softmax()]
    return compiled(keras.Sequential(steps), loss="sparse_categorical_crossentropy")


PROBES = {
    "masks": Case(masks, "masks"),
    "unlike": Case(by_number(UNLIKE)),
    "alike": Case(by_number(ALIKE)),
    "named_loss": Case(named_loss),
    "numbers": Case(with_numbers),
    "metrics": Case(with_metrics),
    "class_metrics": Case(with_class_metrics, "onehot"),
    "closure": Case(with_closure),
    "failure": Case(with_failure),
    "large": Case(with_width),
}
