"""Finds the user's modules that a function imports when it is called."""

from __future__ import annotations

import dis
import functools
import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path

_log = logging.getLogger(__name__)
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_FAILED: set[str] = set()
"""The modules that could not be imported: they are not tried again."""


def is_installed(places: Iterable[str]) -> bool:
    """Whether one of these files and folders belongs to an installed library."""
    return any(_PACKAGE_FOLDERS & set(Path(place).parts) for place in places)


@functools.lru_cache(maxsize=1000)
def imported_names(code: types.CodeType, package: str) -> tuple[str, ...]:
    """Return the full names of the modules that code imports, also in the functions inside.

    What follows `import` in a `from` import is among them, as it may be a module.

    Args:
        code: The code of a function.
        package: The package that relative imports start from.

    >>> def read():
    ...     import os.path
    ...     from json import decoder
    >>> imported_names(read.__code__, "")
    ('os', 'os.path', 'json', 'json.decoder')
    """
    return tuple(dict.fromkeys(_list_imports(code, package)))


def _list_imports(code: types.CodeType, package: str) -> Iterator[str]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, parts, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            yield from _full_names(str(step.argval or ""), parts.argval or (), int(level.argval or 0), package)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_imports(constant, package)


def _full_names(module: str, parts: Iterable[str], level: int, package: str) -> Iterator[str]:
    above = package.split(".")
    if level > len(above) or (level and not package):
        return
    path = [*(above[: len(above) - level + 1] if level else ()), *filter(None, module.split("."))]
    yield from (".".join(path[: length + 1]) for length in range(len(path)))
    yield from (".".join([*path, part]) for part in parts if part != "*")


def load_module(name: str) -> types.ModuleType | None:
    """Return a module; None if there is none of that name, or if it is a library's and not loaded yet.

    A user's module is imported now: what a unit changes in it is seen only against what it was before.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    parent, _, own = name.rpartition(".")
    above = load_module(parent) if parent else None
    if parent and (not hasattr(above, "__path__") or hasattr(above, own)):
        return None
    return _import_users(name)


def _import_users(name: str) -> types.ModuleType | None:
    if name.partition(".")[0] in sys.stdlib_module_names or name in _FAILED:
        return None
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or is_installed([spec.origin or "", *(spec.submodule_search_locations or ())]):
            return None
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # The function that imports it may never be called, or be prepared for that.
        _FAILED.add(name)
        _log.debug("module %s cannot be imported: %r", name, error)
        return None
