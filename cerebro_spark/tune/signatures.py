"""Signatures that explain themselves: helpful errors for unknown keywords, and docstrings that describe every argument.

Arguments are fields of dataclasses that inherit from each other. Type checkers, editors and `help` see all of them, and
each has one default and one description. It only adds to what it decorates; it never changes how that is called.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from cerebro_spark.checks import check_names

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
_SECTION = re.compile(r"^Args:\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
_LATER = re.compile(r"^(?:Returns|Yields|Raises|Example|Examples):$|^>>> ", re.MULTILINE)


def explained(elsewhere: Mapping[str, str] | None = None) -> Callable[[C], C]:
    """Return a decorator for a dataclass whose fields are the arguments of users.

    Args:
        elsewhere: For arguments that belong somewhere else, how to give them there. Default: there are none.

    Returns:
        A decorator that lets the class refuse unknown keywords with a ConfigurationError, and completes its docstring
        with the arguments that it inherits.
    """

    def decorate(cls: C) -> C:
        cls.__init__ = refusing_unknown(elsewhere, cls.__name__)(cls.__init__)  # type: ignore[misc]
        cls.__doc__ = complete_docstring(cls, cls.__mro__)
        return cls

    return decorate


def refusing_unknown(
    elsewhere: Mapping[str, str] | None = None, owner: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a function refuse unknown keywords with a ConfigurationError.

    Args:
        elsewhere: For arguments that belong somewhere else, how to give them there. Default: there are none.
        owner: What the message calls the function. Default: its name.

    Returns:
        A decorator that leaves the signature as it is.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = set(inspect.signature(function).parameters) - {"self"}
        name = owner or function.__name__

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_names(name, kwargs, known, elsewhere)
            return function(*args, **kwargs)

        return call

    return decorate


def completed_from(*sources: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that completes a function's docstring with the arguments that `sources` describe.

    Args:
        sources: Classes whose docstrings have a section `Args:`.

    Returns:
        A decorator that changes nothing but the docstring.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        function.__doc__ = complete_docstring(function, [function, *sources])
        return function

    return decorate


def complete_docstring(called: Any, sources: Sequence[Any]) -> str:
    """Return a docstring whose section `Args:` describes every argument, those without a default first.

    Args:
        called: A class or function with a docstring.
        sources: Where descriptions are looked for; the first one counts.

    Returns:
        The docstring, without indentation.
    """
    texts: dict[str, str] = {}
    for source in reversed(sources):
        texts.update(_entries(source))
    arguments = sorted(
        inspect.signature(called).parameters.values(), key=lambda each: each.default is not inspect.Parameter.empty
    )
    section = "Args:\n" + "".join(texts[each.name] for each in arguments if each.name in texts)
    own = _SECTION.sub("", inspect.cleandoc(called.__doc__ or "") + "\n").rstrip() + "\n"
    later = _LATER.search(own)
    place = later.start() if later else len(own)
    return f"{own[:place].rstrip()}\n\n{section}\n{own[place:]}".rstrip() + "\n"


def _entries(source: Any) -> dict[str, str]:
    """Return the description of each argument in the docstring of a class or function, as it stands there."""
    found = _SECTION.search(inspect.cleandoc(source.__doc__ or "") + "\n")
    if not found:
        return {}
    names = list(_ENTRY.finditer(found.group()))
    ends = [name.start() for name in names[1:]] + [len(found.group())]
    return {
        name.group(1): found.group()[name.start() : end].rstrip() + "\n" for name, end in zip(names, ends, strict=True)
    }
