"""Reads what objects of Python's own hold of users' state: variables of a context, weak references, queues, caches."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from contextvars import ContextVar
from queue import Queue
from random import Random
from typing import Any

import numpy as np

from cerebro_spark.trainer.sharing.user_code import NAMESPACES, is_users

HOLDERS = (
    ContextVar,
    threading.local,
    weakref.ReferenceType,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    Queue,
)
"""The classes of Python's own whose objects hold something that a user put there."""

_STATES = (dict, list, set, deque, np.random.Generator, np.random.RandomState, Random, *NAMESPACES)
_MOST = 1000


def held_parts(holder: Any) -> list[tuple[str, Any]]:
    """Return what one of these objects holds, by the text that leads to it.

    >>> steps = ContextVar("steps", default=3)
    >>> held_parts(steps)
    [('.get()', 3)]
    """
    if isinstance(holder, ContextVar):
        try:
            return [(".get()", holder.get())]
        except LookupError:
            return []
    if isinstance(holder, threading.local):
        return [(f".{name}", value) for name, value in vars(holder).items()]
    if isinstance(holder, weakref.ReferenceType):
        return [("()", holder())] if _is_state(holder()) else []
    if isinstance(holder, Queue):
        return [(".queue", holder.queue)]
    # As a dict of a function's, it may fill.
    return [(".<global>.values()", dict(enumerate(list(holder.values())[:_MOST])))]


def list_held(holder: Any) -> list[Any]:
    """Return the very objects that one of these objects holds."""
    if isinstance(holder, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        return list(holder.values())
    return [part for _, part in held_parts(holder)]


def cached_states(function: Any) -> dict[Any, Any]:
    """Return the results that a cached function keeps and that can change, by their arguments.

    >>> import functools
    >>> @functools.cache
    ... def state(name):
    ...     return {"steps": 0}
    >>> _ = state("a")
    >>> cached_states(state)
    {'a': {'steps': 0}}
    """
    found = [part for part in gc.get_referents(function) if not isinstance(part, type)]
    if function.cache_parameters()["maxsize"] is None:
        results = dict(found[0]) if found and isinstance(found[0], dict) else {}
    else:
        pairs = found[: 2 * function.cache_info().currsize]
        results = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if len(results) > _MOST:
        return {}
    return {key: value for key, value in results.items() if _is_state(value)}


def _is_state(value: Any) -> bool:
    return isinstance(value, _STATES) or (not isinstance(value, type) and is_users(type(value).__module__))
