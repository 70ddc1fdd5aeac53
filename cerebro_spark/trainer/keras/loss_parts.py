"""Whether the losses of a Keras model are means over rows, seen from the batches of a unit. It takes no step.

Keras' own losses have a value a row. A user's may have one for a batch, and a batch that is tried before a group
begins may not show that it is no mean over rows. So in every step such a loss is computed again for two parts of what
the model gave, which is cheap beside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from cerebro_spark.trainer.keras.replacing import replaced

_LEAST_ROWS = 4
"""The rows that can be cut into parts of two at least."""


class Difference(NamedTuple):
    """What a loss of a batch differs by from the means of its parts.

    Attributes:
        off: By how much; a number, or a scalar tensor.
        size: How large the losses are.
    """

    off: Any
    size: Any


class LossParts:
    """What a unit's losses differ by from the means of parts of its batches.

    Args:
        model: The Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._off = self._size = 0.0

    @contextmanager
    def watching(self) -> Iterator[list[Difference]]:
        """Look at what is computed in the block; yield a list that has what was seen after it: tensors of a graph."""
        seen: list[Difference] = []
        parts = getattr(self._model._compile_loss, "_flat_losses", None) or []
        losses = {id(loss): loss for part in parts if (loss := getattr(part, "loss", None)) is not None}
        with ExitStack() as stack:
            for loss in losses.values():
                stack.enter_context(replaced(loss, {"call": _watch(loss.call, seen)}))
            yield seen

    def count(self, seen: Sequence[Any]) -> None:
        """Take in what was seen of a batch, as pairs of numbers."""
        for off, size in seen:
            self._off += float(off)
            self._size += float(size)

    def find_difference(self, rounding: float) -> str:
        """Return why some loss of the batches was no mean over their rows; "" if all were.

        Args:
            rounding: What is rounded, as a share of the losses.
        """
        # Over all batches: the loss of a single one may be zero by chance, and is rounded nevertheless.
        if self._off <= rounding * self._size:
            return ""
        by = (
            f"by {self._off / self._size:.1g} of it"
            if self._size and np.isfinite(self._off)
            else "in that some have none"
        )
        return (
            f"its loss is no mean over rows: the means of two parts of a batch differ from it {by} (one that is divided"
            " by the labels that count is none; return a value a row)"
        )


def _watch(call: Callable[[Any, Any], Any], seen: list[Difference]) -> Callable[[Any, Any], Any]:
    def watched(y_true: Any, y_pred: Any) -> Any:
        value = call(y_true, y_pred)
        flat = keras.tree.flatten((y_true, y_pred))
        if len(ops.shape(value)) == 0 and all(len(ops.shape(part)) for part in flat):
            seen.append(_compare(call, y_true, y_pred, value))
        return value

    return watched


def _compare(call: Callable[[Any, Any], Any], y_true: Any, y_pred: Any, whole: Any) -> Difference:
    rows = ops.shape(keras.tree.flatten(y_pred)[0])[0]
    if isinstance(rows, int) and rows < _LEAST_ROWS:
        return Difference(0.0, 0.0)
    cut = ops.maximum(2, rows // 3)  # parts of different sizes: the mean of two halves is right by chance

    def compute(take: Callable[[Any], Any]) -> Any:
        return ops.cast(call(keras.tree.map_structure(take, y_true), keras.tree.map_structure(take, y_pred)), "float32")

    whole, first, rest = ops.cast(whole, "float32"), compute(lambda part: part[:cut]), compute(lambda part: part[cut:])
    share = ops.cast(cut, "float32") / ops.cast(rows, "float32")
    off = ops.abs(whole - share * first - (1 - share) * rest)
    size = ops.maximum(ops.abs(whole), ops.maximum(ops.abs(first), ops.abs(rest)))
    # Of a loss that is not finite nothing can be told, and the unit fails anyway.
    there = ops.logical_and(ops.isfinite(whole), rows >= _LEAST_ROWS)
    off = ops.where(ops.isfinite(off), off, np.inf)
    return Difference(ops.where(there, off, 0.0), ops.where(ops.logical_and(there, ops.isfinite(size)), size, 0.0))
