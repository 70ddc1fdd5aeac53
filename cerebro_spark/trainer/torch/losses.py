"""Losses of PyTorch: the labels they need, and how much a batch counts. It never takes a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import Any, Literal

import torch
from torch.nn import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    MSELoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    functional,
)
from torch.nn.modules import loss as torch_losses

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.label_rules import LabelRule
from cerebro_spark.trainer.torch.label_rules import find_label_rule, read_values
from cerebro_spark.trainer.torch.row_pairing import PairingCheck
from cerebro_spark.trainer.torch.shapes import call_watched, check_same_shape, like_output, row_count, same_but_for_ones

Kind = Literal["class numbers", "class lists", "values", "stored"]

_CLASS_NUMBERS = (CrossEntropyLoss, NLLLoss, MultiMarginLoss)
# What they say of a loss is its reduction, not what it computes.
_BASES = (torch_losses._Loss, torch_losses._WeightedLoss)
_NAMES: dict[Kind, str] = {
    "class numbers": "cross_entropy nll_loss multi_margin_loss",
    "class lists": "multilabel_margin_loss",
    "values": """
        mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
        poisson_nll_loss soft_margin_loss multilabel_soft_margin_loss hinge_embedding_loss
    """,
}
_FUNCTIONS = {getattr(functional, name): kind for kind, names in _NAMES.items() for name in names.split()}
# Losses whose mean is weighted by the classes of the labels, and leaves ignored labels out.
_BY_CLASS = (functional.cross_entropy, functional.nll_loss, CrossEntropyLoss.forward, NLLLoss.forward)
# Losses that say that outputs are logits.
_OF_LOGITS = (
    functional.binary_cross_entropy_with_logits,
    functional.cross_entropy,
    functional.multilabel_soft_margin_loss,
    BCEWithLogitsLoss.forward,
    CrossEntropyLoss.forward,
    MultiLabelSoftMarginLoss.forward,
)
# Losses that have no gradients, or no value, if output and label are floats of different dtypes.
_OF_ONE_DTYPE = (
    functional.mse_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    MSELoss.forward,
    HuberLoss.forward,
    BCELoss.forward,
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownLoss:
    """What is known of a loss.

    Attributes:
        kind: The labels that it needs; "stored" if that is not known.
        setting: `setting(name, default)` returns its present reduction, weight or ignore_index. The weight of a module
            moves to the device only later.
        own: Whether all its code is PyTorch's.
        by_class: Whether its mean is weighted by class.
        takes_logits: Whether the outputs that it is given are logits.
        of_one_dtype: Whether its label must have the dtype of the output, even if both are floats.
        rule: The labels that it is made for; None if any will do.
    """

    kind: Kind
    setting: Callable[[str, Any], Any]
    own: bool = True
    by_class: bool = False
    takes_logits: bool = False
    of_one_dtype: bool = False
    rule: LabelRule | None = None

    def fit(self, output: Any, label: Any) -> Any:
        """Return a stored label as the loss needs it: class numbers as int64, others like the output."""
        if self.kind == "stored" or not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor):
            return label
        if self.kind == "class numbers":
            return _class_numbers(output, label)
        widens = self.of_one_dtype and output.dtype is torch.float64
        if self.kind == "values" and (widens or not label.is_floating_point()):
            label = label.to(output.dtype)
        return like_output(output, label)

    def fit_gradients(self, output: Any, label: Any) -> Any:
        """Return a fitted label in the dtype of the output if there are no gradients otherwise.

        Autocast computes these losses in float32, so that a label need not be rounded.
        """
        if not self.of_one_dtype or not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor):
            return label
        if output.dtype is label.dtype or not output.is_floating_point() or _is_autocasting(output.device.type):
            return label
        return label.to(output.dtype)

    def weigh(self, output: Any, label: Any, rows: int) -> Any:
        """Return how much the loss of a batch counts: the denominator of its mean, so that parts average to the whole.

        That is the number of rows, or, by class, the sum of the class weights of all labels that are not ignored. A
        loss with reduction="sum" has no denominator: None.
        """
        reduction = self.setting("reduction", "mean")
        if reduction == "sum":
            return None
        label = self.fit(output, label)
        if not self.by_class or reduction != "mean" or label.ndim == output.ndim:
            return rows
        counted = label != self.setting("ignore_index", -100)
        weight = self.setting("weight", None)
        if weight is None:
            return counted.sum()
        return torch.where(counted, weight[torch.where(counted, label, 0)], 0).sum()

    def count_ignored(self, output: Any, label: Any) -> Any:
        """Return how many labels the mean over a batch leaves out."""
        if not self.by_class or self.setting("reduction", "mean") != "mean":
            return 0
        label = self.fit(output, label)
        return 0 if label.ndim == output.ndim else (label == self.setting("ignore_index", -100)).sum()


def recognize_loss(loss: Any) -> KnownLoss | None:
    """Return what is known of a loss of PyTorch: a module, a function, or a `functools.partial` of these; else None."""
    if isinstance(loss, torch_losses._Loss):
        forward = type(loss).forward
        own = forward.__module__ == torch_losses.__name__
        return _describe(_module_kind(loss), partial(getattr, loss), own, forward)
    settings: Mapping[str, Any] = {}
    if isinstance(loss, partial) and not loss.args:
        loss, settings = loss.func, loss.keywords
    try:
        found = _FUNCTIONS.get(loss)
    except TypeError:  # a callable that cannot be hashed is the user's own
        return None
    old = settings.get("size_average") is not None or settings.get("reduce") is not None
    if found is None or old:
        return None
    return _describe(found, settings.get, True, loss)


def _describe(kind: Kind, setting: Callable[[str, Any], Any], own: bool, called: Any) -> KnownLoss:
    rule = find_label_rule(called, setting)
    return KnownLoss(kind, setting, own, called in _BY_CLASS, called in _OF_LOGITS, called in _OF_ONE_DTYPE, rule)


class CheckedFunction:
    """A loss or metric function as a step calls it: with the label it needs, and with a check for broadcasting.

    PyTorch's own losses get the label in the output's shape. A user's function gets it as it is stored, and is watched
    while it computes its first batch.

    Args:
        what: What the function is, for error messages.
        function: The function `function(output, label)`.
    """

    def __init__(self, what: str, function: Callable[[Any, Any], Any]) -> None:
        self._what = what
        self._function = function
        self._known = recognize_loss(function)
        self._watched = False
        self._pairing = PairingCheck(what, function)

    def compute(self, output: Any, label: Any) -> tuple[Any, Any]:
        """Return the value of a batch, and the label that the function was given."""
        known = self._known
        if known is not None:
            label = self._fit(known, output, label)
        if known is not None and known.own:
            _check_tensor(self._what, output)
            if known.kind != "class numbers":
                check_same_shape(self._what, output, label)
        elif not self._watched:
            value = call_watched(self._what, self._function, output, label, self._check_left)
            # A single row cannot show what stretches rows over rows, and other rows may not either.
            self._watched = row_count(label) > 1 and self._pairing.is_told
            return value, label
        return self._function(output, label), label

    def _fit(self, known: KnownLoss, output: Any, label: Any) -> Any:
        return known.fit(output, label)

    def _check_left(self, output: Any, label: Any) -> None:
        """Check a function that uses more than PyTorch, or parts of it that cannot be followed."""
        self._pairing(output, label)


class BatchLoss(CheckedFunction):
    """A checked loss. It must return a scalar, or a value a row.

    Attributes:
        label_rule: The labels that it is made for, as far as that is known; None if any will do.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        super().__init__("the loss", loss)
        self.label_rule = None if self._known is None else self._known.rule

    def __call__(self, output: Any, label: Any) -> torch.Tensor:
        value, fitted = self.compute(output, label)
        checked = _check_value(value, output, fitted, row_count(label))
        if checked.ndim == 0 and self.divides_unseen:
            _warn_once(*_name_and_place(self._function))
        return checked

    @property
    def takes_logits(self) -> bool:
        """Whether the loss says that outputs are logits: it is PyTorch's own, and takes them."""
        return self._known is not None and self._known.takes_logits

    @property
    def weighs_by_class(self) -> bool:
        """Whether it is PyTorch's own, and its mean is weighted by the classes of the labels."""
        known = self._known
        return (
            known is not None
            and known.by_class
            and known.setting("reduction", "mean") == "mean"
            and known.setting("weight", None) is not None
        )

    @property
    def divides_unseen(self) -> bool:
        """Whether code of the user's divides the loss of a batch, by a number that nobody else knows."""
        known = self._known
        return known is None or (not known.own and known.setting("reduction", "mean") != "sum")

    def weigh(self, output: Any, label: Any, rows: int) -> Any:
        """Return how much the loss of a batch counts; None if it is a sum over its rows."""
        return rows if self._known is None else self._known.weigh(output, label, rows)

    def count_ignored(self, output: Any, label: Any) -> Any:
        """Return how many labels the mean over a batch leaves out, as far as that is known."""
        return 0 if self._known is None else self._known.count_ignored(output, label)

    def _fit(self, known: KnownLoss, output: Any, label: Any) -> Any:
        fitted = known.fit_gradients(output, known.fit(output, label))
        rule = self.label_rule
        if rule is not None and rule.whole and rule.high == inf:
            self._count_classes(rule, output, fitted)
        return fitted

    def _count_classes(self, rule: LabelRule, output: Any, label: Any) -> None:
        """Note how many classes there are; check the first labels, of which one too high would end a GPU's process."""
        if not isinstance(output, torch.Tensor) or output.ndim < 2 or label.shape == output.shape:
            return
        self.label_rule = rule.below(output.shape[1])
        values = read_values(label)
        if values is not None:
            self.label_rule.check("the label", values)


