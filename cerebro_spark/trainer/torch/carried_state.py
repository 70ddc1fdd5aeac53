"""Finds out which attributes of an object its own saved state carries. It leaves the object as it was."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from cerebro_spark.trainer.checkpoints.arrays import wrap_numpy
from cerebro_spark.trainer.checkpoints.digest import compute_digest
from cerebro_spark.trainer.checkpoints.tree import flatten
from cerebro_spark.trainer.sharing.inspection import PLAIN, describe_array
from cerebro_spark.trainer.torch.tensors import wrap_tensor

_COPIED_BYTES = 1 << 16
_MAX_ITEMS = 1000
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class CarriedState:
    """The attributes of an object as they are now, to be asked later which changes hop with its own state.

    An attribute hops if loading the state brings it from what it was to what it is. That is tried with plain values,
    arrays, and containers of these. All others count as carried if the state has changed as well.

    Args:
        own: The attributes of the object, with others that do not count.
        save: Returns its state: its `get_extra_state` or `state_dict`.
        load: Takes on a state: its `set_extra_state` or `load_state_dict`.
        aside: Other dicts in which loading may put something. They are left as they were.

    >>> class Counter:
    ...     count, seen = 0, 0
    >>> counter = Counter()
    >>> vars(counter).update(count=0, seen=0)
    >>> state = CarriedState(vars(counter), lambda: {"n": counter.count}, lambda s: setattr(counter, "count", s["n"]))
    >>> counter.count, counter.seen = 1, 2
    >>> state.find(["count", "seen"])
    {'count'}
    """

    def __init__(
        self,
        own: dict[str, Any],
        save: Callable[[], Any],
        load: Callable[[Any], Any],
        aside: Iterable[dict[Any, Any]] = (),
    ) -> None:
        self._own, self._save, self._load = own, save, load
        self._dicts = [own, *aside]
        self._first = {name: _Attribute(value) for name, value in own.items()}
        self._digest = self._digest_state()

    def find(self, names: Iterable[str]) -> set[str]:
        """Return those of the names whose attributes have changed and hop."""
        now = {name: _Attribute(self._own[name]) for name in names}
        changed = {name for name, value in now.items() if not value.equals(self._first.get(name))}
        if not changed:
            return set()
        unclear = {name for name in changed if now[name].text is None}
        carried = unclear if unclear and self._digest_state() != self._digest else set()
        return carried | self._try_loading({name: now[name] for name in changed - unclear})

    def _try_loading(self, changed: Mapping[str, _Attribute]) -> set[str]:
        """Load the state with the changed attributes as they were, and return those that are then as they are now."""
        kept = [(own, dict(own)) for own in self._dicts]
        try:
            state = copy.deepcopy(self._save())
            for name in changed:
                self._own.pop(name)
                if name in self._first:
                    self._own[name] = self._first[name].make_copy()
            with torch.no_grad():
                self._load(state)
            return {name for name, value in changed.items() if self._has(name, value)}
        except Exception:
            return set()  # what cannot be loaded does not hop
        finally:
            for own, items in kept:
                own.clear()
                own.update(items)

    def _has(self, name: str, value: _Attribute) -> bool:
        return name in self._own and value.equals(_Attribute(self._own[name]))

    def _digest_state(self) -> str:
        """Return a digest of the state; "" where it fits no checkpoint, which saving it will say."""
        try:
            json, arrays = flatten(self._save(), lambda name, leaf: wrap_tensor(name, leaf) or wrap_numpy(name, leaf))
            return compute_digest(arrays, json)
        except Exception:
            return ""


class _Attribute:
    """A value, with a copy and a text if it is one that can be compared."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.text = _describe(value)
        if self.text is not None:
            self._value = _copy(value)

    def equals(self, other: _Attribute | None) -> bool:
        if other is None or self.text != other.text:
            return False
        # The contents of others are not compared: they may have changed.
        return self.text is not None

    def make_copy(self) -> Any:
        return self._value if self.text is None else _copy(self._value)


def _describe(value: Any) -> str | None:
    """Describe a value; None if it is of no kind that can be compared by its description."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        is_small = value.layout == torch.strided and value.nbytes <= _COPIED_BYTES and value.device.type != "meta"
        return f"tensor of {value.dtype} {value.shape} {value.tolist()!r}" if is_small else None
    if isinstance(value, np.ndarray | np.generic):
        is_small = value.nbytes <= _COPIED_BYTES and not value.dtype.hasobject
        return describe_array(np.asarray(value)) if is_small else None
    return _describe_items(value) if type(value) in _CONTAINERS and len(value) <= _MAX_ITEMS else None


def _describe_items(container: Any) -> str | None:
    items = [item for pair in container.items() for item in pair] if isinstance(container, dict) else container
    texts = [_describe(item) for item in items]
    if None in texts:
        return None
    ordered = sorted(map(str, texts)) if isinstance(container, set | frozenset) else texts
    return f"{type(container).__name__} {ordered}"


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
