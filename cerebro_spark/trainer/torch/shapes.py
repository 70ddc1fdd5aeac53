"""Finds functions that broadcast output and label against each other. It changes nothing of what they compute."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, product
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.sharing.user_code import function_parts, method_parts
from cerebro_spark.trainer.torch.label_rules import warn_of_labels

Origins = frozenset[str]

# Functions that work element by element, and so broadcast operands of different shapes.
_NAMES = """
    add sub subtract mul multiply div divide true_divide truediv floordiv floor_divide remainder mod fmod pow
    float_power eq ne lt le gt ge less less_equal greater greater_equal not_equal isclose maximum minimum fmax
    fmin max min logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor and or xor where
    masked_fill lerp addcmul addcdiv hypot atan2 arctan2 xlogy logaddexp logaddexp2 copysign heaviside
    mse_loss l1_loss smooth_l1_loss huber_loss kl_div poisson_nll_loss soft_margin_loss
    multilabel_soft_margin_loss gaussian_nll_loss hinge_embedding_loss binary_cross_entropy
    binary_cross_entropy_with_logits cosine_similarity pairwise_distance dist
    broadcast_tensors special_xlogy special_xlog1py clamp clip clamp_min clamp_max nextafter ldexp
"""
_ELEMENTWISE = frozenset(_NAMES.split())
# Functions that give the values of a tensor to Python or NumPy, where nobody sees what becomes of them.
_LEAVING = frozenset(["numpy", "__array__", "tolist", "__dlpack__"])
_SCRIPTED = (torch.jit.ScriptFunction, torch.jit.ScriptModule)


def same_but_for_ones(one: torch.Size, other: torch.Size) -> bool:
    """Whether two shapes with as many rows are the same, except for dimensions of 1.

    >>> same_but_for_ones(torch.Size([4, 1]), torch.Size([4])), same_but_for_ones(torch.Size([4, 2]), torch.Size([4]))
    (True, False)
    """
    return one[:1] == other[:1] and [d for d in one[1:] if d != 1] == [d for d in other[1:] if d != 1]


def like_output(output: Any, label: Any) -> Any:
    """Return the label in the output's shape if they differ only in dimensions of 1, else as it is; dicts by name.

    >>> like_output(torch.zeros(4, 1), torch.zeros(4)).shape
    torch.Size([4, 1])
    """
    if isinstance(output, dict) and isinstance(label, dict):
        return {name: like_output(output[name], part) if name in output else part for name, part in label.items()}
    if not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor) or not output.ndim * label.ndim:
        return label
    return label.reshape(output.shape) if same_but_for_ones(output.shape, label.shape) else label


def with_rows(output: Any, label: Any) -> Any:
    """Return the output of a batch of one row with the dimension of rows, if a `squeeze` has removed that.

    >>> with_rows(torch.zeros(()), torch.zeros(1)).shape, with_rows(torch.zeros(3), torch.zeros(1, 3)).shape
    (torch.Size([1]), torch.Size([1, 3]))
    """
    if isinstance(output, dict) and isinstance(label, dict):
        return {name: with_rows(part, label[name]) if name in label else part for name, part in output.items()}
    if not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor) or label.shape[:1] != (1,):
        return output
    return output if output.ndim > 1 or output.shape == (1,) else output.unsqueeze(0)


def row_count(label: Any) -> int:
    """Return the number of rows of a batch, from its label or labels."""
    return len(next(iter(label.values())) if isinstance(label, dict) else label)


def check_same_shape(what: str, output: Any, label: Any) -> None:
    """Refuse two shapes for a function that works element by element."""
    if isinstance(output, torch.Tensor) and isinstance(label, torch.Tensor) and output.shape != label.shape:
        raise stretched(what, output.shape, label.shape)


def call_watched(
    what: str,
    function: Callable[[Any, Any], Any],
    output: Any,
    label: Any,
    check_left: Callable[[Any, Any], None] | None = None,
) -> Any:
    """Return `function(output, label)`. Raises ConfigurationError if it broadcasts one against the other inside.

    With an output of (rows, 1) and a label of (rows,), `output - label` is a matrix of every row with every other,
    whose mean looks like a loss. The origin of each tensor is followed through the function, so that it may squeeze
    them, or broadcast them on purpose by `[:, None]` or `expand_as`.

    Args:
        what: What the function is, for error messages.
        function: The function.
        output: Its first argument.
        label: Its second argument.
        check_left: Called as `check_left(output, label)` if the function has taken values out of PyTorch, or may have
            given them to a compiled function, where they cannot be followed.
    """
    if _is_compiled(function):
        _check_shapes(what, output, label)
        return function(output, label)
    watch = _Watch(what, list(list_tensors(output)), list(list_tensors(label)))
    with watch:
        value = function(output, label)
    if check_left is not None and (watch.left or _names_compiled(function)):
        check_left(output, label)
    return value


class _Watch(TorchFunctionMode):
    """Sees every call of PyTorch's functions, and which tensors come from the output and which from the label."""

    def __init__(self, what: str, outputs: list[torch.Tensor], labels: list[torch.Tensor]) -> None:
        super().__init__()
        self.left = False
        self._what = what
        self._rows = max((len(tensor) for tensor in labels if tensor.ndim), default=0)
        self._raw = {(one.shape, other.shape) for one in outputs for other in labels}
        # Tensors are hashed by identity.
        self._origins: defaultdict[torch.Tensor, Origins] = defaultdict(frozenset)
        self._note(outputs, frozenset(["output"]))
        self._note(labels, frozenset(["label"]))

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = [tensor for tensor in list_tensors((args, kwargs or {})) if tensor in self._origins]
        if _is_elementwise(func):
            for one, other in combinations(operands, 2):
                self._check(one, other)
        if operands:
            warn_of_labels(func, args, kwargs or {})
        self.left = self.left or bool(operands and getattr(func, "__name__", "") in _LEAVING)
        result = func(*args, **(kwargs or {}))
        if operands:
            changed = args[:1] if getattr(func, "__name__", "") == "__setitem__" else result
            self._note(list_tensors(changed), frozenset().union(*(self._origins[tensor] for tensor in operands)))
        return result

    def _note(self, tensors: Iterable[torch.Tensor], origins: Origins) -> None:
        for tensor in tensors:
            self._origins[tensor] |= origins

    def _check(self, one: torch.Tensor, other: torch.Tensor) -> None:
        raw = {(one.shape, other.shape), (other.shape, one.shape)} & self._raw
        origins = self._origins[one]
        # What comes from the output alone may meet itself in pairs. What comes from both has met the label already.
        is_meant = origins == self._origins[other] and not (len(origins) > 1 and raw)
        if one.shape == other.shape or is_meant:
            return
        small, large = sorted((one, other), key=lambda tensor: tensor.ndim)
        if small.numel() < 2 or not small.ndim:
            return  # one number for all rows
        rows_meet_columns = small.ndim < large.ndim and len(small) == self._rows
        if rows_meet_columns or raw:
            raise stretched(self._what, one.shape, other.shape)


