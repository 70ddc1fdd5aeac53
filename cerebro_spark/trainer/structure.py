"""Says when two built models behave alike, so that trials may share one. When in doubt it says that they do not."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

Describer = Callable[[Any], Any]

_unique = count()
_classes: WeakKeyDictionary[type, int] = WeakKeyDictionary()


def signature(*parts: Any, special: Describer | None = None) -> str:
    """A digest that is equal only for things that behave alike in this process.

    Plain values and containers count by value, classes by identity (one made inside a function is new at every call),
    functions by code, defaults and what they close over, other objects by class and attributes. What cannot be
    described is unlike everything, itself included. `special(value)` may describe a value itself, or return None.

    >>> signature({"units": 3}) == signature({"units": 3})
    True
    >>> signature(lambda x: x + 1) == signature(lambda x: x + 2)
    False
    >>> signature(open) == signature(open), signature(object()) == signature(object())
    (True, False)
    """
    text = repr([_describe(part, special, ()) for part in parts])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def unlike_everything() -> str:
    """A description that equals no other."""
    return f"?{next(_unique)}"


def class_token(kind: type) -> str:
    """A name for the class that no other class ever has in this process, not even one made after it was collected."""
    return f"{kind.__module__}.{kind.__qualname__}#{_classes.setdefault(kind, next(_unique))}"


def _describe(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    if special is not None and (own := special(value)) is not None:
        return own
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return (type(value).__name__, repr(value))
    if id(value) in above or len(above) > 30:
        return "(cycle)"
    above = (*above, id(value))
    if isinstance(value, Mapping):
        items = [(_describe(k, special, above), _describe(v, special, above)) for k, v in value.items()]
        return ("map", items)
    if isinstance(value, list | tuple):
        return (type(value).__name__, [_describe(item, special, above) for item in value])
    if isinstance(value, set | frozenset):
        return ("set", sorted(repr(_describe(item, special, above)) for item in value))
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return ("array", str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).hexdigest())
    if isinstance(value, type):
        return class_token(value)
    if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
        return ("id", getattr(value, "__qualname__", value.__name__), id(value))
    if isinstance(value, types.FunctionType):
        return _describe_function(value, special, above)
    if isinstance(value, types.MethodType):
        return ("method", _describe(value.__func__, special, above), _describe(value.__self__, special, above))
    return _describe_object(value, special, above)


def _describe_function(function: types.FunctionType, special: Describer | None, above: tuple[int, ...]) -> Any:
    if _is_global(function):
        return ("global", function.__module__, function.__qualname__, id(function))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_describe(cell.cell_contents, special, above))
        except ValueError:
            cells.append("(empty)")
    defaults = _describe([function.__defaults__, function.__kwdefaults__], special, above)
    return ("function", _describe_code(function.__code__), cells, defaults, id(function.__globals__))


def _describe_code(code: types.CodeType) -> Any:
    consts = [_describe_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return (code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars)


def _describe_object(value: Any, special: Describer | None, above: tuple[int, ...]) -> Any:
    attributes = getattr(value, "__dict__", None)
    if attributes is None or hasattr(type(value), "__slots__"):
        return unlike_everything()
    kind = type(value)
    return ("object", class_token(kind), _describe(attributes, special, above))


def _is_global(function: types.FunctionType) -> bool:
    module = sys.modules.get(function.__module__)
    return getattr(module, function.__qualname__, None) is function