def _check_tensor(what: str, output: Any) -> None:
    """Refuse an output that is no tensor, for a loss of PyTorch's own."""
    if not isinstance(output, torch.Tensor):
        raise ConfigurationError(
            f"{what} is PyTorch's own, which takes a tensor, but the model gives a {type(output).__name__}: give a"
            " function that picks a part, such as lambda output, label: F.cross_entropy(output.logits, label), or let"
            " forward return that part"
        )


def _module_kind(loss: torch_losses._Loss) -> Kind:
    """Return the labels that a module needs, by the nearest class of PyTorch that it is made from."""
    nearest = next(kind for kind in type(loss).__mro__ if kind.__module__ == torch_losses.__name__)
    if nearest in _BASES:
        return "stored"
    if isinstance(loss, MultiLabelMarginLoss):
        return "class lists"
    return "class numbers" if isinstance(loss, _CLASS_NUMBERS) else "values"


def _is_autocasting(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except TypeError:  # PyTorch before 2.4
        return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def _class_numbers(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    if label.shape == output.shape:
        return label.to(output.dtype)  # a probability of each class
    numbers = torch.Size((*output.shape[:1], *output.shape[2:]))
    if label.ndim == output.ndim and not same_but_for_ones(numbers, label.shape):
        return label.to(output.dtype)
    return label.long().reshape(numbers) if same_but_for_ones(numbers, label.shape) else label.long()


def _check_value(value: Any, output: Any, label: Any, rows: int) -> torch.Tensor:
    """Return a loss, unless it is neither a scalar nor a value a row (or a value for each part of a row)."""
    if isinstance(value, torch.Tensor):
        whole = [part.shape for part in (output, label) if isinstance(part, torch.Tensor)]
        if value.ndim == 0 or (len(value) == rows and (value.numel() == rows or value.shape in whole)):
            return value
    found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    raise ConfigurationError(
        f"the loss returned {found} for {rows} rows, but must return a scalar tensor, or a value a row: take the mean"
        " over what belongs to a row, and squeeze what has a dimension too many"
    )


def _name_and_place(function: Any) -> tuple[str, str]:
    """Return what a function is called, and where it is: many are called <lambda>."""
    code = getattr(function, "__code__", None)
    place = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    return getattr(function, "__qualname__", type(function).__qualname__), place


@cache
def _warn_once(name: str, place: str) -> None:
    _log.warning(
        "the loss %s returns one number for a batch, which is taken for the mean over its rows. If it divides by"
        " anything else (class weights, labels that count), or by nothing (a sum), an epoch's loss depends on how rows"
        " are cut into batches, and trials with other batch sizes cannot be compared by it: return a value a row, or"
        " use PyTorch's own loss, as functools.partial(F.cross_entropy, weight=...)",
        name,
    )
