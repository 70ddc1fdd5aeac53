"""Whether a loss is a mean over rows, seen from the batches of a unit. It takes no step.

A batch that is tried before a group begins may not show it: most sequences of a data set may have the same length. So
it is looked at in every step. A user's loss is computed again for two parts of what the model gave, which is cheap
beside the model. Of PyTorch's own it is known which labels they leave out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel, loss_buffers
from cerebro_spark.trainer.torch.shapes import list_tensors, row_count

_LEAST_ROWS = 4
"""The rows that can be cut into parts of two at least: what `squeeze` makes of a single one is another thing."""


class LossParts:
    """What the loss of a unit's batches differs by from the means of their parts.

    Args:
        model: The built model.
    """

    def __init__(self, model: BuiltTorchModel) -> None:
        self._model = model
        self._may_differ = model.loss.divides_unseen
        self._ignored: Any = 0
        self._off: Any = 0.0
        self._size: Any = 0.0

    @torch.no_grad()
    def look(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Look at a batch. It does not wait for a GPU.

        Args:
            loss: Its loss.
            output: What the model gave.
            label: Its label, or labels.
        """
        self._ignored = self._ignored + self._model.loss.count_ignored(output, label)
        rows = row_count(label)
        if not self._may_differ or rows < _LEAST_ROWS:
            return
        if any(tensor.ndim and len(tensor) != rows for tensor in list_tensors(output)):
            return  # nobody knows which part of it is of which rows
        cut = max(2, rows // 3)  # parts of different sizes: the mean of two halves is right by chance
        buffers = {name: buffer.clone() for name, buffer in loss_buffers(self._model.model.loss).items()}
        parts = [self._compute(output, label, rows) for rows in (slice(cut), slice(cut, rows))]
        for name, buffer in loss_buffers(self._model.model.loss).items():
            buffer.copy_(buffers[name])
        if any(part.ndim for part in parts):  # a value a row
            self._may_differ = False
            return
        first, rest = (part.double() for part in parts)
        self._count(loss.double(), first, rest, cut / rows)

    def find_difference(self, rounding: float) -> str:
        """Return why the loss of the batches was no mean over their rows; "" if it was. It waits for a GPU.

        Args:
            rounding: What is rounded, as a share of the losses.
        """
        ignored, off, size = int(self._ignored), float(self._off), float(self._size)
        if ignored:
            return f"its loss leaves labels out (ignore_index), {ignored} in a unit, so that it is no mean over rows"
        if off <= rounding * size:
            return ""
        by = f"by {off / size:.1g} of it" if size and off < float("inf") else "in that some have none"
        return (
            f"its loss is no mean over rows: the means of two parts of a batch differ from it {by} (one that is divided"
            " by the labels that count is none; return a value a row, or use PyTorch's own loss)"
        )

    def _compute(self, output: Any, label: Any, rows: slice) -> torch.Tensor:
        def take(leaf: Any) -> Any:
            return leaf[rows] if isinstance(leaf, torch.Tensor) and leaf.ndim else leaf

        with self._model.autocast:
            return self._model.loss(tree_map(take, output), tree_map(take, label))

    def _count(self, whole: torch.Tensor, first: torch.Tensor, rest: torch.Tensor, share: float) -> None:
        # Over all batches: the loss of a single one may be zero by chance, and is rounded nevertheless.
        off = (whole - share * first - (1 - share) * rest).abs()
        size = torch.maximum(whole.abs(), torch.maximum(first.abs(), rest.abs()))
        there = torch.isfinite(whole)  # of others nothing can be told, and the unit fails anyway
        self._off = self._off + torch.where(there, off.nan_to_num(nan=torch.inf, posinf=torch.inf), 0.0)
        self._size = self._size + torch.where(there, size.nan_to_num(nan=0.0, posinf=0.0), 0.0)
