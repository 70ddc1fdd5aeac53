"""Inspects one object: what it is, what is inside, and how to see quickly that neither has changed."""

from __future__ import annotations

import hashlib
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import count
from operator import is_
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np

from cerebro_spark.trainer.sharing.user_code import (
    class_data,
    function_parts,
    is_opaque,
    is_settled,
    is_users,
    method_globals,
)

Guard = Callable[[], bool]
"""Returns whether an object is still as it was when it was inspected."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), slice, range)
"""The types of values without parts, which are compared by their repr."""

ABSENT = object()
"""What a guard finds in place of an attribute or global that is gone."""

_MAX_SHOWN = 8
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType)


class Inspection(NamedTuple):
    """What was found of one object.

    Attributes:
        fact: What the object is, without its parts; two objects of equal facts and parts are equal.
        parts: The objects inside, by the text that leads to them from this one, such as ".rate" or "[0]".
        guards: All of them return True as long as neither the fact nor the parts have changed.
        label: If given, the names of the parts begin with it instead of the path: the name of a class.
    """

    fact: Any = None
    parts: Iterable[tuple[str, Any]] = ()
    guards: Iterable[Guard] = ()
    label: str = ""


class Inspector(Protocol):
    """Inspects the objects of a framework; returns None for all others."""

    def __call__(self, value: Any) -> Inspection | None: ...


def inspect_value(value: Any) -> Inspection:
    """Inspect anything that needs no framework: containers, arrays, generators, functions, objects."""
    if isinstance(value, Mapping) and isinstance(value, dict | types.MappingProxyType):
        parts = [(f"[{_key(key)}]", item) for key, item in value.items()]
        return Inspection("a dict", parts, [guard_items(value)])
    if isinstance(value, list | tuple | deque):
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
        return Inspection(f"a {type(value).__name__}", parts, [guard_objects(lambda: value)])
    if isinstance(value, set | frozenset):
        return inspect_leaf(lambda: f"the set {sorted(map(_key, value))}")
    if isinstance(value, np.ndarray | np.generic):
        return inspect_leaf(lambda: describe_array(np.asarray(value)))
    if isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator | Random):
        return inspect_leaf(partial(_describe_generator, value))
    if isinstance(value, count):
        return inspect_leaf(lambda: repr(value))
    if isinstance(value, type):
        return _inspect_class(value)
    if isinstance(value, _CODE):
        return Inspection(f"{type(value).__name__} {getattr(value, '__name__', '')}")
    return _inspect_callable(value) or _inspect_object(value)


def inspect_leaf(describe: Callable[[], Any]) -> Inspection:
    """Inspect an object without parts, which is compared by what `describe()` returns."""
    then = describe()
    return Inspection(then, (), [lambda: describe() == then])


def guard_items(mapping: Mapping[Any, Any]) -> Guard:
    """Return a guard of a dict: it has the same keys, and the very same values."""
    keys, values = list(mapping), list(mapping.values())
    return lambda: len(mapping) == len(keys) and list(mapping) == keys and all(map(is_, mapping.values(), values))


def guard_objects(read: Callable[[], Collection[Any]]) -> Guard:
    """Return a guard of some objects: `read()` returns the very same ones, in the same order."""
    then = list(read())

    def same() -> bool:
        now = read()
        return len(now) == len(then) and all(map(is_, now, then))

    return same


def describe_array(array: np.ndarray[Any, Any], kind: str = "array") -> str:
    """Describe an array: a small one by its values, a large one by a digest.

    >>> describe_array(np.zeros(2)), describe_array(np.zeros(100))
    ('array([0.0, 0.0])', 'array of float64 [100] with digest 67042dfd')
    """
    if array.dtype.hasobject:
        return f"{kind} of objects {list(array.shape)}"
    if array.size <= _MAX_SHOWN:
        return f"{kind}({array.tolist()})"
    contents: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.sha256(contents).hexdigest()[:8]
    return f"{kind} of {array.dtype} {list(array.shape)} with digest {digest}"


def _describe_generator(generator: Any) -> str:
    if isinstance(generator, Random):
        state: Any = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = [part.tolist() if isinstance(part, np.ndarray) else part for part in generator.get_state()]
    else:
        own = getattr(generator, "bit_generator", generator)
        state = {key: str(part) for key, part in own.state.items()}
    return f"a generator in state {hashlib.sha256(repr(state).encode()).hexdigest()[:8]}"


def _inspect_callable(value: Any) -> Inspection | None:
    if isinstance(value, types.FunctionType):
        if not is_users(value.__module__):
            return Inspection(f"function {value.__qualname__}")
        guard = guard_objects(lambda: [part for _, part in function_parts(value)])
        return Inspection(f"function {value.__qualname__}", function_parts(value), [guard], value.__name__)
    if isinstance(value, types.MethodType):
        return Inspection(f"method {value.__func__.__qualname__}", [(".__self__", value.__self__)])
    if isinstance(value, partial):
        return Inspection("a partial", [(".func", value.func), (".args", value.args), (".keywords", value.keywords)])
    return None


def _inspect_class(kind: type) -> Inspection:
    fact = f"class {kind.__qualname__}"
    if not is_users(kind.__module__):
        return Inspection(fact)
    used = method_globals(kind)
    parts = [(f".{name}", value) for name, value in class_data(kind).items()]
    parts += [(f".{method.__name__}.<global>.{name}", value) for name, method, value in used]
    parts += [(f".__bases__[{index}]", base) for index, base in enumerate(kind.__bases__)]
    guard = guard_objects(lambda: [method.__globals__.get(name, ABSENT) for name, method, _ in used])
    return Inspection(fact, parts, [guard_items(vars(kind)), guard], kind.__name__)


def _inspect_object(value: Any) -> Inspection:
    kind = type(value)
    fact = f"a {kind.__name__}"
    if is_opaque(kind):
        return Inspection(fact)
    own = getattr(value, "__dict__", {})
    parts = [(f".{name}", part) for name, part in own.items() if not is_settled(kind, name)]
    guards = [guard_items(own)]
    slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
    if slots:
        parts += [(f".{name}", getattr(value, name)) for name in slots]
        guards.append(guard_objects(lambda: [getattr(value, name, ABSENT) for name in slots]))
    return Inspection(fact, [*parts, (".__class__", kind)], guards, kind.__name__)


def _slots(base: type) -> list[str]:
    slots = vars(base).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, PLAIN) else f"a {type(key).__name__}"
