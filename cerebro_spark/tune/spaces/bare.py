"""Spaces whose configurations are no dicts: a number, a list. Runs know params by name, so such a value gets one.

It imports nothing: workers unpickle it, and need no search for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NAME = "value"


class Bare:
    """A user's function, called with the value itself where params stand for one; they are its last argument.

    >>> Bare(lambda batch, lr: (batch, lr))("batch", {"value": 0.1})
    ('batch', 0.1)
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func  # the name under which a partial has it too, where who looks for a framework looks
        self.__name__ = getattr(func, "__name__", type(func).__name__)

    def __call__(self, *arguments: Any) -> Any:
        *others, params = arguments
        return self.func(*others, bare(params))


def named(value: Any) -> dict[str, Any]:
    """A configuration as params; a dict is its own.

    >>> named(0.1), named({"lr": 0.1})
    ({'value': 0.1}, {'lr': 0.1})
    """
    return value if isinstance(value, dict) else {NAME: value}


def bare(params: Mapping[str, Any]) -> Any:
    """The configuration that params stand for: the other way round."""
    return params[NAME] if set(params) == {NAME} else params
