"""Finds the random generators that a user's function can draw from, and the caches that it uses. It changes none."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator
from random import Random, SystemRandom
from typing import Any

import numpy as np

from cerebro_spark.trainer.sharing.inspection import PLAIN
from cerebro_spark.trainer.sharing.user_code import (
    CACHED,
    class_data,
    function_parts,
    functions_of,
    is_opaque,
    is_users,
)

_MAX_ITEMS = 10_000
"""The items of a container that is looked into: a larger one is data."""


def find_generators(root: Any) -> list[Any]:
    """Return the generators that can be reached from a function: in its closure, defaults, globals, and their insides.

    >>> def model_fn(params, own={"first": np.random.default_rng(1)}): ...
    >>> model_fn.__module__ = "__main__"
    >>> len(find_generators(model_fn))
    1
    """
    return [value for value in _walk(root) if is_generator(value)]


def find_caches(root: Any) -> list[Any]:
    """Return the functions with a cache that can be reached from a function, as `functools.cache` makes them.

    >>> halve = functools.cache(lambda number: number / 2)
    >>> def model_fn(params, own=halve): ...
    >>> model_fn.__module__ = "__main__"
    >>> find_caches(model_fn) == [halve]
    True
    """
    return [value for value in _walk(root) if isinstance(value, CACHED)]


def _walk(root: Any) -> Iterator[Any]:
    """Yield all that can be reached from a function. It does not look inside generators."""
    seen: dict[int, Any] = {}
    to_visit = [root]
    while to_visit:
        value = to_visit.pop()
        if isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        yield value
        if not is_generator(value):
            to_visit.extend(_list_parts(value))


def is_generator(value: Any) -> bool:
    """Whether an object is a random generator of Python, NumPy or PyTorch. That of the system has no state."""
    if isinstance(value, SystemRandom):
        return False
    if isinstance(value, Random | np.random.Generator | np.random.RandomState | np.random.BitGenerator):
        return True
    kind = type(value)
    return kind.__module__ == "torch._C" and kind.__name__ == "Generator"


def _list_parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict | list | tuple | set | frozenset | deque):
        items = value.values() if isinstance(value, dict) else value
        return list(items) if len(value) <= _MAX_ITEMS else ()
    if isinstance(value, types.FunctionType):
        return [part for _, part in function_parts(value)] if is_users(value.__module__) else ()
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, CACHED):
        return (value.__wrapped__,)
    if isinstance(value, type):
        return _list_class_parts(value) if is_users(value.__module__) else ()
    return () if is_opaque(type(value)) else [type(value), *getattr(value, "__dict__", {}).values()]


def _list_class_parts(kind: type) -> list[Any]:
    parts = [part for _, function in functions_of(kind) for _, part in function_parts(function)]
    members = [getattr(member, "__func__", member) for member in vars(kind).values()]
    caches = [member for member in members if isinstance(member, CACHED)]
    return [*parts, *caches, *class_data(kind).values(), *kind.__bases__]
