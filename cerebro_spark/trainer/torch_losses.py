"""What PyTorch's losses want and how their batches average. It never computes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import loss as torch_losses

_CLASS_NUMBER_LOSSES = (torch_losses.CrossEntropyLoss, torch_losses.NLLLoss, torch_losses.MultiMarginLoss)


def label_fitter(loss: Any) -> Callable[[Any, Any], Any]:
    """How a stored label becomes what `loss` wants: PyTorch's own losses are known, any other gets it untouched."""
    if isinstance(loss, _CLASS_NUMBER_LOSSES):
        return lambda output, label: label.to(output.dtype) if label.ndim == output.ndim else label.long()
    if isinstance(loss, torch_losses._Loss):
        return _like_output
    return lambda _, label: label


def loss_weigher(loss: Any) -> Callable[[Any, Any, int], Any]:
    """How much a batch's loss counts: as the denominator of its mean says, so that parts average to the whole.

    That is the number of rows, but for class numbers the class weights of the labels that are not ignored. A loss with
    reduction="sum" has no denominator: it counts 1, of as many as there are rows.
    """
    if isinstance(loss, torch_losses._Loss) and loss.reduction == "sum":
        return lambda output, label, rows: None
    by_class = (torch_losses.CrossEntropyLoss.forward, torch_losses.NLLLoss.forward)
    if getattr(type(loss), "forward", None) not in by_class or loss.reduction != "mean":
        return lambda output, label, rows: rows

    def weight(output: Any, label: Any, rows: int) -> Any:
        if label.ndim == output.ndim:
            return rows
        counted = label != loss.ignore_index
        if loss.weight is None:
            return counted.sum()
        return torch.where(counted, loss.weight[torch.where(counted, label, 0).long()], 0).sum()

    return weight


def _like_output(output: Any, label: Any) -> Any:
    if not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor):
        return label
    label = label if label.is_floating_point() else label.to(output.dtype)
    return label.unsqueeze(-1) if output.shape == (*label.shape, 1) else label
