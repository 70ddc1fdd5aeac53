"""Finds the parts of a model that can be computed again, one by one. It runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook

from cerebro_spark.trainer.torch.built_model import keeps_extra_state
from cerebro_spark.trainer.torch.signature import hook_parts

_LEAST_LAYERS = 3
"""A sequence of fewer layers is not cut."""


@dataclass(frozen=True, slots=True)
class Block:
    """A module whose `forward` is computed again: as a whole, or, if it is a plain sequence of layers, in runs of them.

    Attributes:
        name: Its name in the model.
        module: The module.
        runs: The layers of each run; empty if it is one whole.
    """

    name: str
    module: torch.nn.Module
    runs: tuple[tuple[torch.nn.Module, ...], ...] = ()

    def parts(self) -> list[tuple[str, torch.nn.Module]]:
        """Return all modules whose forward is computed again, by their names: of runs not the sequence itself."""
        prefix = f"{self.name}." if self.name else ""
        named = [(prefix + name if name else self.name, part) for name, part in self.module.named_modules()]
        return named[1:] if self.runs else named


def find_blocks(module: torch.nn.Module) -> list[Block]:
    """Return the blocks of a model: what repeats in its lists, sequences and attributes, as far out as possible.

    >>> layers = [torch.nn.TransformerEncoderLayer(8, 2) for _ in range(3)]
    >>> [block.name for block in find_blocks(torch.nn.Sequential(torch.nn.Linear(8, 8), *layers))]
    ['1', '2', '3']
    >>> mlp = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    >>> [len(run) for run in find_blocks(mlp)[0].runs]
    [3, 2]
    """
    found: dict[int, Block] = {}
    for block in _list_blocks("", module):
        found.setdefault(id(block.module), block)
    return list(found.values())


def find_obstacle(module: torch.nn.Module, blocks: list[Block]) -> str:
    """Return why blocks cannot be computed again, as far as their parts say; "" if nothing speaks against it."""
    if not blocks:
        return (
            "it has no blocks that could be computed again: put its layers into a torch.nn.Sequential, or into modules"
            " of several layers each, and these into a torch.nn.ModuleList"
        )
    if _has_any_global_hook():
        return "all modules have hooks, which would be called twice"
    for name, part in module.named_modules():
        if keeps_extra_state(part):
            return f"its {type(part).__name__} keeps extra state, which may change each time that it is computed"
        if isinstance(part, torch.jit.ScriptModule) or _is_compiled(part):
            return f"its {type(part).__name__}{f' {name!r}' if name else ''} is compiled"
    for block in blocks:
        for name, part in block.parts():
            # Those of the block itself are called outside of its forward.
            if (part is not block.module or block.runs) and _is_hooked(part):
                return f"its {type(part).__name__} {name!r} has hooks, which would be called twice"
    return ""


def _is_hooked(module: torch.nn.Module) -> bool:
    """Whether a module has hooks that a forward pass or its gradients call; those of its `state_dict` they do not."""
    return any("state_dict" not in place for place, _ in hook_parts(vars(module)))


def _list_blocks(name: str, module: torch.nn.Module) -> Iterator[Block]:
    children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
    kinds = Counter(type(child) for _, child in children if _is_composite(child))
    is_listing = type(module) is torch.nn.Sequential or not _has_forward(module)
    if type(module) is torch.nn.Sequential and children and not kinds:
        runs = _cut([child for _, child in children])
        if len(runs) > 1:
            yield Block(name, module, runs)
        return
    for path, child in children:
        repeats = is_listing or (kinds[type(child)] > 1 and type(child) is not torch.nn.Sequential)
        if _is_composite(child) and repeats and _has_forward(child) and not _is_listing(child):
            yield Block(path, child)
        else:
            yield from _list_blocks(path, child)


def _is_composite(module: torch.nn.Module) -> bool:
    return next(module.children(), None) is not None


def _has_forward(module: torch.nn.Module) -> bool:
    """Whether a module can be called: a list and a dict of modules cannot."""
    return any("forward" in vars(kind) for kind in type(module).__mro__ if kind is not torch.nn.Module)


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _is_listing(module: torch.nn.Module) -> bool:
    """Whether a sequence only lists blocks: these are smaller than it."""
    return type(module) is torch.nn.Sequential and any(map(_is_composite, module.children()))


def _cut(layers: list[Any]) -> tuple[tuple[torch.nn.Module, ...], ...]:
    """Cut a sequence into about as many runs as each has layers, which needs the least memory.

    None begins with a layer that writes into its input: that is what the run is computed again from.
    """
    if len(layers) < _LEAST_LAYERS or getattr(layers[0], "inplace", False):
        return (tuple(layers),)
    count = max(2, isqrt(len(layers)))
    starts = {-(-index * len(layers) // count) for index in range(count)}
    runs: list[list[torch.nn.Module]] = [[]]
    for index, layer in enumerate(layers):
        if index in starts and index:
            if getattr(layer, "inplace", False):
                starts.add(index + 1)
            else:
                runs.append([])
        runs[-1].append(layer)
    return tuple(map(tuple, runs))
