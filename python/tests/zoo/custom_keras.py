"""Keras models that keep something where no checkpoint looks, or change themselves: each hops, or is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
from custom_keras_loops import (
    adapt_again,
    augmenting,
    changing,
    compile_again,
    eval_that_trains,
    evaluate,
    fit,
    fit_and_validate,
    fit_in_order,
    freeze,
    freeze_variable,
    predict,
    predict_and_train,
    same_again,
    set_attribute,
    set_rate,
    swap_activation,
    with_global_optimizer,
)
from custom_keras_models import (
    Anneal,
    Around,
    Beside,
    Collected,
    Counting,
    CountingLoss,
    Drawing,
    Hidden,
    Rate,
    Squares,
    Symbols,
    dropout,
    known_to_its_model,
    made,
    normalized,
    plain,
    recurrent,
    two_optimizers,
    untraced,
    with_compiled_part,
    with_layer,
    with_metric,
    with_torch_optimizer,
)
from keras import layers
from keras_models import SHORT, application
from law import Case as AnyCase
from specimen import arrays


def Case(model_fn, **options):
    return AnyCase(model_fn, framework="keras", **options)


CHANGED: dict[str, Any] = {"params": {"change": True}}
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
    CASES["application"] = Case(
        application("mobilenet.MobileNet", 32, SHORT["mobilenet.MobileNet"]),
        rows=partial(arrays, "pixels-32"),
        inputs=("pixels",),
        params={"lr": 0.1},
        other={"lr": 0.2},
    )
    # The next trainer of this process gets an optimizer that was applied to the variables of the first one: hence no
    # rehearsal.
    refusal = "`with_global_optimizer.*SECOND.*iteration.* changed from variable.0. to variable.1."
    CASES["global optimizer"] = Case(plain, train_fn=with_global_optimizer, refused=refusal, late=True)
    CASES["optimizer of PyTorch"] = Case(with_torch_optimizer, refused="`WithTorch.body_opt.state")
