"""Inspects Keras objects for snapshots. Of what Keras keeps for itself only the settings count."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from cerebro_spark.trainer.keras.signature import (
    WRAPPERS,
    framework_bases,
    is_foreign,
    is_framework,
    names_set_by_keras,
    read_value,
)
from cerebro_spark.trainer.sharing.inspection import (
    ABSENT,
    Inspection,
    Inspector,
    describe_array,
    guard_objects,
    inspect_leaf,
)
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot

_SETTINGS = (bool, int, float, str, type(None), types.FunctionType)
# What Keras sets by itself while it trains, and modes that every unit sets.
_ASIDE = WRAPPERS | {"built", "stop_training", "training", "compiled", "iterations", "supports_jit"}
_ASIDE |= {"train_function", "test_function", "predict_function"}


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
        if isinstance(value, type | dict | list | tuple | set) or not framework_bases(value):
            return None
        kind = type(value).__name__
        if isinstance(value, keras.Variable) and id(value) in self._saved:
            return Inspection(f"variable {value.path}")
        if isinstance(value, keras.layers.Layer):
            return self._inspect_layer(value)
        if isinstance(value, keras.optimizers.Optimizer):
            return _inspect_settings(value, f"{'the' if id(value) in self._saved else 'another'} {kind}")
        if isinstance(value, keras.Metric):
            return Inspection(f"a {kind}")
        if _is_generator(value):
            return Inspection("a generator", [(".state", value.state)])
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _inspect_value(value)
        # Objects of Keras and TensorFlow themselves have no other state, but those of users' subclasses may.
        if hasattr(value, "__dict__") and (isinstance(value, keras.losses.Loss) or not is_framework(type(value))):
            return _inspect_settings(value, f"a {kind}")
        return Inspection(f"a {kind}")

    def _inspect_layer(self, layer: Any) -> Inspection:
        children = [(f".{child.name}", child) for child in layer._layers]
        inspection = _inspect_settings(layer, f"a {type(layer).__name__}", children)
        guards = [*inspection.guards, guard_objects(lambda: layer._layers)]
        if layer is self._model:
            guards.append(guard_objects(lambda: _compiled_parts(layer)))
        return inspection._replace(guards=guards)


def _compiled_parts(model: Any) -> list[Any]:
    variables = model.variables
    return [model.optimizer, model.loss, *variables, *(variable.trainable for variable in variables)]


def _is_generator(value: Any) -> bool:
    if type(value).__module__.startswith("tensorflow"):
        return hasattr(getattr(value, "state", None), "assign")
    return isinstance(value, keras.random.SeedGenerator)


def _inspect_settings(thing: Any, fact: str, more: Iterable[tuple[str, Any]] = ()) -> Inspection:
    """Inspect the attributes of a layer, optimizer or loss that a user may have set, and `more` parts.

    If Keras adds an attribute of its own, the object is inspected again.
    """
    own = names_set_by_keras(thing)
    visible = {name: value for name, value in vars(thing).items() if _counts(name, value, own)}
    parts = [(".trainable" if name == "_trainable" else f".{name}", value) for name, value in visible.items()]
    size = len(vars(thing))

    def read() -> list[Any]:
        own = vars(thing)
        return [own.get(name, ABSENT) for name in visible]

    guards = [lambda: len(vars(thing)) == size, guard_objects(read)]
    return Inspection(fact, [*parts, *more, (".__class__", type(thing))], guards, type(thing).__name__)


def _counts(name: str, value: Any, own: frozenset[str]) -> bool:
    if name in _ASIDE or name.startswith("_self_"):
        return False
    if name not in own or name == "_trainable":
        return True
    return isinstance(value, _SETTINGS) if not name.startswith("_") else is_foreign(value)


def _inspect_value(value: Any) -> Inspection:
    """Inspect a variable or tensor that no checkpoint has."""
    if read_value(value) is None:
        return Inspection("a symbol")
    kind = "variable" if hasattr(value, "assign") else "tensor"
    return inspect_leaf(lambda: describe_array(np.asarray(keras.ops.convert_to_numpy(value)), kind))
