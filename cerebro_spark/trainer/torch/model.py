"""What a PyTorch `model_fn` returns. It holds the parts of a model and never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class TorchModel:
    """A PyTorch module with its optimizer, its loss and its metrics: what `model_fn` returns.

    PyTorch's own losses (modules, functions, and `functools.partial` of these) get labels in the form that they need:
    class numbers as int64, everything else in the dtype of the output, and in its shape if only dimensions of size 1
    differ. Any other loss or metric gets the label as it is stored, integers as int64. It is refused if it broadcasts
    output and label against each other.

    The loss of an epoch is exact over partitions of any size if the loss of a batch is a mean over its rows, as
    PyTorch's own losses are. Their `reduction="sum"` is known too (and reported per row), and so are the class weights
    and ignored labels of `cross_entropy` and `nll_loss` (the mean is then weighted by them). A loss of your own that
    divides by anything else is averaged by rows, so it depends slightly on the batches.

    Args:
        module: The `torch.nn.Module` to train. A module with several inputs is called with them as keyword arguments.
            It may return a dict of outputs; loss and metrics then get dicts.
        optimizer: An instance of an optimizer over `module.parameters()`.
        loss: `loss(output, label)`. It returns a scalar or one value per row.
        metrics: Metrics by name; "loss" is no name for one. A metric is a function `fn(output, label)` that returns
            one value per row, or an object with `update(output, label)`, `compute()` and `reset()`, as those of
            torchmetrics. None by default.
        lr_scheduler: A learning rate schedule over `optimizer`. Defaults to None: the learning rate stays as it is.
        scheduler_step: "epoch" or "batch": when `lr_scheduler` is stepped. Defaults to "epoch", that is, after all
            partitions.
        clip_norm: Clip the gradients before each step to this norm, of all parameters together. Defaults to None: no
            clipping.
        clip_value: Clip each element of the gradients before each step to this absolute value. Defaults to None: no
            clipping.

    Examples:
        >>> def model_fn(params):
        ...     import torch
        ...     module = torch.nn.Linear(64, 1)
        ...     optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"], momentum=0.9)
        ...     return TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss(), clip_norm=1.0)
    """

    module: Any
    optimizer: Any
    loss: Callable[[Any, Any], Any]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    lr_scheduler: Any = None
    scheduler_step: Literal["epoch", "batch"] = "epoch"
    clip_norm: float | None = None
    clip_value: float | None = None
