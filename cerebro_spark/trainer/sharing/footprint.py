"""All that can be reached from some roots and hops with no checkpoint, as it was at one moment. It never changes it."""

from __future__ import annotations

import hashlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from operator import is_
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np

from cerebro_spark.trainer.sharing.users_code import (
    class_data,
    function_parts,
    is_opaque,
    is_settled,
    is_users,
    method_globals,
)

Guard = Callable[[], bool]

_ABSENT = "(nothing)"
_DEEPEST = 100
_FEW = 8
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), slice, range)
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType)


class Seen(NamedTuple):
    """What a look at one thing saw: a fact about itself, what is inside it by name, and how to see quickly that
    neither has changed. A `label` begins the name of its parts anew, in the words of whoever wrote the class.
    """

    fact: Any = None
    inside: Iterable[tuple[str, Any]] = ()
    guards: Iterable[Guard] = ()
    label: str = ""


class Look(Protocol):
    """A framework's way to see its own things; None for what is not one of them."""

    def __call__(self, value: Any) -> Seen | None: ...


class Change(NamedTuple):
    """The first difference between two footprints: what, as its author would call it, where, and both values."""

    what: str
    place: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"`{self.what}` changed from {self.before} to {self.after}"


class Footprint:
    """What was reachable when it was taken, to be compared with what is now.

    Comparing is cheap while everything is still made of the very same objects; where it is not, everything is looked
    at again, and things count as unchanged if they are equal.

    >>> class Anneal:
    ...     def __init__(self):
    ...         self.steps, self.rates = 0, [0.1]
    >>> layer = Anneal()
    >>> footprint = Footprint(lambda: {"layer": layer}, lambda: lambda value: None)
    >>> layer.rates = [0.1]
    >>> footprint.change()
    >>> layer.steps += 1
    >>> print(footprint.change())
    `Anneal.steps` changed from 0 to 1
    """

    def __init__(
        self,
        roots: Callable[[], Mapping[str, Any]],
        look: Callable[[], Look],
        tidy: Callable[[], None] = lambda: None,
        growing: bool = False,
    ) -> None:
        """`tidy` is called before every look, to put back what may change and means nothing.

        With `growing`, lists and dicts may get more items: a log, or a cache.
        """
        self._growing = growing
        self._roots = roots
        self._look = look
        self.tidy = tidy
        tidy()
        self._taken = self._take()

    def change(self) -> Change | None:
        """The first thing that is not as it was, or None."""
        self.tidy()
        for guard in self._taken.guards:
            if not guard():
                break
        else:
            return None
        now = self._take()
        difference = _first_difference(self._taken, now, self._growing)
        if difference is None:
            self._taken = now
        return difference

    def put_back(self) -> None:
        """Give the user's classes, which everybody shares, the data that they had, and the numbers they count in."""
        for kind, data in self._taken.classes:
            for name in class_data(kind).keys() - data.keys():
                delattr(kind, name)
            for name, (value, contents) in data.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)
                if contents is not None:
                    _refill(value, contents)
        for name, method, value in self._taken.globals:
            method.__globals__[name] = value

    def difference(self, other: Footprint) -> Change | None:
        """The first thing that another footprint has otherwise."""
        return _first_difference(self._taken, other._taken, self._growing)

    def _take(self) -> _Walk:
        walk = _Walk(self._look())
        for name, root in self._roots().items():
            walk.visit(name, name, root, 0)
        return walk


