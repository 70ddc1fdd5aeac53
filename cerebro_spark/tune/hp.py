"""The hyperparameters of a search space: `from cerebro_spark import hp`. Arguments are checked when a search gets them.

Bounds are the values themselves, never exponents. A plain value in a space is a constant. A plain list is refused,
because it may be meant as `choice([...])`; write a list that is a constant as `choice([[64, 32]])`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from cerebro_spark.tune.spaces.dimensions import (
    Choice,
    LogUniform,
    Normal,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    Value,
)

__all__ = ["choice", "loguniform", "normal", "qloguniform", "quniform", "randint", "uniform"]


def choice(options: Sequence[Any]) -> Choice:
    """One of several options, each as likely as the others.

    Args:
        options: The values to choose from, at least one. An option may be a dict or a list with hyperparameters of its
            own; these are drawn only when the option is chosen.

    Returns:
        A hyperparameter for a search space.

    Examples:
        >>> space = {"optimizer": choice([{"name": "adam"}, {"name": "sgd", "momentum": uniform(0.5, 0.99)}])}
        >>> len(space["optimizer"].options)
        2
    """
    if isinstance(options, str | bytes | Mapping | Set) or not isinstance(options, Iterable):
        return Choice(options)  # type: ignore[arg-type]
    return Choice(tuple(options.tolist() if isinstance(options, np.ndarray) else options))


def uniform(low: Value, high: Value) -> Uniform:
    """Any number between `low` and `high`, each as likely as the others.

    Args:
        low: The smallest value.
        high: The largest value, above `low`.

    Returns:
        A hyperparameter for a search space. It draws floats.

    Examples:
        >>> print(uniform(0, 0.5))
        hp.uniform(0, 0.5)
    """
    return Uniform(_plain(low), _plain(high))


def loguniform(low: Value, high: Value) -> LogUniform:
    """Any number between `low` and `high`, each order of magnitude as likely as the others.

    Args:
        low: The smallest value itself, not its exponent or logarithm; above 0.
        high: The largest value itself, above `low`.

    Returns:
        A hyperparameter for a search space. It draws floats.

    Examples:
        >>> print(loguniform(1e-5, 1e-1))
        hp.loguniform(1e-05, 0.1)
    """
    return LogUniform(_plain(low), _plain(high))


def quniform(low: Value, high: Value, q: Value) -> QUniform:
    """One of the multiples of `q` between `low` and `high`, each as likely as the others.

    Args:
        low: The smallest value, included if it is a multiple of `q`.
        high: The largest value, included if it is a multiple of `q`; above `low`.
        q: The step between two values, above 0.

    Returns:
        A hyperparameter for a search space. It draws ints if `q` is a whole number, floats otherwise.

    Examples:
        >>> steps = quniform(0.1, 0.5, 0.1)
        >>> [steps.level(number) for number in range(steps.levels())]
        [0.1, 0.2, 0.3, 0.4, 0.5]
    """
    return QUniform(_plain(low), _plain(high), _plain(q))


def qloguniform(low: Value, high: Value, q: Value) -> QLogUniform:
    """One of the multiples of `q` between `low` and `high`, each order of magnitude as likely as the others.

    Args:
        low: The smallest value itself, not its exponent or logarithm; above 0.
        high: The largest value itself, above `low`.
        q: The step between two values, above 0.

    Returns:
        A hyperparameter for a search space. It draws ints if `q` is a whole number, floats otherwise.

    Examples:
        >>> qloguniform(16, 1024, 16).snap(100)
        96
    """
    return QLogUniform(_plain(low), _plain(high), _plain(q))


def randint(low: int, high: int) -> RandInt:
    """A whole number from `low` up to, but not including, `high`, as in Python's `range`.

    Args:
        low: The smallest value.
        high: One more than the largest value; above `low`.

    Returns:
        A hyperparameter for a search space. It draws ints.

    Examples:
        >>> randint(2, 5).levels()
        3
    """
    return RandInt(_plain(low), _plain(high))


def normal(mu: Value, sigma: Value) -> Normal:
    """A number from the normal distribution.

    Args:
        mu: The mean.
        sigma: The standard deviation, above 0.

    Returns:
        A hyperparameter for a search space. It draws floats, without bounds.

    Examples:
        >>> print(normal(0.0, 1.0))
        hp.normal(0.0, 1.0)
    """
    return Normal(_plain(mu), _plain(sigma))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
