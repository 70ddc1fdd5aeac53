"""Functions that train and measure Keras models by themselves, and some that change what they train."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

OWN = np.random.default_rng(0)
# With TensorFlow it would begin its threads here.
SECOND: Any = keras.optimizers.Adam(0.01) if keras.backend.backend() == "torch" else None


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


def with_global_optimizer(model, batches, params):
    body = model.layers[0].trainable_variables
    SECOND.apply([0.1 * ops.ones_like(variable) for variable in body], body)
    return steps(model, batches, params)


def adapt_again(model):
    model.layers[0].adapt(np.ones((20, 8), "float32"))


def augmenting(batch, params):
    return {**batch, "features": batch["features"] + OWN.normal(size=8).astype("float32")}
