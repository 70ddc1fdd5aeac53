"""Signatures of Keras models: models of equal signatures share one traced model."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from cerebro_spark.trainer.sharing.signature import Instead, class_token, compute_signature, unlike_everything

_FRAMEWORKS = ("keras", "tensorflow", "torch")
# Wrappers that Keras puts on every layer, and those that this package puts on an optimizer.
WRAPPERS = {"build", "quantize", "get_config", "save_own_variables", "load_own_variables", "update_state"}
_UNSUPPORTED = (AttributeError, NotImplementedError, TypeError, ValueError, RuntimeError)


def compute_model_signature(model: Any) -> str:
    """Return a signature, equal for models that differ only in variables.

    These are weights, optimizer state, learning rate and weight decay.
    """
    try:
        config = model.get_config()
        compiled = dict(model._compile_config.config)
    except _UNSUPPORTED:
        return compute_signature(unlike_everything())
    compiled.pop("optimizer", None)
    flat = list(model._flatten_layers())
    variables = [*model.variables, *model.optimizer.variables]
    shapes = [(v.path, tuple(v.shape), v.dtype, v.trainable) for v in variables]
    layers = [(class_token(type(layer)), attributes(layer)) for layer in flat]
    known: dict[int, Any] = {id(v): ("variable", n) for n, v in enumerate([*variables, *model.metrics_variables])}
    known.update({id(layer): ("layer", index) for index, layer in enumerate(flat)})
    known[id(model.optimizer)] = "optimizer"
    return compute_signature(
        config, compiled, layers, shapes, _describe_optimizer(model.optimizer), special=_make_describer(known)
    )


def _describe_optimizer(optimizer: Any) -> Any:
    config = optimizer.get_config()
    config.pop("name", None)
    rate = optimizer._learning_rate
    if isinstance(rate, keras.Variable):
        config.pop("learning_rate", None)
        rate = None
    if isinstance(getattr(optimizer, "weight_decay", None), keras.Variable):
        config["weight_decay"] = "variable"
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        config["inner_optimizer"] = _describe_optimizer(inner)
    excluded = list(getattr(optimizer, "_exclude_from_weight_decay", None) or [])
    return class_token(type(optimizer)), config, rate, excluded, attributes(optimizer)


def attributes(thing: Any) -> dict[str, Any]:
    """Return what a part of a model has beyond its configuration.

    Of the attributes that Keras' own code sets only those count that hold code or objects of others (activations,
    regularizers: a configuration has only their names). Attributes that other code sets all count.
    """
    own = names_set_by_keras(type(thing))
    return {
        name: value
        for name, value in vars(thing).items()
        if name not in WRAPPERS and (is_foreign(value) if name in own or name.startswith("_self_") else True)
    }


def names_set_by_keras(kind: type) -> frozenset[str]:
    """Return the attributes of a class that Keras' own code sets."""
    return _names_of_bases(tuple(base for base in kind.__mro__ if _root(base) in _FRAMEWORKS))


@functools.lru_cache(maxsize=1000)
def _names_of_bases(bases: tuple[Any, ...]) -> frozenset[str]:
    return _names_of_any_layer().union(*map(_names_set_in, bases))


@functools.cache
def _names_of_any_layer() -> frozenset[str]:
    # On PyTorch a layer is a module as well, which sets its attributes in ways that its code does not show.
    return frozenset(vars(keras.layers.Layer()))


@functools.cache
def _names_set_in(base: Any) -> frozenset[str]:
    """Cached: frameworks' classes stay, unlike those that a `model_fn` makes."""
    functions = [getattr(f, "__func__", getattr(f, "fset", None) or f) for f in vars(base).values()]
    plain = [inspect.unwrap(function) for function in functions if isinstance(function, types.FunctionType)]
    codes = [function.__code__ for function in plain]
    return frozenset(name for code in codes for name in _names_set(code))


def _names_set(code: types.CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_set(constant)


def is_foreign(value: Any) -> bool:
    """Whether a value is code, or an object of a class that no framework defines, or a container of one."""
    if isinstance(value, Mapping):
        return any(is_foreign(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(is_foreign(item) for item in value)
    if isinstance(value, types.FunctionType):
        return value.__module__ is None or value.__module__.split(".")[0] not in _FRAMEWORKS
    if isinstance(value, types.MethodType | functools.partial):
        return True
    return _root(type(value)) not in (*_FRAMEWORKS, "builtins", "inspect", "numpy", "collections")


def _root(kind: type) -> str:
    return kind.__module__.split(".")[0]


def _make_describer(known: Mapping[int, Any]) -> Callable[[Any], Any]:
    """Describe parts of the model by their place in it, other objects of Keras by configuration and attributes."""

    def describe(value: Any) -> Any:
        if id(value) in known:
            return known[id(value)]
        if isinstance(value, type) or not any(_root(base) in _FRAMEWORKS for base in type(value).__mro__):
            return None
        if isinstance(value, dict | list | set):
            # Wrappers that only keep track of what is put into them.
            plain = next(kind for kind in (dict, list, set) if isinstance(value, kind))
            return Instead(plain(value))
        if isinstance(value, keras.KerasTensor):
            return ("symbol", tuple(value.shape), value.dtype)
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return _describe_value(value)
        return _describe_parts(value)

    return describe


def _describe_value(value: Any) -> Any:
    try:
        return Instead(("values", np.asarray(keras.ops.convert_to_numpy(value))))
    except _UNSUPPORTED:
        return unlike_everything()


def _describe_parts(value: Any) -> Any:
    from_framework = _root(type(value)) in _FRAMEWORKS
    try:
        config = value.get_config()
    except _UNSUPPORTED:
        if from_framework:
            return unlike_everything()
        config = None
    return Instead((class_token(type(value)), config, attributes(value) if hasattr(value, "__dict__") else None))
