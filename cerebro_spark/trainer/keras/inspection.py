"""Inspects Keras objects for snapshots. Of what Keras keeps for itself only the settings count."""

from __future__ import annotations

import types
from collections.abc import Mapping
from operator import is_
from typing import Any

import keras
import numpy as np

from cerebro_spark.trainer.keras.signature import WRAPPERS, is_foreign, names_set_by_keras
from cerebro_spark.trainer.sharing.inspection import Guard, Inspection, Inspector, describe_array, inspect_leaf
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot

_SETTINGS = (bool, int, float, str, type(None), types.FunctionType)
# What Keras sets by itself while it trains, and modes that every unit sets.
_ASIDE = WRAPPERS | {"built", "stop_training", "training", "compiled", "iterations", "supports_jit"}
_ASIDE |= {"train_function", "test_function", "predict_function"}
_FRAMEWORKS = ("keras", "tensorflow", "torch")


def take_keras_snapshot(model: Any, default_seed: Any) -> ObjectSnapshot:
    """Take a snapshot of a compiled and built model."""
    saved = [*model.variables, *model.optimizer.variables, *model.metrics_variables, default_seed, model.optimizer]

    def roots() -> dict[str, Any]:
        return {
            "variables": {f"{index} {v.path}": v.trainable for index, v in enumerate(model.variables)},
            "model": model,
            "optimizer": model.optimizer,
            "loss": model.loss,
        }

    return ObjectSnapshot(roots, lambda: KerasInspector(saved, model))


class KerasInspector(Inspector):
    """Inspects layers, optimizers, losses and variables, by whether a checkpoint saves them."""

    def __init__(self, saved: list[Any] | None = None, model: Any = None) -> None:
        # Kept, so that no other object gets their ids.
        self._saved = {id(thing): thing for thing in saved or []}
        self._model = model

    def __call__(self, value: Any) -> Inspection | None:
        if isinstance(value, type) or not _is_frameworks(value):
            return None
        if isinstance(value, keras.Variable) and id(value) in self._saved:
            return Inspection(f"variable {value.path}")
        if isinstance(value, keras.layers.Layer):
            return self._inspect_layer(value)
        if isinstance(value, keras.optimizers.Optimizer):
            kind = "the" if id(value) in self._saved else "another"
            return _inspect_settings(value, f"{kind} {type(value).__name__}")
        if isinstance(value, keras.random.SeedGenerator):
            return Inspection("a generator", [(".state", value.state)])
        if isinstance(value, keras.Metric | dict | list | tuple | set):
            return Inspection(f"a {type(value).__name__}") if isinstance(value, keras.Metric) else None
        return _inspect_value(value) if hasattr(value, "dtype") and hasattr(value, "shape") else _inspect_other(value)

    def _inspect_layer(self, layer: Any) -> Inspection:
        children = [(f".{child.name}", child) for child in layer._layers]
        inspection = _inspect_settings(layer, f"a {type(layer).__name__}", children)
        if layer is not self._model:
            return inspection
        variables, flags = list(layer.variables), [v.trainable for v in layer.variables]
        optimizer, loss = layer.optimizer, layer.loss

        def same() -> bool:
            now = layer.variables
            return (
                layer.optimizer is optimizer
                and layer.loss is loss
                and len(now) == len(variables)
                and all(map(is_, now, variables))
                and [v.trainable for v in now] == flags
            )

        return inspection._replace(guards=[*inspection.guards, same])


def _is_frameworks(value: Any) -> bool:
    return any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in type(value).__mro__)


def _inspect_settings(thing: Any, fact: str, more: list[tuple[str, Any]] | None = None) -> Inspection:
    """Inspect the attributes of a layer, optimizer or loss that a user may have set."""
    visible = _visible(thing)
    parts = [(f".{name.removeprefix('_') if name == '_trainable' else name}", v) for name, v in visible.items()]
    name = type(thing).__name__
    return Inspection(fact, [*parts, *(more or []), (".__class__", type(thing))], [_guard_visible(thing, more)], name)


def _visible(thing: Any) -> dict[str, Any]:
    own = names_set_by_keras(type(thing))
    return {name: value for name, value in vars(thing).items() if _counts(name, value, own)}


def _counts(name: str, value: Any, own: frozenset[str]) -> bool:
    if name in _ASIDE or name.startswith("_self_"):
        return False
    if name not in own or name == "_trainable":
        return True
    return isinstance(value, _SETTINGS) if not name.startswith("_") else is_foreign(value)


def _guard_visible(thing: Any, more: list[tuple[str, Any]] | None) -> Guard:
    """Return a guard of the visible attributes. If Keras adds one of its own, the object is inspected again."""
    visible = _visible(thing)
    names, values = list(visible), list(visible.values())
    size = len(vars(thing))
    children = [child for _, child in more or []]

    def same() -> bool:
        own = vars(thing)
        if len(own) != size or not all(
            name in own and own[name] is was for name, was in zip(names, values, strict=True)
        ):
            return False
        now = thing._layers if children else ()
        return len(now) == len(children) and all(map(is_, now, children))

    return same


def _inspect_value(value: Any) -> Inspection:
    """Inspect a variable or tensor that no checkpoint has; a symbol of a graph has no value."""
    if isinstance(value, keras.KerasTensor) or not _has_value(value):
        return Inspection("a symbol")
    kind = "variable" if hasattr(value, "assign") else "tensor"
    return inspect_leaf(lambda: describe_array(np.asarray(keras.ops.convert_to_numpy(value)), kind))


def _has_value(value: Any) -> bool:
    try:
        np.asarray(keras.ops.convert_to_numpy(value))
    except (TypeError, ValueError, NotImplementedError, AttributeError, RuntimeError):
        return False
    return True


def _inspect_other(value: Any) -> Inspection | None:
    """Inspect users' subclasses. Objects of Keras and TensorFlow itself have no state, except for generators."""
    if isinstance(getattr(value, "__dict__", None), Mapping):
        state = getattr(value, "state", None)
        if type(value).__module__.startswith("tensorflow") and hasattr(state, "assign"):
            return Inspection("a generator", [(".state", state)])
        if isinstance(value, keras.losses.Loss) or not _is_frameworks_own(value):
            return _inspect_settings(value, f"a {type(value).__name__}")
    return Inspection(f"a {type(value).__name__}")


def _is_frameworks_own(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _FRAMEWORKS
