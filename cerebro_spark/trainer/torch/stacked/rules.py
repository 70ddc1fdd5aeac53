"""Which kernels compute stacked members at once, and how. What has no rule is computed member after member.

A rule must leave the bits of single calls. Views and copies do. Kernels that work element by element do if they round
in the same way wherever an element lies: sums, products, quotients and roots do everywhere. Functions such as `exp` are
computed by other code at the end of an array, so their members must end where vectors do. Reductions and products are
tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from cerebro_spark.trainer.torch.stacked.scaled import ADD_SCALED, add_scaled_rows

_aten = torch.ops.aten

# Vectors of two times 16 numbers are computed at once; a multiple of it is safe.
_VECTOR = 64
_ROUNDED = """
    add sub rsub mul div neg abs sqrt relu threshold_backward maximum minimum clamp clamp_min clamp_max hardtanh
    hardtanh_backward leaky_relu leaky_relu_backward eq ne lt le gt ge logical_and logical_or logical_not where
    masked_fill ones_like zeros_like empty_like full_like clone _to_copy copy fill zero
"""
_VECTORIZED = """
    exp expm1 log log1p tanh sigmoid erf sin cos pow gelu silu elu softplus mish hardswish hardsigmoid rsqrt reciprocal
    tanh_backward sigmoid_backward gelu_backward silu_backward elu_backward softplus_backward mish_backward
    hardswish_backward hardsigmoid_backward
"""
ROUNDED, VECTORIZED = frozenset(_ROUNDED.split()), frozenset(_VECTORIZED.split())


class Lifted(NamedTuple):
    """An argument with dimensions of 1 after that of the members, so that it broadcasts as that of one member does."""

    node: Node
    missing: int


class Invocation(NamedTuple):
    """A call of a kernel for all members at once; its arguments are nodes, whose tensors have a row a member."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Rule(NamedTuple):
    """How a node is computed for all members at once.

    Attributes:
        call: The call.
        is_view: Whether the result is a view of its first argument.
        is_tried: Whether the call must be compared with single ones first.
    """

    call: Invocation
    is_view: bool = False
    is_tried: bool = False


def value_of(node: Node) -> Any:
    """Return a stand-in for what a node gives for one member: shape, layout and dtype."""
    return node.meta.get("val")


def name_of(node: Node) -> str:
    """Return the name of a kernel, such as "add_"."""
    schema: Any = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.removeprefix("aten::")


def find_rule(node: Node, width: int) -> Rule | None:
    """Return the rule of a node; None if members are computed one after another."""
    name = name_of(node)
    if not isinstance(value_of(node), torch.Tensor):
        return None
    if name in _VIEWS:
        made = _VIEWS[name](node, width)
        return None if made is None else Rule(made, is_view=True)
    if name in _TRIED:
        made = _TRIED[name](node, width)
        return None if made is None else Rule(made, is_tried=True)
    if name in _MOVES:
        return Rule(_MOVES[name](node))
    if name == ADD_SCALED:
        return Rule(Invocation(add_scaled_rows, node.args, {})) if _adds_alike(node) else None
    base = name if name.startswith("_") else name.removesuffix("_")
    exact = base in ROUNDED or (base in VECTORIZED and _fills_vectors(node))
    return Rule(_lift_all(node)) if exact and _has_plain_types(node) else None


# Element by element


def _has_plain_types(node: Node) -> bool:
    """Whether all tensors are of one dtype, so that more dimensions promote none; and in no special layout."""
    types = {value_of(each).dtype for each in node.all_input_nodes} - {torch.bool}
    layout = node.kwargs.get("memory_format")
    return len(types) <= 1 and layout in (None, torch.contiguous_format, torch.preserve_format)


def _adds_alike(node: Node) -> bool:
    """Whether what is added has the shape of what it is added to."""
    target, other = (value_of(each) for each in node.all_input_nodes[:2])
    return bool(target.shape == other.shape)


def _fills_vectors(node: Node) -> bool:
    """Whether a member ends where vectors end, on all threads."""
    values = [value_of(each) for each in (node, *node.all_input_nodes)]
    alike = all(each.shape == values[0].shape and each.is_contiguous() for each in values)
    return alike and values[0].numel() % (_VECTOR * torch.get_num_threads()) == 0


def _lift_all(node: Node) -> Invocation:
    """Return the same call, in which all members have as many dimensions as the result."""
    rank = value_of(node).ndim

    def lift(each: Any) -> Any:
        missing = rank - value_of(each).ndim if isinstance(each, Node) else 0
        return Lifted(each, missing) if missing > 0 else each

    return Invocation(node.target, tuple(map(lift, node.args)), node.kwargs)


# Views and copies


def _argument(node: Node, place: int, default: Any = None) -> Any:
    return node.args[place] if place < len(node.args) else default


def _rank(node: Node) -> int:
    first: Any = node.args[0]
    rank: int = value_of(first).ndim
    return rank


def _after(dim: int, rank: int) -> int:
    """Return a dimension of one member as counted with that of the members before it."""
    return (dim if dim >= 0 else dim + rank) + 1


