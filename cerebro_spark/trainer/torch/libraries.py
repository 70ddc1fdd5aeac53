"""The functions and classes of PyTorch that all models of a process share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from cerebro_spark.trainer.sharing.patches import list_classes, name_modules

TORCH_LIBRARIES: Mapping[str, Any] = {
    **name_modules([torch, nn, nn.functional, nn.init, nn.utils, torch.optim, lr_scheduler]),
    **list_classes(nn, nn.Module),
    **list_classes(torch.optim, torch.optim.Optimizer),
    **list_classes(lr_scheduler, lr_scheduler.LRScheduler),
    "torch.Tensor": torch.Tensor,
    **{
        f"{module.__name__}.{name}": value
        for module in (nn.modules.module, sys.modules[torch.optim.Optimizer.__module__])
        for name, value in vars(module).items()
        if name.startswith("_global_") and isinstance(value, dict)
    },
}
"""By name."""