class _Walk:
    """One walk over everything, depth first."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._paths: dict[int, str] = {}
        # As long as they are kept, no other object has their ids.
        self._kept: list[Any] = []
        self.facts: dict[str, Any] = {}
        self.labels: dict[str, str] = {}
        self.guards: list[Guard] = []
        self.globals: list[tuple[str, types.FunctionType, Any]] = []
        self.classes: list[tuple[type, dict[str, tuple[Any, Any]]]] = []

    def visit(self, path: str, label: str, value: Any, depth: int) -> None:
        self.labels[path] = label
        if isinstance(value, _PLAIN):
            self.facts[path] = repr(value)
        elif id(value) in self._paths:
            self.facts[path] = f"the same as {self._paths[id(value)]}"
        elif depth < _DEEPEST:
            self._paths[id(value)] = path
            self._kept.append(value)
            self._enter(path, label, self._look(value) or see(value), depth)
            if isinstance(value, type) and is_users(value.__module__):
                data = class_data(value).items()
                self.globals.extend(method_globals(value))
                self.classes.append((value, {name: (part, _contents(part)) for name, part in data}))

    def _enter(self, path: str, label: str, seen: Seen, depth: int) -> None:
        self.facts[path] = seen.fact
        self.guards.extend(seen.guards)
        label = seen.label or label
        for name, part in seen.inside:
            self.visit(path + name, label + name, part, depth + 1)


def _first_difference(before: _Walk, after: _Walk, growing: bool) -> Change | None:
    grown: tuple[str, ...] = ()
    for path, fact in after.facts.items():
        was = before.facts.get(path, _ABSENT)
        if was is _ABSENT and growing and (path.endswith("]") or path.startswith(grown)):
            grown = (*grown, path)
        elif was != fact:
            return Change(after.labels[path], path, was, fact)
    for path, was in before.facts.items():
        if path not in after.facts:
            return Change(before.labels[path], path, was, _ABSENT)
    return None


def see(value: Any) -> Seen:
    """A look at anything that needs no framework: containers, arrays, generators, functions, objects."""
    if isinstance(value, Mapping) and isinstance(value, dict | types.MappingProxyType):
        inside = [(f"[{_key(key)}]", item) for key, item in value.items()]
        return Seen("a dict", inside, [same_items(value)])
    if isinstance(value, list | tuple | deque):
        inside = [(f"[{index}]", item) for index, item in enumerate(value)]
        return Seen(f"a {type(value).__name__}", inside, [same_sequence(value)])
    if isinstance(value, set | frozenset):
        return leaf(lambda: f"the set {sorted(map(_key, value))}")
    if isinstance(value, np.ndarray | np.generic):
        return leaf(lambda: array_fact(np.asarray(value)))
    if isinstance(value, np.random.Generator | np.random.RandomState | np.random.BitGenerator | Random):
        return leaf(partial(_generator_fact, value))
    if isinstance(value, count):
        return leaf(lambda: repr(value))
    if isinstance(value, type):
        return _see_class(value)
    if isinstance(value, _CODE):
        return Seen(f"{type(value).__name__} {getattr(value, '__name__', '')}")
    return _see_callable(value) or _see_object(value)


def leaf(fact: Callable[[], Any]) -> Seen:
    """Something without parts, which is compared by what `fact()` says of it."""
    then = fact()
    return Seen(then, (), [lambda: fact() == then])


def same_items(mapping: Mapping[Any, Any]) -> Guard:
    """Whether a dict still has the very same keys and values."""
    keys, values = list(mapping), list(mapping.values())
    return lambda: len(mapping) == len(keys) and list(mapping) == keys and all(map(is_, mapping.values(), values))


def same_sequence(sequence: Any) -> Guard:
    """Whether a list still has the very same items."""
    items = list(sequence)
    return lambda: len(sequence) == len(items) and all(map(is_, sequence, items))


def array_fact(array: np.ndarray[Any, Any], kind: str = "array") -> str:
    """An array in words: small ones by their values, large ones by a digest.

    >>> array_fact(np.zeros(2)), array_fact(np.zeros(100))
    ('array([0.0, 0.0])', 'array of float64 [100] with digest 67042dfd')
    """
    if array.dtype.hasobject:
        return f"{kind} of objects {list(array.shape)}"
    if array.size <= _FEW:
        return f"{kind}({array.tolist()})"
    contents: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.sha256(contents).hexdigest()[:8]
    return f"{kind} of {array.dtype} {list(array.shape)} with digest {digest}"


def text_digest(text: str) -> str:
    """Eight letters that stand for a long text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _generator_fact(generator: Any) -> str:
    if isinstance(generator, Random):
        state: Any = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = [part.tolist() if isinstance(part, np.ndarray) else part for part in generator.get_state()]
    else:
        own = getattr(generator, "bit_generator", generator)
        state = {key: str(part) for key, part in own.state.items()}
    return f"a generator in state {text_digest(repr(state))}"


def _see_callable(value: Any) -> Seen | None:
    if isinstance(value, types.FunctionType):
        if not is_users(value.__module__):
            return Seen(f"function {value.__qualname__}")
        parts = function_parts(value)
        return Seen(f"function {value.__qualname__}", parts, [_same_parts(value, parts)], value.__name__)
    if isinstance(value, types.MethodType):
        return Seen(f"method {value.__func__.__qualname__}", [(".__self__", value.__self__)])
    if isinstance(value, partial):
        return Seen("a partial", [(".func", value.func), (".args", value.args), (".keywords", value.keywords)])
    return None


def _same_parts(function: types.FunctionType, parts: list[tuple[str, Any]]) -> Guard:
    then = [part for _, part in parts]

    def same() -> bool:
        now = function_parts(function)
        return len(now) == len(then) and all(value is was for (_, value), was in zip(now, then, strict=True))

    return same


def _see_class(kind: type) -> Seen:
    fact = f"class {kind.__qualname__}"
    if not is_users(kind.__module__):
        return Seen(fact)
    data = class_data(kind)
    bases = [(f".__bases__[{index}]", base) for index, base in enumerate(kind.__bases__)]
    beside = method_globals(kind)
    named = [(f".{method.__name__}.<global>.{name}", value) for name, method, value in beside]
    inside = [*((f".{name}", value) for name, value in data.items()), *named, *bases]
    return Seen(fact, inside, [same_items(vars(kind)), _same_globals(beside)], kind.__name__)


def _same_globals(beside: list[tuple[str, types.FunctionType, Any]]) -> Guard:
    return lambda: all(method.__globals__.get(name, _ABSENT) is value for name, method, value in beside)


def _see_object(value: Any) -> Seen:
    kind = type(value)
    fact = f"a {kind.__name__}"
    if is_opaque(kind):
        return Seen(fact)
    own = getattr(value, "__dict__", {})
    inside = [(f".{name}", part) for name, part in own.items() if not is_settled(kind, name)]
    guards = [same_items(own)]
    slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
    if slots:
        inside += [(f".{name}", getattr(value, name)) for name in slots]
        then = [getattr(value, name) for name in slots]
        guards.append(lambda: all(getattr(value, name, _ABSENT) is was for name, was in zip(slots, then, strict=True)))
    return Seen(fact, [*inside, (".__class__", kind)], guards, kind.__name__)


def _contents(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict | set) else None


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    container.extend(contents) if isinstance(container, list) else container.update(contents)


def _slots(base: type) -> list[str]:
    slots = vars(base).get("__slots__", ())
    named = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in named if name not in ("__dict__", "__weakref__")]


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, _PLAIN) else f"a {type(key).__name__}"
