"""Signatures of objects, equal only if they behave alike: trials share a built model by them. In doubt they differ."""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

Describer = Callable[[Any], Any]

_MAX_DEPTH = 30
_POINTER_BYTES = 8
_unique = count()
_tokens: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


class Instead(NamedTuple):
    """What a describer returns to have another value described in place of the one it was given."""

    value: Any


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
    return f"{kind.__module__}.{kind.__qualname__}#{_tokens.setdefault(kind, next(_unique))}"


def _describe(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    if id(value) in above:
        return ("cycle", above.index(id(value)))
    if len(above) > _MAX_DEPTH:
        return unlike_everything()
    if special is not None and (own := special(value)) is not None:
        return _describe(own.value, special, (*above, id(value))) if isinstance(own, Instead) else own
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return (type(value).__name__, repr(value))
    above = (*above, id(value))
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _describe_container(value, special, above)
    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return ("objects", array.shape, _describe(array.tolist(), special, above))
        return ("array", str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).hexdigest())
    if isinstance(value, type):
        return class_token(value)
    if isinstance(value, enum.Enum):
        return ("enum", class_token(type(value)), value.name)
    if isinstance(value, np.dtype):
        return ("dtype", str(value))
    return _describe_callable(value, special, above) or _describe_object(value, special, above)


def _describe_container(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    kind = type(value)
    # What a subclass may add: the factory of a defaultdict, attributes.
    more = [getattr(value, "default_factory", None), getattr(value, "__dict__", None)]
    extra = (class_token(kind), _describe(more, special, above)) if kind not in (dict, list, tuple, set) else kind
    if isinstance(value, Mapping):
        items = [(_describe(k, special, above), _describe(v, special, above)) for k, v in value.items()]
        return ("map", extra, items)
    items = [_describe(item, special, above) for item in value]
    return ("set", extra, sorted(map(repr, items))) if isinstance(value, set | frozenset) else ("list", extra, items)


def _describe_callable(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__, id(value))
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return ("builtin", value.__qualname__, id(value))
        return ("builtin", value.__qualname__, _describe(owner, special, above))
    if isinstance(value, types.FunctionType):
        return _describe_function(value, special, above)
    if isinstance(value, types.MethodType):
        return ("method", _describe(value.__func__, special, above), _describe(value.__self__, special, above))
    if type(value) is functools.partial:
        bound = [value.func, value.args, value.keywords, vars(value)]
        return ("partial", _describe(bound, special, above))
    return None


def _describe_function(function: types.FunctionType, special: Describer | None, above: tuple[int, ...]) -> Any:
    attributes = {name: v for name, v in vars(function).items() if name != "__wrapped__"}
    described = _describe(attributes, special, above)
    if _is_global(function):
        return ("global", class_token(function), described)
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_describe(cell.cell_contents, special, above))
        except ValueError:
            cells.append("(empty)")
    defaults = _describe([function.__defaults__, function.__kwdefaults__], special, above)
    return ("function", _describe_code(function.__code__), cells, defaults, described, id(function.__globals__))


def _describe_code(code: types.CodeType) -> Any:
    consts = [_describe_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex(), consts, names, counts)


def _describe_object(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    attributes = getattr(value, "__dict__", None)
    if attributes is None or _hides_state(type(value)):
        return unlike_everything()
    return ("object", class_token(type(value)), _describe(attributes, special, above))


def _hides_state(kind: Any) -> bool:
    """Whether instances have state outside of their `__dict__`: slots, or the fields of a type written in C."""
    seen = object.__basicsize__ + _POINTER_BYTES * ((kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return bool(kind.__itemsize__) or kind.__basicsize__ > seen


def _is_global(function: types.FunctionType) -> bool:
    module = sys.modules.get(function.__module__)
    return getattr(module, function.__qualname__, None) is function
