"""The order of axes in the memory of convolutions on a GPU. It changes where numbers are, and none of them.

Tensor cores want the channels last. With weights in that order PyTorch converts the first input, and every layer keeps
to it; the same convolution then takes about two thirds of the time, and rounds differently. Whether a model computes in
that order follows from the model alone, so that every worker decides the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.steps import ComputeLoss

_Convolution = torch.nn.modules.conv._ConvNd
_KINDS = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)


class ChannelsLast:
    """Stores the weights of convolutions with their channels last, where a model can compute with them.

    Models stay as they are that have other convolutions than those of images over all channels, that return images, and
    that fail with such weights: `view` needs axes in their order. This is tried once for each structure.

    Args:
        compute: Computes the loss of a batch.
        sign: Returns the signature of a built model, equal for those of one structure.
    """

    def __init__(self, compute: ComputeLoss, sign: Callable[[BuiltTorchModel], str]) -> None:
        self._compute = compute
        self._sign = sign
        self._works: dict[str, bool] = {}

    def convert(self, model: BuiltTorchModel, example: Callable[[], Tensors]) -> bool:
        """Convert a built model if possible; return whether it was.

        Args:
            model: The model.
            example: Returns a batch. A copy of the model takes a step with it.
        """
        if not _has_plain_convolutions(model.model.module):
            return False
        signature = self._sign(model)
        if signature not in self._works:
            self._works[signature] = _computes(model, self._compute, example)
        if self._works[signature]:
            _convert(model.model.module)
        return self._works[signature]


def _has_plain_convolutions(module: torch.nn.Module) -> bool:
    found = [part for part in module.modules() if isinstance(part, _Convolution)]
    return bool(found) and all(type(part) in _KINDS and part.groups == 1 for part in found)


def _computes(model: BuiltTorchModel, compute: ComputeLoss, example: Callable[[], Tensors]) -> bool:
    """Whether a copy of the model takes a step with its channels last, and returns no images."""
    try:
        trial = copy.copy(model)
        trial.model = replace(model.model, module=copy.deepcopy(model.model.module))
        trial.loss = copy.deepcopy(model.loss)
        _convert(trial.model.module)
        trial.model.module.train()
        loss, output, _ = compute(trial, example())
        torch.autograd.backward(loss)
    except Exception:  # whatever a model raises in another order of axes: it stays in its own
        return False
    return all(leaf.ndim < 4 for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))


@torch.no_grad()
def _convert(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, _KINDS):
            weight: Any = part.weight
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
