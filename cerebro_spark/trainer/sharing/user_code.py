"""Tells users' code from that of libraries, and finds what users' functions and classes refer to."""

from __future__ import annotations

import argparse
import dis
import functools
import random
import sys
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.trainer.sharing.imports import imported_names, is_installed, load_module

# Objects of these libraries change by themselves, without an effect on a model.
_OPAQUE_LIBRARIES = {"tqdm", "wandb", "mlflow", "tensorboard", "tensorboardX", "tensorflow", "torch", "keras", "numpy"}
_OPAQUE_LIBRARIES |= {"loguru", "structlog", "absl", "rich", "numba", "triton"}
# A model of `transformers` finds out from the dtype of its first labels what kind of problem it has.
_SETTLED = {"transformers": {"problem_type"}}
_NUMBERS = (int, float, complex, type(None))
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL"}
_COUNTING = (*_NUMBERS, *_GENERATORS, list, dict, set, deque)
# Methods that make objects.
_MAKERS = {"__init__", "__new__", "__init_subclass__", "__class_getitem__"}


CACHED: Any = functools._lru_cache_wrapper
"""The type of functions with `functools.cache` or `lru_cache`. What is in the cache must only save time."""

NAMESPACES = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList, ChainMap)
"""The classes of Python's own whose objects hold what users put there."""

UNSET = object()
"""What is read of a variable or global that has no value."""


def is_users(module: str | None) -> bool:
    """Whether a module is neither Python's, nor this package's, nor an installed library.

    Functions and classes of a script or notebook say "__main__", wherever they were sent.

    >>> is_users("__main__"), is_users("json.decoder"), is_users("cerebro_spark.types")
    (True, False, False)
    """
    root = (module or "__main__").partition(".")[0]
    return root == "__main__" or root not in sys.modules or _is_users_root(root)


@functools.cache
def _is_users_root(root: str) -> bool:
    if root in sys.stdlib_module_names or root == "cerebro_spark":
        return False
    module = sys.modules.get(root)
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
    return not is_installed(places)


def is_opaque(kind: type) -> bool:
    """Whether objects of this class are not inspected: Python's own, and those of libraries that only observe."""
    root = (kind.__module__ or "").partition(".")[0]
    opaque = root in sys.stdlib_module_names or root in _OPAQUE_LIBRARIES
    return opaque and not issubclass(kind, NAMESPACES)


def is_settled(kind: type, name: str) -> bool:
    """Whether a library derives an attribute from the first rows, with the same result for all rows."""
    return name in _SETTLED.get((kind.__module__ or "").partition(".")[0], ())


def class_data(kind: type) -> dict[str, Any]:
    """Return the data of a class that all its instances share: its attributes without its methods.

    >>> class Counted:
    ...     total = 0
    ...     def count(self): ...
    >>> class_data(Counted)
    {'total': 0}
    """
    hidden = ("__", "_abc_")
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(hidden) and not isinstance(value, type) and not hasattr(type(value), "__get__")
    }


def class_objects(kind: type) -> list[tuple[str, Any]]:
    """Return what else a class has of users' objects: classes inside, and objects that stand in for methods.

    >>> class Net:
    ...     class State:
    ...         step = 0
    >>> Net.State.__module__ = "__main__"
    >>> [name for name, _ in class_objects(Net)]
    ['State']
    """
    found = [(name, value) for name, value in vars(kind).items() if not name.startswith("__")]
    classes = [(name, value) for name, value in found if isinstance(value, type) and is_users(value.__module__)]
    return classes + [
        (name, value)
        for name, value in found
        if not isinstance(value, type) and is_users(type(value).__module__) and hasattr(type(value), "__get__")
    ]


class Reference(NamedTuple):
    """A global that a function names, or that of a user's module.

    Attributes:
        name: What it is called there, such as "RATE" or "settings.RATE".
        holder: The globals that it is in.
        key: Its name in them.
    """

    name: str
    holder: dict[str, Any]
    key: str


