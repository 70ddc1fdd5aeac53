"""Names in a module, read from its source: tests get their ids without importing a framework at collection."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any


def keys_in(file: Path, table: str) -> list[str]:
    """The keys of the dict that `file` assigns to `table`, in their order."""
    found = _assigned(file, table)
    assert isinstance(found, ast.Dict)
    return [key.value for key in found.keys if isinstance(key, ast.Constant)]


def exported(package: str, module: str) -> list[str]:
    """The sorted names in `__all__` of a subpackage, or none if the package is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    source = Path(spec.submodule_search_locations[0], module, "__init__.py")
    return sorted(ast.literal_eval(_assigned(source, "__all__")))


def _assigned(file: Path, name: str) -> Any:
    body = ast.parse(file.read_text()).body
    return next(node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
