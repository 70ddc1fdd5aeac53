"""Training steps of PyTorch, taken kernel by kernel. It knows no feed and collects no metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.types import Steps

StepResult = tuple[torch.Tensor, Any, Any]
"""The loss of a batch, the output and the label."""
ComputeLoss = Callable[[BuiltTorchModel, Tensors], StepResult]
Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]
"""The shape and dtype of each tensor of a batch."""


def shapes_of(tensors: Tensors) -> Shapes:
    """Return the shapes and dtypes of a batch."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())


class EagerSteps:
    """The training steps of one built model.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
    """

    kind: Steps = "eager"

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss) -> None:
        self._model = model
        self._compute = compute

    def unit(self) -> AbstractContextManager[None]:
        """Prepare for the steps of one unit."""
        return nullcontext()

    def take(self, tensors: Tensors) -> StepResult:
        """Compute gradients, clip them, and take one step of the optimizer."""
        result = self._compute_gradients(tensors)
        self._apply_gradients()
        return result

    def _compute_gradients(self, tensors: Tensors) -> StepResult:
        self._model.model.optimizer.zero_grad()
        loss, output, label = self._compute(self._model, tensors)
        torch.autograd.backward(self._model.scaler.scale(loss))
        return loss.detach(), output, label

    def _apply_gradients(self) -> None:
        own, scaler = self._model.model, self._model.scaler
        if own.clip_norm is not None or own.clip_value is not None:
            scaler.unscale_(own.optimizer)
        if own.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters, own.clip_norm)
        if own.clip_value is not None:
            torch.nn.utils.clip_grad_value_(self._model.parameters, own.clip_value)
        self._step_optimizer()

    def _step_optimizer(self) -> None:
        self._model.scaler.step(self._model.model.optimizer)
        self._model.scaler.update()