def functions_of(kind: type) -> list[tuple[str, types.FunctionType]]:
    """Return the user's functions in a class, by name: methods of any sort, properties, and what is behind caches."""
    found = [(name, function) for name, member in vars(kind).items() for function in functions_in(member)]
    return [(name, function) for name, function in found if is_users(function.__module__)]


def functions_in(member: Any) -> list[types.FunctionType]:
    """Return the functions that an attribute of a class stands for."""
    if isinstance(member, types.FunctionType):
        return [member]
    if isinstance(member, property):
        return [each for part in (member.fget, member.fset, member.fdel) for each in functions_in(part)]
    if isinstance(member, staticmethod | classmethod):
        return functions_in(member.__func__)
    if isinstance(member, functools.cached_property | functools.partialmethod):
        return functions_in(member.func)
    return functions_in(member.__wrapped__) if isinstance(member, CACHED) else []


def method_parts(kind: type) -> list[tuple[str, Any]]:
    """Return what the methods of a class refer to. Of methods that make an object only numbers, generators, and lists
    and dicts, where such objects may be counted: the others are often large, such as the first weights.
    """
    parts = []
    for name, function in functions_of(kind):
        for inner, value in function_parts(function):
            if inner == ".__class__" or (name in _MAKERS and not isinstance(value, _COUNTING)):
                continue
            parts.append((f".{name}{inner}", value))
    return parts


def function_parts(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return what a function refers to: its closure, defaults and attributes, and the globals that it names."""
    parts = [(f".{name}", value) for name, value in cells(function)]
    parts += [(f".<default {index}>", value) for index, value in enumerate(function.__defaults__ or ())]
    parts += [(f".<default {name}>", value) for name, value in (function.__kwdefaults__ or {}).items()]
    parts += [(f".{name}", value) for name, value in vars(function).items()]
    parts += [(f".<global>.{each.name}", each.holder[each.key]) for each in references(function)]
    return parts


def cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function closes over, as (name, value). Those without a value yet are left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = read_cell(cell)
        if value is not UNSET:
            yield name, value


def read_cell(cell: types.CellType) -> Any:
    """Return the value of a variable of a closure; UNSET if it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET


def references(function: types.FunctionType) -> Iterator[Reference]:
    """Yield the globals that a function names; none of a library's function, such as a decorator's around a user's."""
    known, names = function.__globals__, named_in(function.__code__)
    for prefix, own in namespaces(function):
        # Of its own globals it names some, of those in other modules any attribute may be one.
        for name in globals_in(function.__code__) if own is known else names:
            value = own.get(name, UNSET)
            is_followed = isinstance(value, types.ModuleType) and (own is known or is_users(value.__name__))
            if value is not UNSET and not is_followed:
                yield Reference(prefix + name, own, name)


def namespaces(function: types.FunctionType) -> list[tuple[str, dict[str, Any]]]:
    """Return the globals that a function has, and those of the user's modules that it names or imports.

    Each is given with what leads to it, such as "package.settings."; none are given of a library's function.
    """
    known, names = function.__globals__, named_in(function.__code__)
    if not is_users(known.get("__name__")):
        return []
    found = {id(known): ("", known)}
    imported = imported_names(function.__code__, str(known.get("__package__") or ""))
    waiting = [(name, known[name]) for name in names if name in known]
    waiting += [(name, load_module(name)) for name in imported]
    for prefix, module in waiting:
        if isinstance(module, types.ModuleType) and is_users(module.__name__) and id(vars(module)) not in found:
            own = vars(module)
            found[id(own)] = f"{prefix}.", own
            waiting += [(f"{prefix}.{name}", own[name]) for name in names if name in own]
    return list(found.values())


@functools.lru_cache(maxsize=1000)
def named_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in code, and in the functions inside."""
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in named_in(constant)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


@functools.lru_cache(maxsize=1000)
def globals_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of globals in code, and in the functions inside, without those of attributes.

    >>> globals_in((lambda thing: thing.rate * RATE).__code__)
    ('RATE',)
    """
    own = [step.argval for step in dis.get_instructions(code) if step.opname in _OF_GLOBALS]
    inner = [
        name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in globals_in(constant)
    ]
    return tuple(dict.fromkeys([*own, *inner]))
