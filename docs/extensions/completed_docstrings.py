"""Shows docstrings as `help` shows them, where a decorator completes them with inherited arguments.

Griffe reads the sources, which have only a class's own arguments. It changes no other docstring.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import griffe

_DECORATORS = ("explained(", "completed_from(")


class CompletedDocstrings(griffe.Extension):
    """Takes the docstring of a decorated class or function from the imported module."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        decorators = getattr(obj, "decorators", [])
        if obj.docstring is not None and any(str(each.value).startswith(_DECORATORS) for each in decorators):
            obj.docstring.value = getattr(import_module(obj.module.path), obj.name).__doc__
