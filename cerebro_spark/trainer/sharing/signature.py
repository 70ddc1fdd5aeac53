"""Signatures of objects, equal only if they behave alike: trials share a built model by them. In doubt they differ."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from itertools import chain, count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from cerebro_spark.trainer.sharing.user_code import cells

Describer = Callable[[Any], Any]

_MAX_DEPTH = 30
_POINTER_BYTES = 8
_unique = count()
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Instead(NamedTuple):
    """What a describer returns to have another value described in place of the one it was given."""

    value: Any


class _Parts(NamedTuple):
    """What a value is, and the values inside it, which are described in turn."""

    fact: Any
    values: list[Any]


def compute_signature(*parts: Any, special: Describer | None = None) -> str:
    """Return a digest that is equal only for objects that behave alike in this process.

    Plain values and containers count by value, classes by identity (a class made inside a function is new in every
    call), functions by code, defaults, attributes and closure, partials by what they bind, other objects by class and
    attributes. An object that cannot be described completely (its state is hidden from Python, or nested more than 30
    levels deep) has a signature that equals no other, not even its own.

    Args:
        *parts: The objects.
        special: Describes the objects of a framework. It returns a description, another value to describe `Instead`,
            or None for all other objects; None (the default) if there are none.

    >>> compute_signature({"units": 3}) == compute_signature({"units": 3})
    True
    >>> compute_signature(lambda x: x + 1) == compute_signature(lambda x: x + 2)
    False
    >>> compute_signature(open) == compute_signature(open), compute_signature(object()) == compute_signature(object())
    (True, False)
    """
    text = repr([_describe(part, special, ()) for part in parts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def unlike_everything() -> str:
    """Return a description that equals no other."""
    return f"?{next(_unique)}"


def class_token(kind: Any) -> str:
    """Return a name of a class or function that no other has in this process, not even after it was collected."""
    return f"{kind.__module__}.{kind.__qualname__}#{_number(kind)}"


def _number(thing: Any) -> int:
    """Return a number that only this class or function has, or code that is equal: code is equal by value."""
    return _numbers.setdefault(thing, next(_unique))


def _describe(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return ("cycle", above.index(id(value)))
    if len(above) > _MAX_DEPTH:
        return unlike_everything()
    found = None if special is None else special(value)
    if found is None:
        found = _look_inside(value)
    above = (*above, id(value))
    if isinstance(found, Instead):
        return _describe(found.value, special, above)
    if not isinstance(found, _Parts):
        return found
    parts = [_describe(part, special, above) for part in found.values]
    return (found.fact, sorted(map(repr, parts)) if isinstance(value, set | frozenset) else parts)


def _look_inside(value: Any) -> Any:
    """Return a description of a value without parts; of any other, what it is and its parts."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return (kind.__name__, repr(value))
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _look_inside_container(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return _Parts(("objects", array.shape), [array.tolist()])
        return ("array", str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).hexdigest())
    if isinstance(value, type):
        return class_token(value)
    if isinstance(value, enum.Enum):
        return ("enum", class_token(kind), value.name)
    if isinstance(value, np.dtype):
        return ("dtype", str(value))
    if kind is inspect.Signature:  # as objects of torchmetrics have it
        taken = [(each.name, int(each.kind), each.default) for each in value.parameters.values()]
        return _Parts(("parameters", str(value)), taken)
    return _look_inside_callable(value) or _look_inside_object(value)


def _look_inside_container(value: Any) -> _Parts:
    kind = type(value)
    items = list(chain.from_iterable(value.items()) if isinstance(value, Mapping) else value)
    if kind in (dict, list, tuple, set):
        return _Parts(kind, items)
    # What a subclass may add: the factory of a defaultdict, attributes.
    more = [getattr(value, "default_factory", None), getattr(value, "__dict__", None)]
    return _Parts(class_token(kind), [*items, more])


def _look_inside_callable(value: Any) -> Any:
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__, id(value))
    if isinstance(value, types.BuiltinFunctionType):
        free = value.__self__ is None or isinstance(value.__self__, types.ModuleType)
        return _Parts(("builtin", value.__qualname__, id(value) if free else None), [value.__self__])
    if isinstance(value, types.FunctionType):
        return _look_inside_function(value)
    if isinstance(value, types.MethodType):
        return _Parts("method", [value.__func__, value.__self__])
    if type(value) is functools.partial:
        return _Parts("partial", [value.func, value.args, value.keywords, vars(value)])
    return None


def _look_inside_function(function: types.FunctionType) -> _Parts:
    attributes = {name: v for name, v in vars(function).items() if name != "__wrapped__"}
    if getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function:
        return _Parts(("global", class_token(function)), [attributes])
    fact = ("function", _number(function.__code__), id(function.__globals__))
    closure = chain.from_iterable(cells(function))
    return _Parts(fact, [*closure, function.__defaults__, function.__kwdefaults__, attributes])


def _look_inside_object(value: Any) -> Any:
    if not hasattr(value, "__dict__") or _hides_state(type(value)):
        return unlike_everything()
    return _Parts(("object", class_token(type(value))), [vars(value)])


def _hides_state(kind: Any) -> bool:
    """Whether instances have state outside of their `__dict__`: slots, or the fields of a type written in C."""
    seen = object.__basicsize__ + _POINTER_BYTES * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return bool(kind.__itemsize__) or kind.__basicsize__ > seen
