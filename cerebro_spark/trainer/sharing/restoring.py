"""Puts objects back as they were when a snapshot was taken, in place: what all trials of a worker share."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from cerebro_spark.trainer.sharing.buffers import is_buffer, read_buffer, write_buffer
from cerebro_spark.trainer.sharing.generators import is_generator
from cerebro_spark.trainer.sharing.inspection import guard_items, guard_objects
from cerebro_spark.trainer.sharing.user_code import (
    NAMESPACES,
    UNSET,
    class_data,
    functions_of,
    is_users,
    read_cell,
    references,
)

Restore = Callable[[], None]

_COPIED_BYTES = 1 << 20
"""The largest array or tensor that is copied, to be put back."""


def is_data(value: Any) -> bool:
    """Whether an object has values of its own, which take memory to keep: an array, a tensor or a generator."""
    return isinstance(value, np.ndarray) or _is_tensor(value) or is_generator(value)


def keep_state(value: Any, has_values: bool) -> list[Restore]:
    """Return what puts the state of an object back: its items, attributes or values, not those of its parts.

    Args:
        value: The object.
        has_values: Whether the values of a tensor count. Those that a checkpoint has do not.
    """
    if isinstance(value, type):
        return _keep_class(value) if is_users(value.__module__) else []
    if isinstance(value, types.FunctionType):
        return [_keep_references(value)] if is_users(value.__module__) else []
    if isinstance(value, list | dict | set | deque):
        return [_keep_items(value)]
    if isinstance(value, np.ndarray):
        return _keep_array(value)
    if is_buffer(value):
        contents = read_buffer(value)
        return [lambda: write_buffer(value, contents)]
    if is_generator(value):
        return [_keep_generator(value)]
    restore = _keep_tensor(value) if has_values else None
    if restore is not None:
        return [restore]
    own, is_own = getattr(value, "__dict__", None), is_users(type(value).__module__)
    return [_keep_items(own)] if isinstance(own, dict) and (is_own or isinstance(value, NAMESPACES)) else []


def _keep_items(container: Any) -> Restore:
    kind: Any = next(kind for kind in (dict, set, list, deque) if isinstance(container, kind))
    items = kind(container)
    unchanged = guard_items(container) if kind is dict else guard_objects(lambda: container)

    def restore() -> None:
        if not unchanged():
            container.clear()
            container.update(items) if kind in (dict, set) else container.extend(items)

    return restore


def _keep_class(kind: type) -> list[Restore]:
    data = class_data(kind)

    def restore() -> None:
        for name in class_data(kind).keys() - data.keys():
            delattr(kind, name)
        for name, value in data.items():
            if vars(kind).get(name) is not value:
                setattr(kind, name, value)

    return [restore, *(_keep_references(function) for _, function in functions_of(kind))]


def _keep_references(function: types.FunctionType) -> Restore:
    places = [(each.holder, each.key, each.holder[each.key]) for each in references(function)]
    held = [(cell, read_cell(cell)) for cell in function.__closure__ or ()]

    def restore() -> None:
        for holder, key, value in places:
            if holder.get(key, UNSET) is not value:
                holder[key] = value
        for cell, value in held:
            if read_cell(cell) is not value:
                _write_cell(cell, value)

    return restore


def _write_cell(cell: types.CellType, value: Any) -> None:
    if value is UNSET:
        del cell.cell_contents
    else:
        cell.cell_contents = value


def _keep_array(array: Any) -> list[Restore]:
    if array.nbytes > _COPIED_BYTES or not array.flags.writeable:
        return []
    values = array.copy()
    return [lambda: array.__setitem__(..., values)]


def _keep_generator(generator: Any) -> Restore:
    if isinstance(generator, Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = getattr(generator, "bit_generator", generator)
        state_of_bits = bits.state
        return lambda: setattr(bits, "state", state_of_bits)
    known = generator.get_state()
    return lambda: generator.set_state(known)


def _keep_tensor(value: Any) -> Restore | None:
    """Return what puts the values of a PyTorch tensor back; None for any other object."""
    if not _is_tensor(value):
        return None
    is_plain = str(value.layout) == "torch.strided" and 0 not in value.stride() and not value.is_inference()
    if not is_plain or value.nbytes > _COPIED_BYTES:
        return None
    values = value.detach().clone()
    return lambda: value.detach().copy_(values)


def _is_tensor(value: Any) -> bool:
    """Whether an object is a PyTorch tensor."""
    return hasattr(type(value), "copy_") and hasattr(type(value), "stride")
