"""Which PyTorch models may lie in parts at several workers, as far as their parts say. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.group_rules import refuse_in_group
from cerebro_spark.trainer.torch.signature import hook_parts
from cerebro_spark.trainer.torch.strategies.blocks import find_blocks

_BY_NUMBER = {
    "ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""PyTorch's optimizers that treat each number of a parameter by itself."""
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)
"""Modules that only list others, and are never called themselves."""


def find_parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Return the modules whose parameters are gathered together, by name: the blocks of a model, then all of it.

    >>> mlp = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    >>> [name for name, _ in find_parts(mlp)]
    ['0', '1', '2', '']
    >>> [name for name, _ in find_parts(torch.nn.Linear(8, 8))]
    ['']
    """
    found: list[tuple[str, torch.nn.Module]] = []
    for block in find_blocks(module):
        # Of a plain sequence each layer is a part: it is what is called.
        listed = bool(block.runs) or isinstance(block.module, _LISTS)
        found += _list_layers(block.name, block.module) if listed else [(block.name, block.module)]
    return [*((name, part) for name, part in found if next(part.parameters(), None) is not None), ("", module)]


def find_obstacle(model: BuiltTorchModel) -> str:
    """Return why a model cannot lie in parts at several workers and learn the same; "" if nothing speaks against it."""
    return next(_list_reasons(model), "")


def _list_reasons(model: BuiltTorchModel) -> Iterator[str]:
    if not torch.distributed.is_available():
        yield "PyTorch was built without what links processes here"
        return
    if not _is_known():
        yield f"PyTorch {torch.__version__} keeps parts of models otherwise than is known here: use 2.8"
    if torch.distributed.is_initialized():
        yield "torch.distributed is in use in its process already: leave out init_process_group"
    reason = refuse_in_group(model)
    if reason is not None:
        yield reason
    yield from _list_reasons_of_optimizer(model)
    if _has_any_global_hook():
        yield "all modules have hooks, which may see parameters that are elsewhere"
    for name, part in model.model.module.named_modules():
        yield from _list_reasons_of_module(f"its {type(part).__name__} {name!r}" if name else "its module", part)
    for name, parameter in model.model.module.named_parameters():
        yield from _list_reasons_of_parameter(f"its parameter {name!r}", parameter)
    yield from _list_reasons_of_parts(model.model.module)


def _is_known() -> bool:
    """Whether PyTorch adds up gradients where it is told to, and models can be put back."""
    try:
        from torch.distributed._composable_state import _module_state_mapping  # noqa: F401
        from torch.distributed.fsdp import FSDPModule
        from torch.distributed.fsdp._fully_shard._fully_shard import cls_to_fsdp_cls  # noqa: F401
    except ImportError:
        return False
    return hasattr(FSDPModule, "set_force_sum_reduction_for_comms")


def _list_reasons_of_optimizer(model: BuiltTorchModel) -> Iterator[str]:
    optimizer = model.model.optimizer
    kind = type(optimizer)
    if kind.__name__ not in _BY_NUMBER or getattr(torch.optim, kind.__name__, None) is not kind:
        yield f"its optimizer {kind.__name__} may do more than step each number of a parameter by itself"
    if hook_parts(vars(optimizer)):
        yield "its optimizer has hooks, which would see parts of parameters"
    if model.scaler.is_enabled():
        yield "its gradients are scaled for precision='float16', all at once: use 'bfloat16'"


def _list_reasons_of_module(what: str, part: Any) -> Iterator[str]:
    if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
        yield f"{what} is compiled"
    elif hook_parts(vars(part)):
        yield f"{what} has hooks, which may see parameters that are elsewhere"


def _list_reasons_of_parameter(what: str, parameter: torch.Tensor) -> Iterator[str]:
    if parameter.ndim == 0:
        yield f"{what} is a single number, of which there are no parts: give it the shape (1,)"
    elif not parameter.numel():
        yield f"{what} has no numbers, of which there are no parts"
    elif type(parameter.data) is not torch.Tensor or parameter.layout is not torch.strided or parameter.is_complex():
        yield f"{what} is no plain tensor of real numbers"
    elif not parameter.is_contiguous():
        yield f"{what} is not contiguous: call `.contiguous()` on it in model_fn"


def _list_reasons_of_parts(module: torch.nn.Module) -> Iterator[str]:
    owners: dict[int, str] = {}
    nested = {id(part) for _, part in find_parts(module)}
    for name, part in find_parts(module):
        own = dict(_list_parameters(part, nested - {id(part)}))
        for path, parameter in own.items():
            first = owners.setdefault(id(parameter), name)
            if first != name:
                full = f"{name}.{path}" if name else path
                yield f"its parameter {full!r} is also in {first!r}: parts of a model cannot share parameters"
        trained = {parameter.dtype for parameter in own.values() if parameter.requires_grad}
        if len(trained) > 1:
            kinds = ", ".join(sorted(map(str, trained)))
            yield f"parameters of {name or 'its module'!r} have different dtypes: {kinds}"


def _list_parameters(module: torch.nn.Module, others: set[int], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a module, by name, but for those of other parts inside of it."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield path + name, parameter
    for name, child in module.named_children():
        if id(child) not in others:
            yield from _list_parameters(child, others, f"{path}{name}.")


def _list_layers(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield what is called of a module that lists others."""
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if isinstance(child, _LISTS):
            yield from _list_layers(path, child)
        else:
            yield path, child
