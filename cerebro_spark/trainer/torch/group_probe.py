"""What a PyTorch model makes of a batch, and of its parts, before a group trains it. It takes no step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from cerebro_spark.trainer.feed import Array
from cerebro_spark.trainer.group import GroupRefused
from cerebro_spark.trainer.group_checks import Probe
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.shapes import list_tensors
from cerebro_spark.trainer.torch.steps import ComputeLoss
from cerebro_spark.trainer.torch.undropped import Undropped
from cerebro_spark.types import Metrics


def probe_model(
    model: BuiltTorchModel,
    tensors: Tensors,
    compute: ComputeLoss,
    make_collector: Callable[[BuiltTorchModel, Metrics | None], MetricCollector],
    training: bool,
    describe_generators: Callable[[], str],
) -> Probe:
    """Return what a model makes of a batch; its buffers and the generators may be others afterwards.

    Args:
        model: The built model, in the mode that is asked for.
        tensors: The batch.
        compute: Computes the loss of a batch.
        make_collector: Makes what measures.
        training: Whether it is in training. Dropout is off then nevertheless: what it draws for a batch is not what it
            draws for parts. Metrics are not computed.
        describe_generators: Returns a text that is another one once random numbers were drawn.

    Raises:
        GroupRefused: Something about the model that shows when it runs, and that no comparison would find.
    """
    before = describe_generators()
    # cuDNN computes no gradients of recurrent layers outside of training.
    with torch.backends.cudnn.flags(enabled=False), Undropped() if training else nullcontext():
        loss, output, label = compute(model, tensors)
        gradient = _compute_gradient(loss, model.parameters)
    drawn = training and describe_generators() != before
    if drawn:
        _refuse_what_hides(output, len(next(iter(tensors.values()))))
    metrics = Metrics()
    if not training:
        collector = make_collector(model, None)
        collector.add(loss.detach(), output, label)
        metrics = collector.collect()
    outputs = [_to_numpy(tensor) for tensor in list_tensors(output)]
    statistics = {name: _to_numpy(tensor) for name, tensor in model.copy_statistics().items()}
    return Probe(outputs, float(loss.detach()), None if drawn else gradient, statistics, metrics)


def _refuse_what_hides(output: Any, rows: int) -> None:
    """Raise GroupRefused if a model that draws random numbers while training gives something to be trained by itself.

    Args:
        output: What it gives.
        rows: The rows of the batch.
    """
    if any(part.requires_grad and part.shape[:1] != (rows,) for part in list_tensors(output)):
        raise GroupRefused(
            "its model gives something that is not by rows, which cannot be tried on parts of a batch since random"
            " numbers are drawn while training (other than by PyTorch's dropout)"
        )


def _compute_gradient(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Array | None:
    """Return the gradient by all parameters in one piece; None if the loss has none."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained or not loss.requires_grad:
        return None
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    if any(part is not None and part.layout != torch.strided for part in found):
        raise GroupRefused("it has sparse gradients")
    parts = [torch.zeros_like(p) if part is None else part for p, part in zip(trained, found, strict=True)]
    joined: Array = np.concatenate([_to_numpy(part).reshape(-1) for part in parts])
    return joined


def _to_numpy(tensor: Any) -> Array:
    """Return a copy of a tensor; NumPy has no type for some that are narrow."""
    detached = tensor.detach().cpu()
    narrow = detached.is_floating_point() and detached.dtype not in (torch.float32, torch.float64)
    array: Array = (detached.float() if narrow else detached).resolve_conj().numpy()
    return array.copy()
