"""What a PyTorch `model_fn` returns. It only carries the parts and never loads torch itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class TorchModel:
    """A module with everything that training it takes.

    `optimizer` is an instance over `module.parameters()`. `loss(output, label)` gives a scalar, or a value a row. A
    metric is `fn(output, label) -> per-row values` or an object with `update(output, label)`, `compute()`, `reset()`.
    A module with several inputs is called with them by name and may return a dict of outputs by name; loss and metrics
    then get dicts. The scheduler is stepped after every batch or when an epoch (all partitions) is over; gradients are
    clipped to `clip_norm` (of all parameters together) or `clip_value` before each step.

    Labels reach PyTorch's own losses, as modules, functions or `functools.partial` of these, as they want them: class
    numbers as int64, everything else in the output's dtype, and in its shape if only dimensions of 1 differ. Any other
    loss or metric gets the label as it is stored, integers as int64, and is refused if it stretches output and label
    over each other. A loss that is no scalar and no value a row is refused, as is a metric that is no value a row.

    The loss of an epoch is exact over partitions of any size if a batch's is a mean over its rows, as with PyTorch's
    own losses. Known are also their reduction="sum" (reported a row), and, of cross_entropy and nll_loss, class weights
    and ignored labels (the mean is then by these weights). A loss of your own that divides by anything else is averaged
    by rows, and so depends a little on how they are cut into batches. No metric may be named "loss".

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
