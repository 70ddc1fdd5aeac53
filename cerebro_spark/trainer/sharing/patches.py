"""Finds functions of libraries that a user's function has replaced. All trials of a process share those."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from cerebro_spark.trainer.sharing.snapshot import StateChange
from cerebro_spark.trainer.sharing.user_code import functions_in, is_users

LIBRARY = "the library's "
"""What the place of a function of a library begins with."""

_ABSENT = object()


class LibraryFunctions:
    """The functions and classes in some modules, and the methods of some classes, as they are when `note` is called.

    Libraries replace some of theirs when they are first used, such as a step by one that can be profiled. Only what
    users put there counts, and what a library has under another name.

    Args:
        holders: The modules and classes, by name.
    """

    def __init__(self, holders: Mapping[str, Any]) -> None:
        self._holders = dict(holders)
        self._own: dict[str, dict[str, Any]] = {}
        # To see after every unit that nothing has changed: lists of the same objects are compared fastest.
        self._values: dict[str, list[Any]] = {}
        self.note()

    def note(self) -> None:
        """Take what is there now for the libraries' own."""
        for name, holder in self._holders.items():
            if list(vars(holder).values()) != self._values.get(name):
                self._adopt(name)

    def put_back(self) -> StateChange | None:
        """Put back what was replaced.

        Returns:
            The first function that was, or None.
        """
        found = None
        for name, holder in self._holders.items():
            if list(vars(holder).values()) != self._values[name]:
                for key, was, now in list(self._patches(name, holder)):
                    found = found or StateChange(f"{name}.{key}", f"{LIBRARY}{name}", _describe(was), _describe(now))
                    delattr(holder, key) if was is _ABSENT else setattr(holder, key, was)
                self._adopt(name)
        return found

    def _adopt(self, name: str) -> None:
        """Take what a module or class has now for its own."""
        self._own[name] = dict(vars(self._holders[name]))
        self._values[name] = list(self._own[name].values())

    def _patches(self, name: str, holder: Any) -> Iterator[tuple[str, Any, Any]]:
        own, present = self._own[name], dict(vars(holder))
        for key in {**own, **present}:
            was, now = own.get(key, _ABSENT), present.get(key, _ABSENT)
            if was is now or (was is _ABSENT and not isinstance(holder, type)):
                continue  # nobody calls what is new in a module of a library
            if self._is_patch(key, was, now):
                yield key, was, now

    def _is_patch(self, key: str, was: Any, now: Any) -> bool:
        """Whether a user has put this in the place of what a library had there."""
        if now is _ABSENT:
            return callable(was)
        # Some names stand for one class or another by a setting, such as `torch.Storage`.
        is_alias = getattr(was, "__name__", key) != key
        return _is_users_own(now) or (not is_alias and self._is_swapped(key, now))

    def _is_swapped(self, key: str, now: Any) -> bool:
        """Whether this is something that the library has under another name."""
        name = getattr(now, "__name__", key)
        return name != key and any(own.get(name) is now for own in self._own.values())


class Registries:
    """Dicts in which a library keeps functions that it calls for all models, such as hooks.

    Args:
        registries: The dicts, by name.
    """

    def __init__(self, registries: Mapping[str, dict[Any, Any]]) -> None:
        self._registries = dict(registries)
        self._own: dict[str, dict[Any, Any]] = {}
        self.note()

    def note(self) -> None:
        """Take what is there now for the library's own."""
        self._own = {name: dict(registry) for name, registry in self._registries.items()}

    def put_back(self) -> StateChange | None:
        """Take out what users have put there.

        Returns:
            The first of that, or None.
        """
        found = None
        for name, registry in self._registries.items():
            own = self._own[name]
            if registry != own:
                added = [value for key, value in registry.items() if own.get(key) is not value]
                users = [value for value in added if _is_users_own(value)]
                if users:
                    found = found or StateChange(name, f"{LIBRARY}{name}", "(nothing)", _describe(users[0]))
                    registry.clear()
                    registry.update(own)
                self._own[name] = dict(registry)
        return found


def list_classes(module: types.ModuleType, base: type) -> dict[str, Any]:
    """Return the classes of a kind that a module has, by name.

    >>> import json
    >>> list(list_classes(json, json.JSONEncoder))
    ['json.JSONEncoder']
    """
    found = {name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)}
    return {f"{module.__name__}.{name}": value for name, value in found.items()}


def name_modules(modules: Iterable[types.ModuleType]) -> dict[str, Any]:
    """Return modules by name."""
    return {module.__name__: module for module in modules}


def _is_users_own(value: Any) -> bool:
    """Whether something that can be called is the user's."""
    if isinstance(value, type):
        return is_users(value.__module__)
    if isinstance(value, types.MethodType):
        return _is_users_own(value.__func__) or is_users(type(value.__self__).__module__)
    functions = functions_in(value)
    if functions:
        # A function that wraps another says that it is of the other's module; its globals are its own.
        return any(is_users(each.__globals__.get("__name__")) for each in functions)
    return callable(value) and (is_users(type(value).__module__) or isinstance(value, partial))


def _describe(value: Any) -> str:
    if value is _ABSENT:
        return "(nothing)"
    return f"{type(value).__name__} {getattr(value, '__qualname__', '')}".strip()
