"""Inspects Keras objects for snapshots. Of what Keras keeps for itself only the settings count."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.keras.signature import (
    WRAPPERS,
    framework_bases,
    is_foreign,
    is_framework,
    names_set_by_keras,
    read_adapted,
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
from cerebro_spark.trainer.sharing.user_code import functions_of, is_users, named_in

_SETTINGS = (bool, int, float, str, type(None), types.FunctionType)
# What Keras sets by itself while it trains, and modes that every unit sets.
_ASIDE = WRAPPERS | {"built", "stop_training", "training", "compiled", "supports_jit"}
_ASIDE |= {"train_function", "test_function", "predict_function", "stop_evaluating", "stop_predicting"}
# The attributes that `adapt` replaces.
_ADAPTED = ("mean", "variance", "bin_boundaries", "lookup_table", "idf_weights_const")


def take_keras_snapshot(model: Any, default_seed: Any) -> ObjectSnapshot:
    """Take a snapshot of a compiled and built model."""
    metrics = list(_list_metrics(model.metrics))
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, default_seed]

    def roots() -> dict[str, Any]:
        return {
            "variables": {f"{index} {v.path}": v.trainable for index, v in enumerate(model.variables)},
            "model": model,
            "optimizer": model.optimizer,
            "loss": model.loss,
            "metrics": metrics,
        }

    return ObjectSnapshot(roots, lambda: KerasInspector([*variables, model.optimizer, *metrics], model))


def _list_metrics(metrics: Iterable[Any]) -> Iterator[Any]:
    """Yield the metrics of a model, with those inside them."""
    for metric in metrics:
        parts = getattr(metric, "metrics", None)
        if parts is None:
            yield metric
        yield from _list_metrics(metric._metrics if parts is None else parts)


class KerasInspector(Inspector):
    """Inspects layers, optimizers, losses, metrics and variables.

    Args:
        saved: The variables that are saved, the optimizer of which they are, and the metrics that are measured.
        model: The model of which they are.
    """

    def __init__(self, saved: list[Any] | None = None, model: Any = None) -> None:
        # Kept, so that no other object gets their ids.
        self._saved = {id(thing): thing for thing in saved or []}
        self._model = model
        self._resets = False

    def __call__(self, value: Any) -> Inspection | None:
        self._resets = self._resets or any("reset_state" in named_in(each.__code__) for each in _functions(value))
        if isinstance(value, type | dict | list | tuple | set) or not framework_bases(value):
            return None
        kind = type(value).__name__
        if isinstance(value, keras.Variable) and id(value) in self._saved:
            return Inspection(f"variable {value.path}")
        if isinstance(value, keras.layers.Layer):
            return self._inspect_layer(value)
        if isinstance(value, keras.optimizers.Optimizer):
            saved = id(value) in self._saved
            return _inspect_settings(value, f"the {kind}") if saved else self._inspect_other_optimizer(value)
        if _is_torch_optimizer(value):
            return _inspect_torch_optimizer(value)
        if isinstance(value, keras.Metric):
            return _inspect_settings(value, f"a {kind}") if id(value) in self._saved else self._inspect_tracker(value)
        if _is_data_iterator(value):
            raise ConfigurationError(
                "a function or an object of yours keeps an iterator over a tf.data.Dataset. How far it has come hops"
                " with no checkpoint, so that trials would share it: make it where it is used, in train_fn or model_fn"
            )
        if _is_generator(value):
            return Inspection("a generator", [(".state", value.state)])
        if hasattr(value, "python_function"):
            return Inspection("a tf.function", [(".python_function", value.python_function)])
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _inspect_value(value)
        # Objects of Keras and TensorFlow themselves have no other state, but those of users' subclasses may.
        if hasattr(value, "__dict__") and (isinstance(value, keras.losses.Loss) or not is_framework(type(value))):
            return _inspect_settings(value, f"a {kind}")
        return Inspection(f"a {kind}")

    def _inspect_tracker(self, metric: Any) -> Inspection:
        """Inspect a metric that only the user's functions know of: what it has counted, unless they reset it."""
        state = _TrackerState(self, metric)
        return Inspection(state, (), [lambda: _TrackerState(self, metric) == state])

    @property
    def resets(self) -> bool:
        """Whether a function of the user's that was seen resets metrics."""
        return self._resets

    def _inspect_layer(self, layer: Any) -> Inspection:
        children = [(f".{child.name}", child) for child in layer._layers]
        if isinstance(layer, keras.Model):
            children.append((".optimizer", getattr(layer, "optimizer", None)))
        adapted = _read_unsaved_adapted(layer)
        children.extend((f".{name}", value) for name, value in adapted.items())
        inspection = _inspect_settings(layer, f"a {type(layer).__name__}", children)
        guards = [*inspection.guards, guard_objects(lambda: layer._layers)]
        if adapted:
            guards.append(guard_objects(lambda: [getattr(layer, name, None) for name in _ADAPTED]))
        if layer is self._model:
            guards.append(guard_objects(lambda: _compiled_parts(layer)))
        return inspection._replace(guards=guards)

    def _inspect_other_optimizer(self, optimizer: Any) -> Inspection:
        """Inspect an optimizer that the model was not compiled with, with its variables.

        Moments that are still zero do not count: Keras makes them when the optimizer is built, used or not.
        """
        inspection = _inspect_settings(optimizer, f"another {type(optimizer).__name__}")

        def counts(variable: Any) -> bool:
            value = read_value(variable)
            used = variable is optimizer.iterations or (value is not None and bool(value.any()))
            return used and id(variable) not in self._saved

        def read() -> list[Any]:
            return [variable for variable in optimizer.variables if counts(variable)]

        parts = [(f".variable {n} {v.path}", v) for n, v in enumerate(optimizer.variables) if counts(v)]
        guards = [*inspection.guards, guard_objects(read)]
        return inspection._replace(parts=[*inspection.parts, *parts], guards=guards, label="")


