"""Inspects one object: what it is, what is inside, and how to see quickly that neither has changed."""

from __future__ import annotations

import hashlib
import types
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import count
from operator import is_
from random import Random, SystemRandom
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from cerebro_spark.trainer.sharing.buffers import is_buffer, read_buffer
from cerebro_spark.trainer.sharing.holders import HOLDERS, cached_states, held_parts, list_held
from cerebro_spark.trainer.sharing.iterators import describe_progress, is_iterator
from cerebro_spark.trainer.sharing.user_code import (
    CACHED,
    class_data,
    class_objects,
    function_parts,
    functions_of,
    globals_in,
    is_opaque,
    is_settled,
    is_users,
    method_parts,
    named_in,
    namespaces,
    read_cell,
    references,
)

Guard = Callable[[], bool]
"""Returns whether an object is still as it was when it was inspected."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), slice, range)
"""The types of values without parts, which are compared by their repr."""

ABSENT = object()
"""What a guard finds in place of an attribute or global that is gone."""

_MAX_SHOWN = 8
_MAX_SHA256 = 1 << 16
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType)


class Inspection(NamedTuple):
    """What was found of one object.

    Attributes:
        fact: What the object is, without its parts; two objects of equal facts and parts are equal.
        parts: The objects inside, by the text that leads to them from this one, such as ".rate" or "[0]".
        guards: All of them return True as long as neither the fact nor the parts have changed.
        label: If given, the names of the parts begin with it instead of the path: the name of a class.
        carried: The names of parts that have changed and hop with the object's own state: they count as unchanged.
    """

    fact: Any = None
    parts: Iterable[tuple[str, Any]] = ()
    guards: Iterable[Guard] = ()
    label: str = ""
    carried: frozenset[str] = frozenset()


class Inspector(Protocol):
    """Inspects the objects of a framework; returns None for all others."""

    def __call__(self, value: Any) -> Inspection | None: ...


def inspect_value(value: Any) -> Inspection:
    """Inspect anything that needs no framework: containers, arrays, generators, functions, objects."""
    if isinstance(value, Mapping) and isinstance(value, dict | types.MappingProxyType):
        return Inspection("a dict", _name_items(value), [guard_items(value)])
    if isinstance(value, list | tuple | deque):
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
        return Inspection(f"a {type(value).__name__}", parts, [guard_objects(lambda: value)])
    if isinstance(value, set | frozenset):
        return inspect_leaf(lambda: f"the set {sorted(map(_key, value))}")
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        parts = [(f"[{index}]", item) for index, item in enumerate(value.reshape(-1).tolist())]
        return Inspection(f"array of objects {list(value.shape)}", parts, [guard_objects(lambda: value.reshape(-1))])
    if isinstance(value, np.ndarray | np.generic):
        return inspect_leaf(lambda: describe_array(np.asarray(value)))
    if isinstance(value, np.random.SeedSequence):
        return inspect_leaf(lambda: f"a generator of seeds with {value.n_children_spawned} children")
    if isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator | Random):
        return inspect_leaf(partial(_describe_generator, value))
    if isinstance(value, count | Fraction | Decimal):
        return inspect_leaf(lambda: repr(value))
    if is_buffer(value):
        return inspect_leaf(lambda: _describe_buffer(value))
    if is_iterator(value):
        return inspect_leaf(lambda: describe_progress(value))
    if isinstance(value, type):
        return _inspect_class(value)
    if isinstance(value, HOLDERS):
        guard = guard_objects(lambda: list_held(value))
        return Inspection(f"a {type(value).__name__}", held_parts(value), [guard])
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


def guard_functions(functions: Sequence[types.FunctionType]) -> Guard:
    """Return a guard of functions: they refer to the very same objects, and to no more.

    It is called after every unit: the places to look at are found only once.
    """
    found = {(id(r.holder), r.key): (r.holder, r.key) for function in functions for r in references(function)}
    places = [(holder, key, holder[key]) for holder, key in found.values()]
    held = [(cell, read_cell(cell)) for function in functions for cell in function.__closure__ or ()]
    settings = [(function, function.__defaults__, vars(function), len(vars(function))) for function in functions]
    missing = _missing_globals(functions)
    items = [own for function in functions for own in (vars(function), function.__kwdefaults__) if own]
    guards = [guard_items(own) for own in items]

    def same() -> bool:
        return (
            all(holder.get(key, ABSENT) is then for holder, key, then in places)
            and all(read_cell(cell) is then for cell, then in held)
            and all(f.__defaults__ is defaults and len(own) == size for f, defaults, own, size in settings)
            and all(known.keys().isdisjoint(names) for known, names in missing)
            and all(guard() for guard in guards)
        )

    return same


def _missing_globals(functions: Sequence[types.FunctionType]) -> list[tuple[dict[str, Any], set[str]]]:
    """Return the names in functions that are no globals yet, with the globals that they may appear in."""
    missing: dict[int, tuple[dict[str, Any], set[str]]] = {}
    for function in functions:
        for _, known in namespaces(function):
            _, names = missing.setdefault(id(known), (known, set()))
            find = globals_in if known is function.__globals__ else named_in
            names.update(name for name in find(function.__code__) if name not in known)
    return list(missing.values())


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
    # A large one is read after every unit, as fast as memory allows.
    hashed = hashlib.sha256(contents) if contents.nbytes <= _MAX_SHA256 else xxhash.xxh3_128(contents)
    digest = hashed.hexdigest()[:8]
    return f"{kind} of {array.dtype} {list(array.shape)} with digest {digest}"


def _describe_generator(generator: Any) -> str:
    if isinstance(generator, SystemRandom):
        return "the system's generator"
    if isinstance(generator, Random):
        state: Any = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = [part.tolist() if isinstance(part, np.ndarray) else part for part in generator.get_state()]
    else:
        own = getattr(generator, "bit_generator", generator)
        state = {key: str(part) for key, part in own.state.items()}
        # `spawn` counts its children there, and leaves the state as it is.
        state["children"] = getattr(getattr(own, "seed_seq", None), "n_children_spawned", 0)
    return f"a generator in state {hashlib.sha256(repr(state).encode()).hexdigest()[:8]}"


def _describe_buffer(buffer: Any) -> str:
    contents = read_buffer(buffer)
    return f"{type(buffer).__name__} {describe_array(np.frombuffer(contents, np.uint8), 'of bytes ')}"


def _inspect_callable(value: Any) -> Inspection | None:
    if isinstance(value, types.FunctionType):
        if not is_users(value.__module__):
            return Inspection(f"function {value.__qualname__}")
        guard = guard_functions([value])
        return Inspection(f"function {value.__qualname__}", function_parts(value), [guard], value.__name__)
    if isinstance(value, CACHED):
        return Inspection(
            "a function with a cache", [(".__wrapped__", value.__wrapped__), (".<global>.cache", cached_states(value))]
        )
    if isinstance(value, types.MethodType):
        return Inspection(f"method {value.__func__.__qualname__}", [(".__self__", value.__self__)])
    if isinstance(value, partial):
        return Inspection("a partial", [(".func", value.func), (".args", value.args), (".keywords", value.keywords)])
    return None


def _inspect_class(kind: type) -> Inspection:
    fact = f"class {kind.__qualname__}"
    if not is_users(kind.__module__):
        return Inspection(fact)
    parts = [(f".{name}", value) for name, value in class_data(kind).items()]
    parts += method_parts(kind)
    parts += [(f".{name}", value) for name, value in class_objects(kind)]
    parts += [(".<metaclass>", type(kind))] if is_users(type(kind).__module__) else []
    parts += [(f".__bases__[{index}]", base) for index, base in enumerate(kind.__bases__)]
    functions = [function for _, function in functions_of(kind)]
    return Inspection(fact, parts, [guard_items(vars(kind)), guard_functions(functions)], kind.__name__)


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


def _name_items(mapping: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Return the items of a dict by names of their own: keys that are described alike are numbered."""
    parts, alike = [], Counter[str]()
    for key, item in mapping.items():
        text = _key(key)
        alike[text] += 1
        parts.append((f"[{text}]" if alike[text] == 1 else f"[{text} {alike[text]}]", item))
    return parts


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return f"({', '.join(map(_key, key))})"
    if isinstance(key, PLAIN) or type(key).__name__ in ("device", "dtype"):
        return repr(key)
    return f"a {type(key).__name__}"
