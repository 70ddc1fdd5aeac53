"""Says which Keras models are not stacked, before anything of them is computed. What it lets pass is still tried."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import torch
from keras.src.backend.torch.core import get_device

from cerebro_spark.trainer.base import Hooks, Resources
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.stacked.trace import list_variables
from cerebro_spark.trainer.torch.signature import hook_parts, tensor_hooks
from cerebro_spark.trainer.torch.stacked.refusals import refuse_search


def refuse_keras_search(hooks: Hooks, resources: Resources) -> str | None:
    """Return why no trial of a search is stacked, or None."""
    return refuse_search(hooks, resources, torch.device(get_device()))


def refuse_keras_model(model: BuiltKerasModel) -> str | None:
    """Return why trials with this model are not stacked, or None."""
    return next(_find_reasons(model), None)


def _find_reasons(model: BuiltKerasModel) -> Iterator[str]:
    if model.settings:
        yield "it has settings of its own"
    if model.model.jit_compile:
        yield "the model is compiled with jit_compile=True"
    for layer in model.model._flatten_layers():
        for part in layer.modules():
            if not _is_of_keras(part):
                yield f"{type(layer).__name__} has a module of PyTorch, whose tensors are its own"
            if hook_parts(vars(part)):
                yield f"{type(layer).__name__} has hooks"
    values = [variable.value for variable in list_variables(model)]
    if any(map(tensor_hooks, values)):
        yield "a variable has hooks"
    if any(value.device.type != "cpu" or not value.is_contiguous() for value in values):
        yield "a variable is not on the CPU, or not contiguous"


def _is_of_keras(part: torch.nn.Module) -> bool:
    """Whether all tensors of a module are values of variables: it is a layer, or where Keras lists them."""
    return isinstance(part, keras.layers.Layer | torch.nn.ParameterDict | torch.nn.ParameterList)
