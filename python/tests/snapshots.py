"""The whole state of a scheduler as plain values: two schedulers with equal snapshots will always act alike."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebro_spark.scheduler import MopScheduler

# The orders of the last event, and plans that a policy makes anew.
_PASSING = {"actions", "memo"}


def snapshot(scheduler: MopScheduler) -> Any:
    """Return everything that later actions depend on, as values that compare with `==` (NaN written out)."""
    return _plain(
        {name: part for name, part in vars(scheduler).items() if name != "_handlers" and not callable(part)}, set()
    )


def _plain(value: Any, seen: set[int]) -> Any:
    if isinstance(value, float) and value != value:
        return "nan"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), seen)
    if isinstance(value, np.random.Generator):
        return _plain(value.bit_generator.state, seen)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (list, tuple, deque)):
        return [_plain(item, seen) for item in value]
    if isinstance(value, Mapping):
        return [(repr(key), _plain(item, seen)) for key, item in value.items()]
    return _fields(value, seen)


def _fields(value: Any, seen: set[int]) -> Any:
    """The fields of an object, where it is met for the first time."""
    if callable(value) or id(value) in seen:
        return type(value).__name__
    seen.add(id(value))
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else [*vars(value)]
    return {name: _plain(getattr(value, name), seen) for name in names if name not in _PASSING}