class _TrackerState:
    """What a metric has counted. All states are equal if the user's functions reset metrics: that ends what it counts.

    Which functions there are is known only after all were seen.
    """

    def __init__(self, inspector: KerasInspector, metric: Any) -> None:
        self._inspector = inspector
        self._counted = [describe_array(np.asarray(variable.numpy())) for variable in metric.variables]
        self._kind = type(metric).__name__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TrackerState):
            return NotImplemented
        return self._inspector.resets or self._counted == other._counted

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"a {self._kind} of {', '.join(self._counted)}"


def _functions(value: Any) -> list[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        return [value] if is_users(value.__module__) else []
    return [function for _, function in functions_of(value)] if isinstance(value, type) else []


def _is_data_iterator(value: Any) -> bool:
    return any(kind.__name__ == "IteratorBase" and "data.ops" in kind.__module__ for kind in type(value).__mro__)


def _read_unsaved_adapted(layer: Any) -> dict[str, Any]:
    """Return what `adapt` left in a layer, but for what hops: on PyTorch a Normalization reads views of variables."""
    if isinstance(layer, keras.layers.Normalization) and keras.backend.backend() == "torch":
        return {}
    return read_adapted(layer)


def _compiled_parts(model: Any) -> list[Any]:
    variables = model.variables
    return [model.optimizer, model.loss, *variables, *(variable.trainable for variable in variables)]


def _is_generator(value: Any) -> bool:
    if type(value).__module__.startswith("tensorflow"):
        return hasattr(getattr(value, "state", None), "assign")
    return isinstance(value, keras.random.SeedGenerator)


def _is_torch_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups") and any(
        base.__module__.startswith("torch.optim") for base in type(value).__mro__
    )


def _inspect_torch_optimizer(optimizer: Any) -> Inspection:
    def read() -> list[Any]:
        return list(optimizer.state.values())

    parts = [(f".state {index}", moments) for index, moments in enumerate(read())]
    return Inspection(f"another {type(optimizer).__name__}", parts, [guard_objects(read)])


def _inspect_settings(thing: Any, fact: str, more: Iterable[tuple[str, Any]] = ()) -> Inspection:
    """Inspect the attributes of a layer, optimizer or loss that a user may have set, and `more` parts.

    If Keras adds an attribute of its own, the object is inspected again.
    """
    own = names_set_by_keras(thing)
    counter = {"iterations"} if isinstance(thing, keras.optimizers.Optimizer) else set()
    visible = {name: value for name, value in vars(thing).items() if name not in counter and _counts(name, value, own)}
    parts = [(".trainable" if name == "_trainable" else f".{name}", value) for name, value in visible.items()]
    size = len(vars(thing))

    def read() -> list[Any]:
        own = vars(thing)
        return [own.get(name, ABSENT) for name in visible]

    guards = [lambda: len(vars(thing)) == size, guard_objects(read)]
    return Inspection(fact, [*parts, *more, (".__class__", type(thing))], guards, type(thing).__name__)


def _counts(name: str, value: Any, own: frozenset[str]) -> bool:
    if name in _ASIDE or name.startswith("_self_") or isinstance(value, keras.callbacks.History):
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
