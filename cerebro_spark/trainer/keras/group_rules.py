"""Which Keras models no group trains exactly, as far as their parts say. It runs nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import keras

from cerebro_spark.trainer.keras.backend import BACKEND
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.metrics import adds_up

NEEDS_TORCH = (
    "groups need PyTorch for the links between their members, for Keras models too: pip install 'cerebro-spark[torch]'"
    " on every worker"
)
_OWN_METHODS = {
    "train_step": "which may do more with gradients than give them to the optimizer",
    "compute_metrics": "and what that measures need not be a mean over rows",
}


def refuse_in_group(model: BuiltKerasModel) -> str | None:
    """Return why no group trains this model, as far as its parts say; None if they let it pass."""
    return next(_list_reasons(model), None)


def is_of_keras(method: Any) -> bool:
    """Whether a method, or a class, is Keras' own."""
    return str(getattr(method, "__module__", "")).startswith("keras.")


def _list_reasons(model: BuiltKerasModel) -> Iterator[str]:
    own = model.model
    if importlib.util.find_spec("torch") is None:
        yield NEEDS_TORCH
    for name, why in _OWN_METHODS.items():
        if not is_of_keras(getattr(own, name)):
            yield f"it has a {name} of its own, {why}"
    if own.run_eagerly:
        yield "it is compiled with run_eagerly=True"
    if BACKEND == "torch":
        yield from _list_reasons_on_torch(model)
    for name, metric in model.metrics.items():
        if not adds_up(metric):
            yield f"its metric {name!r} has no state that adds up, and needs rows one after another"
    for part in getattr(own._compile_loss, "_flat_losses", None) or []:
        yield from _reasons_of_loss(getattr(part, "loss", None), model.columns.weight is not None)
    for layer in own._flatten_layers():
        yield from _reasons_of_layer(layer)
    for variable in own.trainable_variables:
        yield from _reasons_of_variable(variable)


def _list_reasons_on_torch(model: BuiltKerasModel) -> Iterator[str]:
    from cerebro_spark.trainer.torch.signature import hook_parts, tensor_hooks

    own = model.model
    if own.jit_compile:
        yield "it is compiled with jit_compile=True, which takes whole steps at once"
    for part in own.modules():
        if hook_parts({name: kept for name, kept in vars(part).items() if "backward" in name}):
            yield "its layers have hooks for gradients, which would see those of a part of a batch"
    if any(tensor_hooks(variable.value) for variable in own.trainable_variables):
        yield "its weights have hooks for gradients, which would see those of a part of a batch"


def _reasons_of_loss(loss: Any, weighted: bool) -> Iterator[str]:
    """Yield why a loss is no mean over rows.

    Args:
        loss: The loss of an output; None for none.
        weighted: Whether rows have sample weights.
    """
    what = f"its loss {type(loss).__name__}"
    reduction = getattr(loss, "reduction", "mean")
    if reduction in ("sum", "none", None):
        yield f"{what} has reduction={reduction!r}, which is no mean over rows"
    if reduction == "mean_with_sample_weight" and weighted:
        yield f"{what} is divided by the sum of the sample weights of a batch, so that it is no mean over rows"
    settings = getattr(loss, "_fn_kwargs", {})
    if settings.get("ignore_class", getattr(loss, "ignore_class", None)) is not None:
        yield f"{what} leaves rows out (ignore_class), which makes it no mean over rows"
    if isinstance(loss, keras.losses.Circle):
        yield f"{what} leaves out rows whose loss is zero, which makes it no mean over rows"


def _reasons_of_layer(layer: Any) -> Iterator[str]:
    what = f"its {type(layer).__name__} {layer.name!r}"
    # One that is frozen takes the statistics that it has.
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
        yield f"{what} takes the statistics of a batch, which are not those of its parts"
    shape = getattr(layer, "noise_shape", None)
    if is_of_keras(type(layer)) and shape and shape[0] is not None:
        yield f"{what} drops the same units of all rows of a batch (noise_shape), and other ones of its parts"
    dtype = getattr(getattr(layer, "dtype_policy", None), "name", "")
    if "float8" in dtype:
        yield f"{what} computes in float8, with scales that it takes from each batch"


def _reasons_of_variable(variable: Any) -> Iterator[str]:
    if getattr(variable, "overwrite_with_gradient", False):
        yield f"its {variable.path!r} is overwritten by its gradient, which does not add up"
    if "complex" in str(variable.dtype):
        yield f"its {variable.path!r} is complex"
