"""Signatures of PyTorch models: models of equal signatures share one built model.

They must count everything that `BuiltTorchModel.restore` does not replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ReferenceType

import torch

from cerebro_spark.trainer.sharing.signature import Instead, class_token, compute_signature
from cerebro_spark.trainer.torch.model import TorchModel

_MODULE_INTERNALS = set(vars(torch.nn.Module()))
_FUSED = "_need_device_dtype_check_for_fused"
# What training changes, what `restore` replaces, and (`step`) what a scheduler wraps to count calls.
_OPTIMIZER_INTERNALS = {"param_groups", "state", "step", "_opt_called", "_warned_capturable_if_run_uncaptured", _FUSED}
# Hooks of `transformers`, which only pass outputs on to a call that asks for them.
_CAPTURING = "transformers.utils.output_capturing"


def compute_model_signature(model: TorchModel) -> str:
    """Return a signature, equal for models that differ only in weights, optimizer numbers and scheduler state."""
    module, optimizer = model.module, model.optimizer
    named = {id(p): name for name, p in module.named_parameters()}
    modules = [(name, _describe_module(part)) for name, part in module.named_modules()]
    tensors = [
        (name, str(t.dtype), tuple(t.shape), t.requires_grad, tensor_hooks(t), vars(t))
        for name, t in (*module.named_parameters(), *module.named_buffers())
    ]
    ties = [_ties(module.named_modules), _ties(module.named_parameters), _ties(module.named_buffers)]
    groups = [([named[id(p)] for p in group["params"]], sorted(group)) for group in optimizer.param_groups]
    solver = [_describe_optimizer(optimizer), _describe_scheduler(model.lr_scheduler)]
    rest = [model.loss, dict(model.metrics), model.scheduler_step, model.clip_norm, model.clip_value]
    known: dict[int, Any] = {key: ("parameter", name) for key, name in named.items()}
    known.update({id(part): ("module", name) for name, part in module.named_modules()})
    special = _make_describer({**known, id(optimizer): "optimizer"})
    return compute_signature(modules, tensors, ties, groups, solver, rest, special=special)


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
        if isinstance(value, ReferenceType):  # as PyTorch's RNN, LSTM and GRU have to their weights
            return Instead(("weak reference", value()))
        return None

    return describe


def _describe_module(module: torch.nn.Module) -> Any:
    """Describe a module without its children: class, plain attributes, and hooks."""
    plain = {k: v for k, v in vars(module).items() if k not in _MODULE_INTERNALS}
    return class_token(type(module)), plain, hook_parts(vars(module))


def hook_parts(own: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the functions registered in these attributes, in their order: their keys count on through the process."""
    parts: list[tuple[str, Any]] = []
    for name, kept in own.items():
        if "hook" in name and isinstance(kept, Mapping):
            hooks = [hook for hook in kept.values() if getattr(hook, "__module__", None) != _CAPTURING]
            parts += [(f".{name}[{index}]", hook) for index, hook in enumerate(hooks)]
    return parts


def tensor_hooks(tensor: Any) -> list[tuple[str, Any]]:
    """Return the functions registered with a tensor."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return hook_parts({name: getattr(tensor, name, None) for name in names})


def _ties(listing: Callable[..., Any]) -> list[tuple[str, str]]:
    """Which names stand for the same object."""
    first: dict[int, str] = {}
    named = list(listing(remove_duplicate=False))
    return [(name, first.setdefault(id(thing), name)) for name, thing in named]


def optimizer_attributes(optimizer: Any) -> dict[str, Any]:
    """Return what an optimizer has besides its state, its groups and its hooks."""
    own = {k: v for k, v in vars(optimizer).items() if k not in _OPTIMIZER_INTERNALS and "hook" not in k}
    if type(optimizer).__module__.startswith("torch.optim."):
        # PyTorch's own optimizers use only the groups once these are made; others may use the defaults.
        own.pop("defaults", None)
    return own


def _describe_optimizer(optimizer: Any) -> Any:
    own = vars(optimizer)
    step = None if hasattr(own.get("step"), "_wrapped_by_lr_sched") else own.get("step")
    return class_token(type(optimizer)), optimizer_attributes(optimizer), step, _FUSED in own, hook_parts(own)


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
