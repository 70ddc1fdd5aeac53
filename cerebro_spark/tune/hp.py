"""The hyperparameters of a space: `from cerebro_spark import hp`. They check nothing; a search checks its space.

Bounds are the values themselves, never exponents. A plain value in a space is a constant. A plain list is refused, as
it may be meant as `choice([...])`; a list that is a constant is written as the only option: `choice([[64, 32]])`.
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
    """Choose one of several options.

    Args:
        options: The options, in order: a list, tuple, range or array. An option may be a dict or a list with
            hyperparameters of its own.

    Returns:
        A hyperparameter for a space.

    >>> space = {"optimizer": choice([{"name": "adam"}, {"name": "sgd", "momentum": uniform(0.5, 0.99)}])}
    >>> len(space["optimizer"].options)
    2
    """
    if isinstance(options, str | bytes | Mapping | Set) or not isinstance(options, Iterable):
        return Choice(options)  # type: ignore[arg-type]
    return Choice(tuple(options.tolist() if isinstance(options, np.ndarray) else options))


def uniform(low: Value, high: Value) -> Uniform:
    """Draw a number from an interval, each as likely as the others.

    Args:
        low: The smallest value.
        high: The largest value.

    Returns:
        A hyperparameter for a space.

    >>> print(uniform(0, 0.5))
    hp.uniform(0, 0.5)
    """
    return Uniform(_plain(low), _plain(high))


def loguniform(low: Value, high: Value) -> LogUniform:
    """Draw a number from an interval, each order of magnitude as likely as the others.

    Args:
        low: The smallest value itself, not its exponent; above 0.
        high: The largest value itself.

    Returns:
        A hyperparameter for a space.

    >>> print(loguniform(1e-5, 1e-1))
    hp.loguniform(1e-05, 0.1)
    """
    return LogUniform(_plain(low), _plain(high))


def quniform(low: Value, high: Value, q: Value) -> QUniform:
    """Draw a multiple of a step from an interval, each as likely as the others.

    Args:
        low: The smallest value; included if it is a multiple of `q`.
        high: The largest value; included if it is a multiple of `q`.
        q: The step. If it is a whole number, the values are too.

    Returns:
        A hyperparameter for a space.

    >>> steps = quniform(0.1, 0.5, 0.1)
    >>> [steps.level(number) for number in range(steps.levels())]
    [0.1, 0.2, 0.3, 0.4, 0.5]
    """
    return QUniform(_plain(low), _plain(high), _plain(q))


def qloguniform(low: Value, high: Value, q: Value) -> QLogUniform:
    """Draw a multiple of a step from an interval, each order of magnitude as likely as the others.

    Args:
        low: The smallest value itself, not its exponent; above 0.
        high: The largest value itself.
        q: The step. If it is a whole number, the values are too.

    Returns:
        A hyperparameter for a space.

    >>> qloguniform(16, 1024, 16).snap(100)
    96
    """
    return QLogUniform(_plain(low), _plain(high), _plain(q))


def randint(low: int, high: int) -> RandInt:
    """Draw a whole number, each as likely as the others.

    Args:
        low: The smallest value.
        high: The end, which is not included, as in Python's `range`.

    Returns:
        A hyperparameter for a space.

    >>> randint(2, 5).levels()
    3
    """
    return RandInt(_plain(low), _plain(high))


def normal(mu: Value, sigma: Value) -> Normal:
    """Draw a number from a normal distribution.

    Args:
        mu: The mean.
        sigma: The standard deviation; above 0.

    Returns:
        A hyperparameter for a space.

    >>> print(normal(0.0, 1.0))
    hp.normal(0.0, 1.0)
    """
    return Normal(_plain(mu), _plain(sigma))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
