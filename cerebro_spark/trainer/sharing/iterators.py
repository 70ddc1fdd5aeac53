"""Describes how far an iterator of Python's own has come, without advancing it."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator
from operator import length_hint
from typing import Any

from cerebro_spark.trainer.sharing.user_code import is_opaque

_MODULES = ("builtins", "itertools")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, or one that a function with `yield` returned."""
    if hasattr(type(value), "__length_hint__"):
        return is_opaque(type(value))
    return isinstance(value, Iterator) and type(value).__module__ in _MODULES


def describe_progress(iterator: Any) -> str:
    """Describe an iterator: by the items left, its variables, or those that it draws from.

    >>> pairs = enumerate([3, 4])
    >>> describe_progress(pairs), next(pairs), describe_progress(pairs)
    ('enumerate (an iterator with 2 items left, 0)', (0, 3), 'enumerate (an iterator with 1 items left, 1)')
    """
    if isinstance(iterator, types.GeneratorType):
        return _describe_frame(iterator)
    if hasattr(type(iterator), "__length_hint__"):
        return f"an iterator with {length_hint(iterator)} items left"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and 3.13 announce that 3.14 has it no more
        try:
            _, *parts = iterator.__reduce__()
        except TypeError:
            parts = []
    return f"{type(iterator).__name__} {', '.join(map(_describe_part, parts))}"


def _describe_part(part: Any) -> str:
    if isinstance(part, _PLAIN):
        return repr(part)
    if isinstance(part, tuple):
        return f"({', '.join(map(_describe_part, part))})"
    if is_iterator(part):
        return describe_progress(part)
    return f"{len(part)} items" if isinstance(part, list) else f"a {type(part).__name__}"


def _describe_frame(iterator: types.GeneratorType[Any, Any, Any]) -> str:
    """Describe where a function waits at a `yield`, and with which variables."""
    frame = iterator.gi_frame
    if frame is None:
        return f"{iterator.__qualname__} at its end"
    known = [f"{name}={value!r}" for name, value in frame.f_locals.items() if isinstance(value, _PLAIN)]
    return f"{iterator.__qualname__} at step {frame.f_lasti} with {', '.join(known) or 'no variables'}"
