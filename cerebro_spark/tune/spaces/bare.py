"""Spaces whose configurations are not dicts: a number, a list. Runs have params by name, so such a value gets one.

It imports nothing of this package: workers unpickle it, and need no search for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NAME = "value"


class Bare:
    """A user's function whose last argument, the params, is the value itself where the params stand for one.

    >>> Bare(lambda batch, lr: (batch, lr))("batch", {"value": 0.1})
    ('batch', 0.1)
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func  # as in functools.partial: this attribute is where the framework is looked for
        self.__name__ = getattr(func, "__name__", type(func).__name__)

    def __call__(self, *arguments: Any) -> Any:
        *others, params = arguments
        return self.func(*others, bare(params))


def named(value: Any) -> dict[str, Any]:
    """Return a configuration as params; a dict stays as it is.

    >>> named(0.1), named({"lr": 0.1})
    ({'value': 0.1}, {'lr': 0.1})
    """
    return value if isinstance(value, dict) else {NAME: value}


def bare(params: Mapping[str, Any]) -> Any:
    """Return the configuration that params stand for: the reverse of `named`."""
    return params[NAME] if set(params) == {NAME} else params
