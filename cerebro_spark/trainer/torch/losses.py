"""Losses of PyTorch: the labels they need, and how much a batch counts. It never takes a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.nn.modules import loss as torch_losses

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.shapes import call_watched, check_same_shape, like_output, row_count, same_but_for_ones

Kind = Literal["class numbers", "class lists", "values"]

_CLASS_NUMBERS = (torch_losses.CrossEntropyLoss, torch_losses.NLLLoss, torch_losses.MultiMarginLoss)
_FUNCTIONS: dict[Any, Kind] = {
    functional.cross_entropy: "class numbers",
    functional.nll_loss: "class numbers",
    functional.multi_margin_loss: "class numbers",
    functional.multilabel_margin_loss: "class lists",
    functional.mse_loss: "values",
    functional.l1_loss: "values",
    functional.smooth_l1_loss: "values",
    functional.huber_loss: "values",
    functional.binary_cross_entropy: "values",
    functional.binary_cross_entropy_with_logits: "values",
    functional.kl_div: "values",
    functional.poisson_nll_loss: "values",
    functional.soft_margin_loss: "values",
    functional.multilabel_soft_margin_loss: "values",
    functional.hinge_embedding_loss: "values",
}
# Losses whose mean is weighted by the classes of the labels, and leaves ignored labels out.
_BY_CLASS = (
    functional.cross_entropy,
    functional.nll_loss,
    torch_losses.CrossEntropyLoss.forward,
    torch_losses.NLLLoss.forward,
)
_log = logging.getLogger(__name__)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """What is known of a loss.

    Attributes:
        kind: The labels that it needs.
        settings: Its reduction, weight and ignore_index, as far as they are set.
        own: Whether all its code is PyTorch's.
        by_class: Whether its mean is weighted by class.
    """

    kind: Kind
    settings: Mapping[str, Any]
    own: bool = True
    by_class: bool = False

    @property
    def reduction(self) -> str:
        return str(self.settings.get("reduction", "mean"))

    def fit(self, output: Any, label: Any) -> Any:
        """Return a stored label as the loss needs it: class numbers as int64, others like the output."""
        if not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor):
            return label
        if self.kind == "class numbers":
            return _class_numbers(output, label)
        if self.kind == "values" and not label.is_floating_point():
            label = label.to(output.dtype)
        return like_output(output, label)

    def weigh(self, output: Any, label: Any, rows: int) -> Any:
        """Return how much the loss of a batch counts: the denominator of its mean, so that parts average to the whole.

        That is the number of rows, or, by class, the sum of the class weights of all labels that are not ignored. A
        loss with reduction="sum" has no denominator: None.
        """
        if self.reduction == "sum":
            return None
        label = self.fit(output, label)
        if not self.by_class or self.reduction != "mean" or label.ndim == output.ndim:
            return rows
        counted = label != self.settings.get("ignore_index", -100)
        weight = self.settings.get("weight")
        if weight is None:
            return counted.sum()
        return torch.where(counted, weight[torch.where(counted, label, 0)], 0).sum()


def recognize_loss(loss: Any) -> KnownLoss | None:
    """Return what is known of a loss of PyTorch: a module, a function, or a `functools.partial` of these; else None."""
    if isinstance(loss, torch_losses._Loss):
        forward = type(loss).forward
        kind: Kind = "class numbers" if isinstance(loss, _CLASS_NUMBERS) else "values"
        if isinstance(loss, torch_losses.MultiLabelMarginLoss):
            kind = "class lists"
        own = forward.__module__ == torch_losses.__name__
        return KnownLoss(kind, _Attributes(loss), own, forward in _BY_CLASS)
    settings: Mapping[str, Any] = {}
    if isinstance(loss, partial) and not loss.args:
        loss, settings = loss.func, loss.keywords
    try:
        found = _FUNCTIONS.get(loss)
    except TypeError:  # a callable that cannot be hashed is the user's own
        return None
    old = settings.get("size_average") is not None or settings.get("reduce") is not None
    return None if found is None or old else KnownLoss(found, settings, by_class=loss in _BY_CLASS)


class BatchLoss:
    """A loss as a step calls it: with the label it needs, and with checks for silent errors.

    PyTorch's own losses get the label in the output's shape. A user's loss gets it as it is stored, and is watched
    while it computes its first batch. Each must return a scalar, or a value a row.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self.loss = loss
        self.known = recognize_loss(loss)
        self._watched = False

    def __call__(self, output: Any, label: Any) -> torch.Tensor:
        rows = row_count(label)
        label = label if self.known is None else self.known.fit(output, label)
        value = self._call(output, label, rows)
        _check_value(value, output, label, rows)
        if self.known is None and value.ndim == 0:
            _warn_once(self.loss)
        checked: torch.Tensor = value
        return checked

    def weigh(self, output: Any, label: Any, rows: int) -> Any:
        """Return how much the loss of a batch counts; None if it is a sum over its rows."""
        return rows if self.known is None else self.known.weigh(output, label, rows)

    def _call(self, output: Any, label: Any, rows: int) -> Any:
        if self.known is not None and self.known.own:
            if self.known.kind != "class numbers":
                check_same_shape("the loss", output, label)
            return self.loss(output, label)
        if self._watched:
            return self.loss(output, label)
        value = call_watched("the loss", self.loss, output, label)
        self._watched = rows > 1  # a single row cannot show what stretches rows over rows
        return value


class _Attributes(Mapping[str, Any]):
    """The present attributes of a module. Its weights move to the device only later."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Any:
        return iter(("reduction", "weight", "ignore_index"))

    def __len__(self) -> int:
        return 3


def _class_numbers(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if label.shape == output.shape:
        return label.to(output.dtype)  # a probability of each class
    numbers = torch.Size((*output.shape[:1], *output.shape[2:]))
    if label.ndim == output.ndim and not same_but_for_ones(numbers, label.shape):
        return label.to(output.dtype)
    return label.long().reshape(numbers) if same_but_for_ones(numbers, label.shape) else label.long()


def _check_value(value: Any, output: Any, label: Any, rows: int) -> None:
    """Refuse a loss that is neither a scalar nor a value a row (or a value for each part of a row)."""
    if isinstance(value, torch.Tensor):
        whole = [part.shape for part in (output, label) if isinstance(part, torch.Tensor)]
        if value.ndim == 0 or (len(value) == rows and (value.numel() == rows or value.shape in whole)):
            return
    found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    raise ConfigurationError(
        f"the loss returned {found} for {rows} rows, but must return a scalar tensor, or a value a row: take the mean"
        " over what belongs to a row, and squeeze what has a dimension too many"
    )


def _warn_once(loss: Any) -> None:
    name = getattr(loss, "__qualname__", type(loss).__qualname__)
    if name in _warned:
        return
    _warned.add(name)
    _log.warning(
        "the loss %s returns one number for a batch, which is taken for the mean over its rows. If it divides by"
        " anything else (class weights, labels that count), an epoch's loss depends a little on how rows are cut into"
        " batches: return a value a row, or use PyTorch's own loss, as functools.partial(F.cross_entropy, weight=...)",
        name,
    )