def stretched(what: str, one: torch.Size, other: torch.Size, library: str = "PyTorch") -> ConfigurationError:
    """Return the error of a function that would broadcast output and label of these shapes against each other."""
    return ConfigurationError(
        f"{what} compares shapes {tuple(one)} and {tuple(other)} of output and label, which {library} would stretch"
        " over each other, so that rows meet other rows: give both one shape, as by `.squeeze(-1)` at the module's end"
        " or `label.view_as(output)`; where it is meant, write it out: `label[:, None]`, `label.expand_as(output)`"
    )


def _is_elementwise(func: Any) -> bool:
    name = getattr(func, "__name__", "").strip("_")
    return name in _ELEMENTWISE or (name[:1] in ("r", "i") and name[1:] in _ELEMENTWISE)


def _is_compiled(function: Any) -> bool:
    """Whether a function is compiled, so that its calls cannot be seen."""
    return (
        isinstance(function, _SCRIPTED)
        or hasattr(function, "_torchdynamo_orig_callable")
        or hasattr(function, "_orig_mod")
    )


def _names_compiled(function: Any) -> bool:
    """Whether a user's function, method or callable object refers to a compiled function."""
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        return any(_is_compiled(value) for _, value in function_parts(function))
    parts = [*method_parts(type(function)), *getattr(function, "__dict__", {}).items()]
    return any(_is_compiled(value) for _, value in parts)


def _check_shapes(what: str, output: Any, label: Any) -> None:
    """Refuse shapes that a compiled function may broadcast."""
    for one, other in product(list_tensors(output), list_tensors(label)):
        if one.shape != other.shape and same_but_for_ones(one.shape, other.shape):
            raise stretched(what, one.shape, other.shape)


def list_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value: a tensor, or a dict, list or tuple of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from list_tensors(item)
