"""Snapshots of all objects that can be reached and that no checkpoint saves. It changes nothing but users' classes."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cerebro_spark.trainer.sharing.inspection import PLAIN, Guard, Inspection, Inspector, inspect_value
from cerebro_spark.trainer.sharing.user_code import class_data, is_users, method_globals

_ABSENT = "(nothing)"
_MAX_DEPTH = 100


class StateChange(NamedTuple):
    """The first difference between two snapshots.

    Attributes:
        what: The object, as the author of its class would call it, such as "Anneal.steps".
        place: Its path from the root, such as "module.0.steps".
        before: A description of its value before.
        after: A description of its value now.
    """

    what: str
    place: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"`{self.what}` changed from {self.before} to {self.after}"


class ObjectSnapshot:
    """All objects that could be reached from some roots when the snapshot was taken, to be compared with now.

    Comparing is cheap while everything is made of the same objects. If not, everything is inspected again, and
    objects count as unchanged if they are equal.

    Args:
        roots: Returns the objects to start from, by name.
        inspector: Returns the framework's inspector; called for every traversal.
        normalize: Called before every comparison, to reset what may change and means nothing.
        growing: Whether lists and dicts may get more items: a log, or a cache.

    >>> class Anneal:
    ...     def __init__(self):
    ...         self.steps, self.rates = 0, [0.1]
    >>> layer = Anneal()
    >>> snapshot = ObjectSnapshot(lambda: {"layer": layer}, lambda: lambda value: None)
    >>> layer.rates = [0.1]
    >>> snapshot.find_change()
    >>> layer.steps += 1
    >>> print(snapshot.find_change())
    `Anneal.steps` changed from 0 to 1
    """

    def __init__(
        self,
        roots: Callable[[], Mapping[str, Any]],
        inspector: Callable[[], Inspector],
        normalize: Callable[[], None] = lambda: None,
        growing: bool = False,
    ) -> None:
        self._roots = roots
        self._inspector = inspector
        self._growing = growing
        self.normalize = normalize
        normalize()
        self._taken = self._traverse()

    def find_change(self) -> StateChange | None:
        """Return the first object that is not as it was, or None."""
        self.normalize()
        if all(guard() for guard in self._taken.guards):
            return None
        now = self._traverse()
        change = _find_difference(self._taken, now, self._growing)
        if change is None:
            self._taken = now
        return change

    def find_difference(self, other: ObjectSnapshot) -> StateChange | None:
        """Return the first object that is different in another snapshot, or None."""
        return _find_difference(self._taken, other._taken, self._growing)

    def restore_classes(self) -> None:
        """Put back the data of users' classes, and the global numbers of their methods: all trials share them."""
        for kind, data in self._taken.classes:
            for name in class_data(kind).keys() - data.keys():
                delattr(kind, name)
            for name, (value, items) in data.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)
                if items is not None:
                    _refill(value, items)
        for name, method, value in self._taken.globals:
            method.__globals__[name] = value

    def _traverse(self) -> _Traversal:
        traversal = _Traversal(self._inspector())
        for name, root in self._roots().items():
            traversal.visit(name, name, root, 0)
        return traversal


class _Traversal:
    """One traversal of all objects, depth first."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
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
        if isinstance(value, PLAIN):
            self.facts[path] = repr(value)
        elif id(value) in self._paths:
            self.facts[path] = f"the same as {self._paths[id(value)]}"
        elif depth < _MAX_DEPTH:
            self._paths[id(value)] = path
            self._kept.append(value)
            self._enter(path, label, self._inspector(value) or inspect_value(value), depth)
            if isinstance(value, type) and is_users(value.__module__):
                data = class_data(value).items()
                self.globals.extend(method_globals(value))
                self.classes.append((value, {name: (part, _copy_items(part)) for name, part in data}))

    def _enter(self, path: str, label: str, inspection: Inspection, depth: int) -> None:
        self.facts[path] = inspection.fact
        self.guards.extend(inspection.guards)
        label = inspection.label or label
        for name, part in inspection.parts:
            self.visit(path + name, label + name, part, depth + 1)


def _find_difference(before: _Traversal, after: _Traversal, growing: bool) -> StateChange | None:
    grown: tuple[str, ...] = ()
    for path in {**after.facts, **before.facts}:
        was, now = before.facts.get(path, _ABSENT), after.facts.get(path, _ABSENT)
        if was is _ABSENT and growing and (path.endswith("]") or path.startswith(grown)):
            grown = (*grown, path)
        elif was != now:
            return StateChange(after.labels.get(path) or before.labels[path], path, was, now)
    return None


def _copy_items(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict | set) else None


def _refill(container: Any, items: Any) -> None:
    container.clear()
    container.extend(items) if isinstance(container, list) else container.update(items)
