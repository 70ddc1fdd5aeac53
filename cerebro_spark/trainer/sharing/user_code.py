"""Tells users' code from that of libraries, and finds what users' functions and classes refer to."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Objects of these libraries change by themselves, without an effect on a model.
_OPAQUE_LIBRARIES = {"tqdm", "wandb", "mlflow", "tensorboard", "tensorboardX", "tensorflow", "torch", "keras", "numpy"}
# A model of `transformers` finds out from the dtype of its first labels what kind of problem it has.
_SETTLED = {"transformers": {"problem_type"}}
_NUMBERS = (int, float, complex, type(None))
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


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
    return not any(_PACKAGE_FOLDERS & set(Path(place).parts) for place in places)


def is_opaque(kind: type) -> bool:
    """Whether objects of this class are not inspected: Python's own, and those of libraries that only observe."""
    root = (kind.__module__ or "").partition(".")[0]
    opaque = root in sys.stdlib_module_names or root in _OPAQUE_LIBRARIES
    return opaque and not issubclass(kind, types.SimpleNamespace)


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


def method_globals(kind: type) -> list[tuple[str, types.FunctionType, Any]]:
    """Return the global numbers and generators that the methods of a class use, as (name, method, value).

    Other globals are left out: libraries, functions, and constants.
    """
    methods = [method for method in vars(kind).values() if isinstance(method, types.FunctionType)]
    named = [(name, method, value) for method in methods for name, value in _globals(method) if "." not in name]
    return [found for found in named if isinstance(found[2], (*_NUMBERS, *_GENERATORS))]


def function_parts(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return what a function refers to: its closure, defaults and attributes, and the globals that it names."""
    parts = [(f".{name}", value) for name, value in cells(function)]
    parts += [(f".<default {index}>", value) for index, value in enumerate(function.__defaults__ or ())]
    parts += [(f".<default {name}>", value) for name, value in (function.__kwdefaults__ or {}).items()]
    parts += [(f".{name}", value) for name, value in vars(function).items()]
    parts += [(f".<global>.{name}", value) for name, value in _globals(function)]
    return parts


def cells(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function closes over, as (name, value). Those without a value yet are left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names, known = _names(function.__code__), function.__globals__
    for name, value in [(name, known[name]) for name in names if name in known]:
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif is_users(value.__name__):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in names if part in vars(value))


@functools.lru_cache(maxsize=1000)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = [name for constant in code.co_consts if isinstance(constant, types.CodeType) for name in _names(constant)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