def _view(node: Node, width: int) -> Invocation:
    # Stacked members may lie otherwise than single ones: then they are copied, unless the view is written to.
    written = any(name_of(user).endswith("_") for user in node.users)
    kernel = _aten.view.default if written else torch.reshape
    return Invocation(kernel, (node.args[0], [width, *value_of(node).shape]), {})


def _expand(node: Node, width: int) -> Invocation:
    missing = value_of(node).ndim - _rank(node)
    base = Lifted(node.args[0], missing) if missing else node.args[0]  # type: ignore[arg-type]
    return Invocation(_aten.expand.default, (base, [width, *value_of(node).shape]), {})


def _permute(node: Node, width: int) -> Invocation:
    dims = [_after(dim, _rank(node)) for dim in _argument(node, 1)]
    return Invocation(_aten.permute.default, (node.args[0], [0, *dims]), {})


def _transpose(node: Node, width: int) -> Invocation:
    one, other = (_after(_argument(node, place), _rank(node)) for place in (1, 2))
    return Invocation(_aten.transpose.int, (node.args[0], one, other), {})


def _turn(node: Node, width: int) -> Invocation | None:
    return Invocation(_aten.transpose.int, (node.args[0], 1, 2), {}) if _rank(node) == 2 else None


def _unsqueeze(node: Node, width: int) -> Invocation:
    return Invocation(node.target, (node.args[0], _after(_argument(node, 1), _rank(node) + 1)), {})


def _squeeze(node: Node, width: int) -> Invocation | None:
    if len(node.args) < 2:
        return None
    asked: Any = node.args[1]
    dims = [_after(dim, _rank(node)) for dim in (asked if isinstance(asked, list | tuple) else [asked])]
    return Invocation(_aten.squeeze.dims, (node.args[0], dims), {})


def _select(node: Node, width: int) -> Invocation:
    first, dim, *rest = node.args
    return Invocation(node.target, (first, _after(dim, _rank(node)), *rest), {})  # type: ignore[arg-type]


def _slice(node: Node, width: int) -> Invocation:
    first, *rest = node.args
    dim: Any = rest[0] if rest else 0
    return Invocation(node.target, (first, _after(dim, _rank(node)), *rest[1:]), node.kwargs)


_VIEWS: dict[str, Callable[[Node, int], Invocation | None]] = {
    "view": _view,
    "expand": _expand,
    "permute": _permute,
    "transpose": _transpose,
    "t": _turn,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "select": _select,
    "slice": _slice,
}


def _cat(node: Node) -> Invocation:
    parts: Any = node.args[0]
    dim = _after(_argument(node, 1, 0), value_of(parts[0]).ndim)
    return Invocation(node.target, (list(parts), dim), {})


_MOVES: dict[str, Callable[[Node], Invocation]] = {
    "cat": _cat,
    "_unsafe_view": lambda node: Invocation(torch.reshape, (node.args[0], [-1, *value_of(node).shape]), {}),
}


# Reductions and products


def _sum(node: Node, width: int) -> Invocation | None:
    dims = _argument(node, 1) if node.target in (_aten.sum.dim_IntList, _aten.mean.dim) else None
    rank = _rank(node)
    every = dims or list(range(rank))
    kernel = _aten.sum.dim_IntList if name_of(node) == "sum" else _aten.mean.dim
    after = [_after(dim, rank) for dim in every]
    if not after:
        return None
    return Invocation(kernel, (node.args[0], after, bool(_argument(node, 2, False) if dims else False)), node.kwargs)


def _softmax(node: Node, width: int) -> Invocation:
    first, dim, *rest = node.args
    return Invocation(node.target, (first, _after(dim, _rank(node)), *rest), {})  # type: ignore[arg-type]


def _softmax_backward(node: Node, width: int) -> Invocation:
    gradient, output, dim, *rest = node.args
    return Invocation(node.target, (gradient, output, _after(dim, _rank(node)), *rest), {})  # type: ignore[arg-type]


def _is_small(a: Any, b: Any) -> bool:
    """Whether a product has a side of 1, or is so small that a batch of it is computed by plain loops."""
    sizes = (*a.shape[-2:], b.shape[-1])
    return 1 in sizes or sizes[0] * sizes[1] * sizes[2] < 400


def _mm(node: Node, width: int) -> Invocation | None:
    a, b = node.args
    return None if _is_small(value_of(a), value_of(b)) else Invocation(_aten.bmm.default, (a, b), {})  # type: ignore[arg-type]


def _addmm(node: Node, width: int) -> Invocation | None:
    bias, a, b = node.args
    if node.kwargs or _is_small(value_of(a), value_of(b)):  # type: ignore[arg-type]
        return None
    missing = 2 - value_of(bias).ndim  # type: ignore[arg-type]
    return Invocation(_aten.baddbmm.default, (Lifted(bias, missing) if missing else bias, a, b), {})  # type: ignore[arg-type]


def _bmm(node: Node, width: int) -> Invocation:
    return Invocation(_multiply_batches, node.args, {})


def _multiply_batches(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply batches of matrices of all members as one batch."""
    product: torch.Tensor = torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).unflatten(0, a.shape[:2])
    return product


_TRIED: dict[str, Callable[[Node, int], Invocation | None]] = {
    "sum": _sum,
    "mean": _sum,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
}
