"""Checks of arguments. Each raises ConfigurationError with the value, the rule and the fix; none changes anything."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from numbers import Real

from cerebro_spark.errors import ConfigurationError


def is_number(value: object, kind: type = Real) -> bool:
    """Return whether a value is a number. Those of NumPy are; a bool is not, although Python can calculate with it.

    Args:
        value: Any value.
        kind: The kind of number, from the module `numbers`. Defaults to `Real`: any real number.

    Returns:
        True for a number of that kind.

    >>> is_number(0.5), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, kind) and not isinstance(value, bool)


def check_at_least(name: str, value: object, least: int, why: str = "") -> None:
    """Raise ConfigurationError unless an argument is an int of at least `least`.

    Args:
        name: The argument's name, for the message.
        value: Its value.
        least: The smallest value that is allowed.
        why: What a smaller value would lead to. Defaults to "": nothing is said about it.

    Raises:
        ConfigurationError: The value is no int, or too small.

    >>> check_at_least("eta", 3, 2)
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(
            f"`{name}` is {value!r}, but must be a whole number: an int, and this is a {type(value).__name__}"
        )
    if value < least:
        raise ConfigurationError(f"`{name}` is {value}, but must be at least {least}" + (f": {why}" if why else ""))


def check_whole(name: str, value: object) -> None:
    """Raise ConfigurationError unless an argument can be a number of workers or threads.

    Args:
        name: The argument's name, for the message.
        value: Its value.

    Raises:
        ConfigurationError: The value is no whole number of at least 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"`{name}` is {value!r}, but must be a whole number of at least 1")


def check_seconds(name: str, value: object) -> None:
    """Raise ConfigurationError unless an argument can be a duration in seconds.

    Args:
        name: The argument's name, for the message.
        value: Its value.

    Raises:
        ConfigurationError: The value is no finite number above 0.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError(f"`{name}` is {value!r}, but must be a number of seconds above 0")


def check_names(
    owner: str, given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raise ConfigurationError for a keyword argument that does not exist.

    Args:
        owner: The name of what is called, for the message.
        given: The names of the arguments that it is given.
        known: The names of the arguments that it has.
        elsewhere: For arguments that belong somewhere else, how to give them there; or why to "leave it out". Defaults
            to None: there are none.

    Raises:
        ConfigurationError: A name is not known; the message has the most similar one.

    >>> check_names("GridSearch", ["seeds"], ["seed", "space"])
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: GridSearch has no argument 'seeds': did you mean 'seed'?
    >>> check_names("CerebroTrials", ["space"], ["data"], {"space": "hyperopt.fmin(fn, space, ...)"})
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: CerebroTrials has no argument 'space': give it as hyperopt.fmin(fn, space,
    ...)
    """
    for name in given:
        if name in known:
            continue
        if elsewhere and name in elsewhere:
            way = elsewhere[name]
            hint = way if way.startswith("leave it out") else f"give it as {way}"
            raise ConfigurationError(f"{owner} has no argument {name!r}: {hint}")
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
        raise ConfigurationError(f"{owner} has no argument {name!r}: {hint}")
