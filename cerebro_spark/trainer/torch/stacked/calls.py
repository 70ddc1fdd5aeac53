"""The calls of a traced step: what a trace keeps of them, and the numbers among their arguments. It runs none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from cerebro_spark.trainer.torch.inspection import describe_tensor

_aten = torch.ops.aten


@contextmanager
def own_kernels(device: torch.device) -> Iterator[None]:
    """Keep what the device has a kernel for: tracing would take some of it apart, which rounds otherwise."""
    original, key = OpOverload.decompose, device.type.upper()

    def decompose(kernel: Any, *args: Any, **options: Any) -> Any:
        known = torch._C._dispatch_has_kernel_for_dispatch_key(kernel.name(), key)
        return NotImplemented if known else original(kernel, *args, **options)

    kernels: Any = OpOverload
    kernels.decompose = decompose
    try:
        yield
    finally:
        kernels.decompose = original


def clean(graph: GraphModule) -> None:
    """Take out the calls that change nothing, and those whose results nobody needs."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in (_aten.detach.default, _aten.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and not node.users and not _has_effect(node.target):
            graph.graph.erase_node(node)


def _has_effect(kernel: Any) -> bool:
    """Whether a call does more than give a result: it changes an argument, or draws."""
    if not isinstance(kernel, OpOverload):
        return False
    return bool(kernel._schema.is_mutable) or torch.Tag.nondeterministic_seeded in kernel.tags


def list_numbers(graph: GraphModule, node: Node) -> list[float]:
    """Return the fractions of a node: among the arguments of a call, or the one that a constant is."""
    held = _find_held(graph, node)
    if held is not None:
        return [float(held.item())] if _is_number(held) else []
    numbers: list[float] = []
    _collect((node.args, tuple(node.kwargs.values())), numbers)
    return numbers


def _find_held(graph: GraphModule, node: Node) -> torch.Tensor | None:
    """Return the tensor that a node takes from the graph; None for calls."""
    held: torch.Tensor | None = getattr(graph, str(node.target)) if node.op == "get_attr" else None
    return held


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 0 and tensor.dtype in (torch.float32, torch.float64)


def _collect(value: Any, numbers: list[float]) -> None:
    if isinstance(value, list | tuple):
        for each in value:
            _collect(each, numbers)
    elif isinstance(value, float):
        numbers.append(value)


def split_numbers(graph: GraphModule) -> tuple[list[float], str]:
    """Return the fractions of all nodes, in their order, and a text of the calls without them."""
    places = {node: place for place, node in enumerate(graph.graph.nodes)}

    def describe(value: Any) -> str:
        if isinstance(value, Node):
            return f"%{places[value]}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(describe, value))}]"
        return "#" if isinstance(value, float) else repr(value)

    lines = []
    for node in graph.graph.nodes:
        held = _find_held(graph, node)
        target = node.target if held is None else f"# {held.dtype}" if _is_number(held) else describe_tensor(held)
        given = [describe(node.args), *(f"{name}={describe(value)}" for name, value in node.kwargs.items())]
        lines.append(f"{node.op} {target} {given}" if node.op != "placeholder" else "input")
    return [number for node in graph.graph.nodes for number in list_numbers(graph, node)], "\n".join(lines)


def find_places(numbers: Sequence[float], constants: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the places of the numbers of a traced step that are not those of all members.

    >>> find_places([0.1, 0.2], [[0.1, 0.2], [0.1, 0.3]])
    (1,)
    """
    return tuple(place for place, own in enumerate(numbers) if any(each[place] != own for each in constants))
