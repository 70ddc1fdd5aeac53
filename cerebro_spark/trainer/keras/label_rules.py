"""Which labels the losses of Keras are made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from cerebro_spark.trainer.label_rules import LabelRule

_CLASSES = "or use sparse_categorical_crossentropy with an output for each class"
_SHARES = {"low": 0, "high": 1, "instead": _CLASSES}

_SETTINGS: dict[str, dict[str, Any]] = {
    "binary_crossentropy": _SHARES,
    "binary_focal_crossentropy": _SHARES,
    "categorical_crossentropy": _SHARES,
    "categorical_focal_crossentropy": _SHARES,
    "dice": _SHARES,
    "tversky": _SHARES,
    "kl_divergence": {"low": 0, "high": 1},
    "poisson": {"low": 0},
    "mean_squared_logarithmic_error": {"low": 0},
    "hinge": {"only": (-1, 0, 1), "instead": _CLASSES},
    "squared_hinge": {"only": (-1, 0, 1), "instead": _CLASSES},
    "sparse_categorical_crossentropy": {"low": 0, "whole": True, "instead": "so that they count from 0"},
}
_RULES = {getattr(keras.losses, name): LabelRule(name, **settings) for name, settings in _SETTINGS.items()}


def find_label_rules(model: Any, labels: Mapping[str, Any]) -> dict[str, LabelRule]:
    """Return the rules of the losses of a compiled and built model, by the names of the labels.

    Args:
        model: The model.
        labels: The labels of the data.
    """
    rules: dict[str, LabelRule] = {}
    for path, loss, *_ in getattr(model._compile_loss, "_flat_losses", None) or []:
        name = next(iter(labels)) if len(labels) == 1 else str(path[-1] if path else "")
        rule = _find_rule(loss)
        if rule is not None and name in labels:
            rules[name] = rule.below(classes) if rule.whole and (classes := _count_classes(model)) else rule
    return rules


def _find_rule(loss: Any) -> LabelRule | None:
    """Return the rule of a loss; None for a user's own function, and for one that takes any label."""
    settings = getattr(loss, "_fn_kwargs", {})
    try:
        rule = _RULES.get(getattr(loss, "fn", None))
    except TypeError:  # a callable that cannot be hashed is the user's own
        return None
    return rule if rule is None or not rule.whole else replace(rule, ignored=settings.get("ignore_class"))


def _count_classes(model: Any) -> int | None:
    """Return how many classes a model with one output has; None if it does not say."""
    try:
        shape = model.output_shape
    except (AttributeError, ValueError):  # models of the user's own class do not know it
        return None
    last = shape[-1] if isinstance(shape, tuple) and shape else None
    return last if isinstance(last, int) and last > 1 else None
