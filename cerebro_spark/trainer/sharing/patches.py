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
    """The functions and classes in some modules, and the methods of some classes, as they are when this is made.

    Libraries replace some of theirs when they are first used, such as a step by one that can be profiled. Only what
    users put there counts, and one function of a library in the place of another.

    Args:
        holders: The modules and classes, by name.
    """

    def __init__(self, holders: Mapping[str, Any]) -> None:
        self._holders = dict(holders)
        self._own: dict[str, dict[str, Any]] = {}
        # To see after every unit that nothing has changed: lists of the same objects are compared fastest.
        self._values: dict[str, list[Any]] = {}
        for name in self._holders:
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
            if _is_patch(key, name.partition(".")[0], was, now):
                yield key, was, now


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


def _is_patch(key: str, library: str, was: Any, now: Any) -> bool:
    """Whether a user has put this in the place of what a library had there."""
    if now is _ABSENT:
        return callable(was)
    if isinstance(now, type):
        # Some names stand for one class or another by a setting, such as `torch.Storage`.
        is_alias = getattr(was, "__name__", key) != key
        return is_users(now.__module__) or (not is_alias and _is_foreign(key, library, now.__name__, now.__module__))
    functions = functions_in(now)
    if functions:
        # A function that wraps another says that it is of the other's module; its globals are its own.
        return any(_is_foreign(key, library, each.__name__, each.__globals__.get("__name__")) for each in functions)
    if isinstance(now, types.BuiltinFunctionType):
        return callable(was) and now.__name__ != key
    return callable(now) and (is_users(type(now).__module__) or isinstance(now, partial | types.MethodType))


def _is_foreign(key: str, library: str, name: str, origin: str | None) -> bool:
    """Whether something of that name and module is the user's, or another one of the same library."""
    return is_users(origin) or (str(origin).partition(".")[0] == library and name != key)


def _describe(value: Any) -> str:
    if value is _ABSENT:
        return "(nothing)"
    return f"{type(value).__name__} {getattr(value, '__qualname__', '')}".strip()
