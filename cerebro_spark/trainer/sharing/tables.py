"""Large containers of plain values, such as a vocabulary, which snapshots compare as a whole, not item by item."""

from __future__ import annotations

from itertools import islice
from typing import Any

from cerebro_spark.trainer.sharing.inspection import PLAIN

_LARGE = 5_000
_PLAIN = frozenset(PLAIN)


class Table:
    """The items that a dict, list or tuple had. Tables are equal if their items are.

    >>> Table({"a": 1}) == Table({"a": 1}), Table([1, 2]).extends(Table([1])), Table([1, 2])
    (True, True, a list of 2 items)
    """

    def __init__(self, container: Any) -> None:
        self.is_dict = isinstance(container, dict)
        self._kind = type(container).__name__
        self._items: Any = dict(container) if self.is_dict else list(container)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and (self._kind, self._items) == (other._kind, other._items)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"a {self._kind} of {len(self._items)} items"

    def extends(self, before: Table) -> bool:
        """Whether it has all items of a table, as they were, and maybe more behind them."""
        if self._kind != before._kind:
            return False
        if self.is_dict:
            return bool(before._items.items() <= self._items.items())
        return bool(list(islice(self._items, len(before._items))) == before._items)

    def describe_change(self, after: Any) -> str:
        """Describe its first item that is not in what came after it, for a message."""
        if not isinstance(after, Table) or self.is_dict != after.is_dict:
            return ""
        pairs = self._items.items() if self.is_dict else enumerate(self._items)
        later = after._items if after.is_dict else dict(enumerate(after._items))
        return next((f"[{key!r}]" for key, value in pairs if key not in later or later[key] != value), "")


def is_table(value: Any) -> bool:
    """Whether a value is a container of plain values alone."""
    if isinstance(value, dict):
        return _PLAIN.issuperset(map(type, value.values())) and _PLAIN.issuperset(map(type, value))
    return isinstance(value, list | tuple) and _PLAIN.issuperset(map(type, value))


def is_large(value: Any) -> bool:
    """Whether a container has so many items that to visit each would take long."""
    return isinstance(value, dict | list | tuple) and len(value) > _LARGE
