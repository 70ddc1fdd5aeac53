"""Signatures of Keras models: models of equal signatures share one traced model."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from cerebro_spark.trainer.sharing.signature import Instead, class_token, compute_signature, unlike_everything

_FRAMEWORKS = ("keras", "tensorflow", "torch")
# The packages whose objects a configuration describes well enough.
_KNOWN = (*_FRAMEWORKS, "builtins", "inspect", "numpy", "collections")
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
    optimizer = _describe_optimizer(model.optimizer)
    special = functools.partial(_describe_part, known)
    return compute_signature(config, compiled, layers, shapes, optimizer, special=special)


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
    regularizers: a configuration has only their names), and what `adapt` left. Attributes that other code sets all
    count.
    """
    own = names_set_by_keras(thing)
    counted = {
        name: value
        for name, value in vars(thing).items()
        if name not in WRAPPERS and (is_foreign(value) if name in own or name.startswith("_self_") else True)
    }
    return {**counted, **{f"adapted {name}": value for name, value in read_adapted(thing).items()}}


def read_adapted(thing: Any) -> dict[str, Any]:
    """Return what `adapt` left in a preprocessing layer: no configuration has it, and no variable that `call` reads."""
    if isinstance(thing, keras.layers.Normalization):
        return {name: read_value(getattr(thing, name, None)) for name in ("mean", "variance")}
    if isinstance(thing, keras.layers.Discretization):
        return {"bin_boundaries": thing.bin_boundaries}
    if isinstance(thing, keras.layers.StringLookup | keras.layers.IntegerLookup):
        weights = getattr(thing, "idf_weights_const", None)
        return {"vocabulary": list(thing.get_vocabulary()), "idf_weights": read_value(weights)}
    return {}


def framework_bases(value: Any) -> tuple[type, ...]:
    """Return those of the classes of an object that Keras, TensorFlow or PyTorch define."""
    return tuple(base for base in type(value).__mro__ if is_framework(base))


def is_framework(thing: Any) -> bool:
    """Whether Keras, TensorFlow or PyTorch define a class or function."""
    return _root(thing) in _FRAMEWORKS


def _root(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]


def names_set_by_keras(thing: Any) -> frozenset[str]:
    """Return the attributes of an object that the code of its framework sets."""
    return _names_of_bases(framework_bases(thing))


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
    return frozenset(name for function in plain for name in _names_set(function.__code__))


def _names_set(code: types.CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_set(constant)


def is_foreign(value: Any) -> bool:
    """Whether a value is code, or an object of a class that no framework defines, or a container of one."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return any(map(is_foreign, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, types.FunctionType):
        return not is_framework(value)
    return isinstance(value, types.MethodType) or _root(type(value)) not in _KNOWN


def read_value(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the value of a variable or tensor; None for a symbol of a graph, which has none, and for None."""
    if value is None:
        return None
    try:
        return np.asarray(keras.ops.convert_to_numpy(value))
    except _UNSUPPORTED:
        return None


def _describe_part(known: Mapping[int, Any], value: Any) -> Any:
    """Describe a part of the model by its place in it, other objects of Keras by configuration and attributes."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, type) or not framework_bases(value):
        return None
    if isinstance(value, dict | list | set):
        # Wrappers that only keep track of what is put into them.
        plain = next(kind for kind in (dict, list, set) if isinstance(value, kind))
        return Instead(plain(value))
    if isinstance(value, keras.KerasTensor):
        return ("symbol", tuple(value.shape), value.dtype)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = read_value(value)
        return unlike_everything() if array is None else Instead(("values", array))
    return _describe_settings(value)


def _describe_settings(value: Any) -> Any:
    config = None
    try:
        config = value.get_config()
    except _UNSUPPORTED:
        if is_framework(type(value)):
            return unlike_everything()
    return Instead((class_token(type(value)), config, attributes(value) if hasattr(value, "__dict__") else None))
