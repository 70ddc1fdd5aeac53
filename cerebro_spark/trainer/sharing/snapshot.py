"""Snapshots of all objects that can be reached and that no checkpoint saves. Only `restore` changes anything."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cerebro_spark.trainer.sharing.inspection import (
    PLAIN,
    Guard,
    Inspection,
    Inspector,
    guard_items,
    guard_objects,
    inspect_value,
)
from cerebro_spark.trainer.sharing.restoring import Restore, is_data, keep_state
from cerebro_spark.trainer.sharing.tables import Table, is_large, is_table

GLOBAL = ".<global>."
"""What the path of a global has in front of its name."""

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
        growing: Whether lists and dicts may get more items: a log, or a cache. Such a snapshot does not put back the
            values of arrays. Without it, dicts that are globals of functions and methods may: tables that are filled as
            they are needed.
        strict: Whether not even these may.

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
        strict: bool = False,
    ) -> None:
        self._roots = roots
        self._inspector = inspector
        self._growing = growing
        self._strict = strict
        self.normalize = normalize
        normalize()
        self._taken = self._traverse()

    def find_change(self) -> StateChange | None:
        """Return the first object that is not as it was, or None."""
        self.normalize()
        if all(guard() for guard in self._taken.guards):
            return None
        now = self._traverse(self._taken)
        change = self._compare(self._taken, now)
        if change is None:
            self._taken = now
        return change

    def find_difference(self, other: ObjectSnapshot) -> StateChange | None:
        """Return the first object that is different in another snapshot, or None."""
        return self._compare(self._taken, other._taken)

    def restore(self, only: str | None = None) -> None:
        """Put back all that trials may share: users' classes, what functions and methods refer to, and its contents.

        With `only`, put back just the object at that path.
        """
        for path, restore in self._taken.restores:
            if only is None or path == only:
                restore()

    def copy(self) -> ObjectSnapshot:
        """Return a snapshot that stays as it is when this one lets containers grow."""
        return copy.copy(self)

    def measure_growth(self, later: ObjectSnapshot) -> dict[str, int]:
        """Return the paths of the containers that have grown until a later snapshot, with what was added inside."""
        if later._taken is self._taken:
            return {}
        sizes = later._taken.sizes
        added = {path: sizes.get(path, size) - size for path, size in self._taken.sizes.items()}
        return {path: more for path, more in added.items() if more > 0}

    def describe_growth(self, later: ObjectSnapshot, path: str) -> StateChange:
        """Return the growth of one container as a change."""
        was, now = (f"{taken.sizes[path] - 1} items" for taken in (self._taken, later._taken))
        return StateChange(self._taken.labels[path], path, was, now)

    def _compare(self, before: _Traversal, after: _Traversal) -> StateChange | None:
        return _find_difference(before, after, self._growing, self._strict)

    def _traverse(self, before: _Traversal | None = None) -> _Traversal:
        traversal = _Traversal(self._inspector(), not self._growing, before)
        for name, root in self._roots().items():
            traversal.visit(name, name, root, 0)
        return traversal


class _Traversal:
    """One traversal of all objects, depth first.

    Args:
        inspector: Inspects the objects of a framework.
        keeps_values: Whether to keep the values of arrays, tensors and generators, to be put back.
        before: The traversal that this one is going to be compared with. Tables are the same ones in both.
    """

    def __init__(self, inspector: Inspector, keeps_values: bool, before: _Traversal | None) -> None:
        self._inspector = inspector
        self._keeps_values = keeps_values
        self._facts_before = {} if before is None else before.facts
        self._paths: dict[int, str] = {}
        # As long as they are kept, no other object has their ids.
        self._kept: list[Any] = []
        self.facts: dict[str, Any] = {}
        self.labels: dict[str, str] = {}
        self.guards: list[Guard] = []
        self.restores: list[tuple[str, Restore]] = []
        # By the path of a container, how many objects it has inside, and itself.
        self.sizes: dict[str, int] = {}
        self._in_tables = 0
        # The paths of the items of global dicts: those may get more items.
        self.table_items: set[str] = set()

    def visit(self, path: str, label: str, value: Any, depth: int) -> None:
        self.labels[path] = label
        if isinstance(value, PLAIN):
            self.facts[path] = repr(value)
        elif id(value) in self._paths:
            self.facts[path] = f"the same as {self._paths[id(value)]}"
        elif depth < _MAX_DEPTH:
            self._paths[id(value)] = path
            self._kept.append(value)
            count = self._count_objects()
            inspection = self._inspect_table(path, value) or self._inspector(value) or inspect_value(value)
            if self._keeps_values or not is_data(value):
                kept = keep_state(value, has_values=self._keeps_values and bool(inspection.guards))
                self.restores.extend((path, restore) for restore in kept)
            if isinstance(value, dict) and GLOBAL in path:
                self.table_items.update(path + name for name, _ in inspection.parts)
            self._enter(path, label, inspection, depth)
            if isinstance(value, dict | list | deque):
                self.sizes[path] = self._count_objects() - count

    def _inspect_table(self, path: str, value: Any) -> Inspection | None:
        """Inspect a large container of plain values, or one that was large when it was first seen, as a whole."""
        was = self._facts_before.get(path)
        if not (is_large(value) if was is None else isinstance(was, Table)) or not is_table(value):
            return None
        guard = guard_items(value) if isinstance(value, dict) else guard_objects(lambda: value)
        self._in_tables += len(value)
        return Inspection(Table(value), (), [guard])

    def _count_objects(self) -> int:
        return len(self.facts) + self._in_tables

    def _enter(self, path: str, label: str, inspection: Inspection, depth: int) -> None:
        self.facts[path] = inspection.fact
        self.guards.extend(inspection.guards)
        label = inspection.label or label
        for name, part in inspection.parts:
            if name in inspection.carried:
                self._repeat(path + name)
            else:
                self.visit(path + name, label + name, part, depth + 1)

    def _repeat(self, path: str) -> None:
        """Take the facts of an object, and of all inside, from the traversal before."""
        inside = (f"{path}.", f"{path}[")
        self.facts.update({p: fact for p, fact in self._facts_before.items() if p == path or p.startswith(inside)})


def _find_difference(before: _Traversal, after: _Traversal, growing: bool, strict: bool) -> StateChange | None:
    grown: tuple[str, ...] = ()
    for path in {**after.facts, **before.facts}:
        was, now = before.facts.get(path, _ABSENT), after.facts.get(path, _ABSENT)
        may_grow = (growing and path.endswith("]")) or (not strict and path in after.table_items)
        may_extend = growing or (not strict and _is_global_dict(path, now))
        if was is _ABSENT and (may_grow or path.startswith(grown)):
            grown = (*grown, path)
        elif isinstance(was, Table) and isinstance(now, Table) and may_extend:
            if not now.extends(was):
                return _describe_change(before, after, path)
        elif was != now:
            return _describe_change(before, after, path)
    return None


def _is_global_dict(path: str, fact: Any) -> bool:
    return isinstance(fact, Table) and fact.is_dict and GLOBAL in path


def _describe_change(before: _Traversal, after: _Traversal, path: str) -> StateChange:
    was, now = before.facts.get(path, _ABSENT), after.facts.get(path, _ABSENT)
    inside = was.describe_change(now) if isinstance(was, Table) else ""
    return StateChange((after.labels.get(path) or before.labels[path]) + inside, path + inside, was, now)
