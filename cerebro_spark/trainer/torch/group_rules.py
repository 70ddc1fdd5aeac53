"""Which PyTorch models no group trains exactly, as far as their parts say. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metric_states import adds_up
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.signature import hook_parts, tensor_hooks


def refuse_in_group(model: BuiltTorchModel) -> str | None:
    """Return why no group trains this model, as far as its parts say; None if they let it pass."""
    return next(_list_reasons(model), None)


def _list_reasons(model: BuiltTorchModel) -> Iterator[str]:
    own = model.model
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        yield "PyTorch was built without gloo here"
    for name, metric in own.metrics.items():
        if is_metric_object(metric) and not adds_up(metric):
            yield f"its metric {name!r} has no state that adds up, and needs rows one after another"
    if model.loss.weighs_by_class:
        yield "its loss has class weights, which make it no mean over rows"
    for name, part in own.module.named_modules():
        yield from _reasons_of(name, part)
    if any(_hooks_of_gradients(part) for part in own.module.modules()):
        yield "its module has hooks for gradients, which would see those of a part of a batch"
    if any(tensor_hooks(parameter) for parameter in own.module.parameters()):
        yield "its parameters have hooks for gradients, which would see those of a part of a batch"


def _reasons_of(name: str, part: torch.nn.Module) -> Iterator[str]:
    what = f"its {type(part).__name__} {name!r}" if name else f"its {type(part).__name__}"
    if isinstance(part, _BatchNorm):
        yield f"{what} takes the statistics of a batch, which are not those of its parts"
    if getattr(part, "sparse", None) is True:
        yield f"{what} has sparse gradients"


def _hooks_of_gradients(part: Any) -> bool:
    return bool(hook_parts({name: kept for name, kept in vars(part).items() if "backward" in name}))
