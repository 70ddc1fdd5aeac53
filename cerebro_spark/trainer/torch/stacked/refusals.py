"""Says which models are not stacked, before anything of them is computed. What it lets pass is still tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch.optim import lr_scheduler

from cerebro_spark.trainer.base import Hooks, Resources
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel, keeps_extra_state, schedulers
from cerebro_spark.trainer.torch.signature import hook_parts, tensor_hooks
from cerebro_spark.trainer.torch.stacked.buffers import list_trained
from cerebro_spark.trainer.torch.stacked.optimizers import find_stacked


def refuse_search(hooks: Hooks, resources: Resources, device: torch.device) -> str | None:
    """Return why no trial of a search is stacked, or None."""
    if hooks.train_fn is not None:
        return "train_fn takes the steps"
    if hooks.input_fn is not None:
        return "input_fn makes the batches"
    if resources.precision is not None:
        return f"precision is {resources.precision!r}"
    return None if device.type == "cpu" else f"the device is {device}"


def refuse_model(model: BuiltTorchModel) -> str | None:
    """Return why trials with this model are not stacked, or None."""
    reasons = [*_refuse_module(model.model.module), *_refuse_schedule(model.model.lr_scheduler)]
    if model.settings:
        reasons.append("it has settings of its own")
    if _has_any_global_hook():
        reasons.append("all modules have hooks")
    if isinstance(model.model.loss, torch.nn.Module):
        reasons += _refuse_module(model.model.loss)
    if hook_parts(vars(model.model.optimizer)):
        reasons.append("the optimizer has hooks")
    try:
        find_stacked(model.model.optimizer)
        list_trained(model)
    except ValueError as error:
        reasons.append(str(error))
    return reasons[0] if reasons else None


def _refuse_module(module: torch.nn.Module) -> Iterator[str]:
    for part in module.modules():
        name = type(part).__name__
        if isinstance(part, torch.nn.RNNBase):
            yield f"{name} is not stacked"
        if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            yield f"{name} is compiled"
        if keeps_extra_state(part):
            yield f"{name} keeps extra state"
        if hook_parts(vars(part)):
            yield f"{name} has hooks"
    if any(tensor_hooks(tensor) for tensor in module.parameters()):
        yield "a parameter has hooks"


def _refuse_schedule(scheduler: Any) -> Iterator[str]:
    for part in schedulers(scheduler):
        if type(part).__module__ != lr_scheduler.__name__:
            yield f"the schedule {type(part).__name__} is not PyTorch's own"
