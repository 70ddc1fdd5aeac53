"""Pickles the user's functions by value, also those with a cache of `functools` around them. It unpickles nothing."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

# What `functools.cache` and `lru_cache` return.
_Cached = functools._lru_cache_wrapper


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles as cloudpickle does, which however looks for functions with a cache by their names.

    A process that does not run the user's script has no such name. Each copy begins with an empty cache.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Cached) and not _is_found_by_name(obj):
            return _cache_again, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def dumps(value: Any) -> bytes:
    """Pickle a value, functions of the user's by value.

    >>> import pickle
    >>> halve = functools.cache(lambda number: number / 2)
    >>> pickle.loads(dumps(halve))(5)
    2.5
    """
    sink = io.BytesIO()
    Pickler(sink).dump(value)
    return sink.getvalue()


def _cache_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _is_found_by_name(function: Any) -> bool:
    """Whether another process finds a function by its name, in a module that is no script."""
    module = sys.modules.get(function.__module__)
    if module is None or module.__name__ == "__main__":
        return False
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = module
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function
