"""Signatures of PyTorch models: models of equal signatures share one built model.

They must count everything that `BuiltTorchModel.restore` does not replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cerebro_spark.trainer.sharing.signature import Instead, class_token, compute_signature
from cerebro_spark.trainer.torch.model import TorchModel

_MODULE_INTERNALS = set(vars(torch.nn.Module()))
# What training changes, what `restore` replaces, and (`step`) what a scheduler only wraps to count calls.
_OPTIMIZER_INTERNALS = {"param_groups", "state", "_opt_called", "_warned_capturable_if_run_uncaptured"}


def compute_model_signature(model: TorchModel) -> str:
    """Return a signature, equal for models that differ only in weights, optimizer numbers and scheduler state."""
    module, optimizer = model.module, model.optimizer
    named = {id(p): name for name, p in module.named_parameters()}
    modules = [(name, _describe_module(part)) for name, part in module.named_modules()]
    tensors = [
        (name, str(t.dtype), tuple(t.shape), t.requires_grad, _tensor_hooks(t))
        for name, t in (*module.named_parameters(), *module.named_buffers())
    ]
    ties = [_ties(module.named_modules), _ties(module.named_parameters), _ties(module.named_buffers)]
    groups = [([named[id(p)] for p in group["params"]], sorted(group)) for group in optimizer.param_groups]
    rest = [model.loss, dict(model.metrics), model.scheduler_step, model.clip_norm, model.clip_value]
    parts = [
        modules,
        tensors,
        ties,
        groups,
        _describe_optimizer(optimizer),
        _describe_scheduler(model.lr_scheduler),
        rest,
    ]
    known: dict[int, Any] = {key: ("parameter", name) for key, name in named.items()}
    known.update({id(part): ("module", name) for name, part in module.named_modules()})
    special = _make_describer({**known, id(optimizer): "optimizer"})
    return compute_signature(*parts, special=special)


def _make_describer(known: Mapping[int, Any]) -> Callable[[Any], Any]:
    """Describe parts of the model by their place in it, other tensors and modules by their values."""

    def describe(value: Any) -> Any:
        if id(value) in known:
            return known[id(value)]
        if isinstance(value, torch.nn.Module):
            values = {**dict(value.named_parameters()), **dict(value.named_buffers())}
            return Instead(("module", _describe_module(value), values, list(value.named_children())))
        if isinstance(value, torch.Tensor):
            plain = value.detach().cpu().reshape(-1).tolist()
            return ("tensor", type(value).__name__, str(value.dtype), tuple(value.shape), plain)
        if isinstance(value, torch.dtype | torch.device):
            return repr(value)
        return None

    return describe


def _describe_module(module: torch.nn.Module) -> Any:
    """Describe a module without its children: class, plain attributes, and hooks."""
    plain = {k: v for k, v in vars(module).items() if k not in _MODULE_INTERNALS}
    return class_token(type(module)), plain, _hooks(module)


def _hooks(owner: Any) -> Any:
    """Registered functions in their order. Their keys are no help: they count on through the process."""
    found = {k: v for k, v in vars(owner).items() if "hook" in k and isinstance(v, Mapping)}
    return {name: list(kept.values()) for name, kept in found.items() if kept}


def _tensor_hooks(tensor: Any) -> Any:
    kept = [getattr(tensor, name, None) or {} for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    return [list(hooks.values()) for hooks in kept], vars(tensor)


def _ties(listing: Callable[..., Any]) -> list[tuple[str, str]]:
    """Which names stand for the same object."""
    first: dict[int, str] = {}
    named = list(listing(remove_duplicate=False))
    return [(name, first.setdefault(id(thing), name)) for name, thing in named]


def _describe_optimizer(optimizer: Any) -> Any:
    kept = {k: v for k, v in vars(optimizer).items() if k not in _OPTIMIZER_INTERNALS and "hook" not in k}
    if hasattr(kept.get("step"), "_wrapped_by_lr_sched"):
        del kept["step"]
    if type(optimizer).__module__.startswith("torch.optim."):
        # PyTorch's own optimizers use only the groups once these are made; others may use the defaults.
        kept.pop("defaults", None)
    return class_token(type(optimizer)), kept, _hooks(optimizer)


def _describe_scheduler(scheduler: Any) -> Any:
    """Describe what the `state_dict` of a scheduler does not have: functions, and the schedulers inside."""
    if scheduler is None:
        return None
    restored = set(scheduler.state_dict())
    kept = {
        name: value
        for name, value in vars(scheduler).items()
        if name not in ("optimizer", "_schedulers") and (name not in restored or not _is_plain(value))
    }
    inner = [_describe_scheduler(part) for part in getattr(scheduler, "_schedulers", [])]
    return class_token(type(scheduler)), kept, inner


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for item in (*value, *value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)
