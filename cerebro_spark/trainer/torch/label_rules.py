"""Which labels the losses of PyTorch are made for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import loss as torch_losses
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cerebro_spark.trainer.feed import Array
from cerebro_spark.trainer.label_rules import LabelRule

_log = logging.getLogger(__name__)

_CLASSES = "or use CrossEntropyLoss with an output for each class"
_SIGNS = {"only": (-1, 1), "instead": "as by 2 * label - 1, or use BCEWithLogitsLoss for labels of 0 and 1"}
_SHARES = {"low": 0, "high": 1, "instead": _CLASSES}
_NUMBERS = {"low": 0, "whole": True, "instead": "so that they count from 0"}

_RULES: dict[str, dict[str, Any]] = {
    "BCELoss binary_cross_entropy": _SHARES,
    "BCEWithLogitsLoss binary_cross_entropy_with_logits": _SHARES,
    "MultiLabelSoftMarginLoss multilabel_soft_margin_loss": _SHARES,
    "SoftMarginLoss soft_margin_loss": _SIGNS,
    "HingeEmbeddingLoss hinge_embedding_loss": _SIGNS,
    "PoissonNLLLoss poisson_nll_loss": {"low": 0},
    "KLDivLoss kl_div": {"low": 0},
    "CrossEntropyLoss cross_entropy": _NUMBERS,
    "NLLLoss nll_loss": _NUMBERS,
    "MultiMarginLoss multi_margin_loss": _NUMBERS,
}


def _list_rules() -> dict[Any, LabelRule]:
    """Return the rules by what is called: the function, or the method of the module."""
    rules: dict[Any, LabelRule] = {}
    for names, settings in _RULES.items():
        module, function = names.split()
        rules[getattr(torch_losses, module).forward] = LabelRule(module, **settings)
        rules[getattr(functional, function)] = LabelRule(function, **settings)
    return rules


_BY_CALL = _list_rules()


def find_label_rule(called: Any, setting: Callable[[str, Any], Any]) -> LabelRule | None:
    """Return the rule of a function of PyTorch's, or of the `forward` of a loss; None if any label will do.

    Args:
        called: The function.
        setting: `setting(name, default)` returns how it is called: its ignore_index, its log_target.

    >>> find_label_rule(functional.cross_entropy, {"ignore_index": 255}.get).ignored
    255
    """
    rule = _BY_CALL.get(called)
    if rule is None or setting("log_target", False):
        return None
    return replace(rule, ignored=setting("ignore_index", -100)) if rule.whole else rule


def read_values(tensor: Any) -> Array | None:
    """Return the values of a tensor; None where they must not be read: in a graph that is recorded, or a trace."""
    if not isinstance(tensor, torch.Tensor) or _get_current_dispatch_mode() is not None:
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    values: Array = (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
    return values


def warn_of_labels(called: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Warn of labels that a function of PyTorch is not made for, if a loss of the user's own calls it with such ones.

    It is no error: the loss may mask them afterwards.
    """
    rule = find_label_rule(called, named.get) if callable(called) else None
    if rule is None:
        return
    labels = read_values(args[1] if len(args) > 1 else named.get("target"))
    wrong = [] if labels is None else rule.find_wrong(labels).reshape(-1).tolist()
    if wrong:
        _warn_once(rule.loss, f"{wrong[0]:g}", rule.describe())


@cache
def _warn_once(function: str, label: str, wanted: str) -> None:
    _log.warning(
        "the loss calls %s with a label of %s, which is made for %s. If the loss does not mask such labels, it learns"
        " from them without an error: map them in the data or in input_fn",
        function,
        label,
        wanted,
    )
