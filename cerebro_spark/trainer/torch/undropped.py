"""Has PyTorch's dropout keep everything, so that what else a model does while training can be compared."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

# What drops some of its first argument.
_DROPPING = frozenset(
    ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"]
)
# What computes more than that: its only float is the share that is dropped.
_DROPPING_INSIDE = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"])


class Undropped(TorchFunctionMode):
    """A mode in which no dropout of PyTorch drops anything, or draws a number.

    >>> import torch
    >>> with Undropped():
    ...     torch.nn.Dropout(0.5)(torch.ones(4)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "").strip("_")
        if name in _DROPPING:
            return args[0] if args else given["input"]
        if name in _DROPPING_INSIDE:
            args = tuple(0.0 if isinstance(part, float) else part for part in args)
        elif name == "scaled_dot_product_attention" and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        if "dropout_p" in given:
            given["dropout_p"] = 0.0
        return func(*args, **given)
