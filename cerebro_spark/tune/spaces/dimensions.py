"""The kinds of hyperparameters: which values they have, how to draw, count and change them. They have no names.

A value of a dimension is a number; of a choice it is the index of the option.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from cerebro_spark.checks import is_number

Value = int | float

# How far an exploring member of a population goes: a fifth of the value, as in the paper on PBT, where that makes
# sense; else a tenth of the range, or half a standard deviation.
_FACTORS = (0.8, 1.2)
_SHARE_OF_RANGE = 0.1
_SHARE_OF_SIGMA = 0.5


class Dimension(ABC):
    """One hyperparameter. A wrong one raises nothing by itself: the space does, with the path to it.

    `fluid` dimensions may change while a model is trained; the others (layers, units, kinds) may shape the model.
    """

    fluid = True

    def problem(self) -> str | None:
        """Return the rule that is broken, and the fix; None if there is no problem."""
        bad = next((name for name, value in vars(self).items() if not _is_finite(value)), None)
        return None if bad is None else f"`{bad}` must be a finite number"

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> Value:
        """Draw a value from the distribution."""

    @abstractmethod
    def snap(self, value: float) -> Value:
        """Return the allowed value that is nearest to a number."""

    @abstractmethod
    def neighbours(self, value: Value) -> list[Value]:
        """Return the values one step away from this one, never this one itself."""

    def levels(self) -> int | None:
        """Return how many values there are; None if they cannot be counted."""
        return None

    def level(self, number: int) -> Value:
        """Return a value by its number in order, if values can be counted."""
        raise NotImplementedError

    def moved(self, value: Value, rng: np.random.Generator) -> Value:
        """Return a value one step away, in a random direction; the same value if there is no other."""
        near = self.neighbours(value)
        return near[int(rng.integers(len(near)))] if near else value

    def __str__(self) -> str:
        arguments = ", ".join(repr(getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return f"hp.{type(self).__name__.lower()}({arguments})"


@dataclass(frozen=True)
class Choice(Dimension):
    """One of several options; its value is the option's number."""

    options: tuple[Any, ...]

    @property
    def fluid(self) -> bool:  # type: ignore[override]
        """Rates and the like may change while a model is trained; whole numbers, names and dicts may shape it."""
        return all(isinstance(option, float) for option in self.options)

    def problem(self) -> str | None:
        if not isinstance(self.options, tuple):
            return "the options must be a list, which has an order: write hp.choice([...])"
        return None if self.options else "there must be at least one option"

    def sample(self, rng: np.random.Generator) -> Value:
        return int(rng.integers(len(self.options)))

    def snap(self, value: float) -> Value:
        return min(max(round(value), 0), len(self.options) - 1)

    def neighbours(self, value: Value) -> list[Value]:
        """Return the next smaller and larger option if all are numbers, or else all other options."""
        own = self._of(value)
        numbers: list[Value] = [number for number, option in enumerate(self.options) if option != own]
        if not all(_is_finite(option) for option in self.options):
            return numbers
        below = sorted((number for number in numbers if self._of(number) < own), key=self._of)
        above = sorted((number for number in numbers if self._of(number) > own), key=self._of)
        return below[-1:] + above[:1]

    def levels(self) -> int:
        return len(self.options)

    def level(self, number: int) -> Value:
        return number

    def _of(self, number: Value) -> Any:
        return self.options[int(number)]


@dataclass(frozen=True)
class Uniform(Dimension):
    """Any number between two."""

    low: Value
    high: Value

    def problem(self) -> str | None:
        return super().problem() or _bad_order(self.low, self.high)

    def sample(self, rng: np.random.Generator) -> Value:
        return self.snap(float(rng.uniform(self.low, self.high)))

    def snap(self, value: float) -> Value:
        return float(min(max(value, self.low), self.high))

    def neighbours(self, value: Value) -> list[Value]:
        if self.low >= 0 and value > 0:
            steps = [value * factor for factor in _FACTORS]
        else:
            step = _SHARE_OF_RANGE * (self.high - self.low)
            steps = [value - step, value + step]
        return _others(value, [self.snap(step) for step in steps])


class LogUniform(Uniform):
    """Any number between two, each order of magnitude as likely as the others."""

    def problem(self) -> str | None:
        return _bad_log(self.low) or super().problem()

    def sample(self, rng: np.random.Generator) -> Value:
        return self.snap(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class Normal(Dimension):
    """Any number, the likelier the nearer to `mu`."""

    mu: Value
    sigma: Value

    def problem(self) -> str | None:
        if (bad := super().problem()) or self.sigma > 0:
            return bad
        return "`sigma` must be above 0: for a fixed number, write the number itself"

    def sample(self, rng: np.random.Generator) -> Value:
        return float(rng.normal(self.mu, self.sigma))

    def snap(self, value: float) -> Value:
        return float(value)

    def neighbours(self, value: Value) -> list[Value]:
        step = _SHARE_OF_SIGMA * self.sigma
        return [float(value - step), float(value + step)]


@dataclass(frozen=True)
class Stepped(Dimension):
    """Multiples of a step, from the first that is not below `low` to the last that is not above `high`.

    Values are whole numbers if the step is one. Multiples are computed from the decimal number as it was written, so
    that 3 times 0.1 is 0.3.
    """

    low: Value
    high: Value

    @property
    def step(self) -> Value:
        """From one value to the next."""
        return 1

    @property
    def first(self) -> int:
        """How many steps the smallest value has."""
        return math.ceil(_exact(self.low) / _exact(self.step))

    @property
    def last(self) -> int:
        """How many steps the largest value has."""
        return math.floor(_exact(self.high) / _exact(self.step))

    @property
    def fluid(self) -> bool:  # type: ignore[override]
        """Whole numbers often shape a model."""
        return not isinstance(self.step, int)

    def sample(self, rng: np.random.Generator) -> Value:
        return self.level(int(rng.integers(self.levels())))

    def level(self, number: int) -> Value:
        return self._times(self.first + number)

    def levels(self) -> int:
        return self.last - self.first + 1

    def snap(self, value: float) -> Value:
        return self._times(min(max(self._steps(value), self.first), self.last))

    def neighbours(self, value: Value) -> list[Value]:
        steps = self._steps(value)
        near = sorted(round(steps * factor) for factor in _FACTORS)
        down = max(min(near[0], steps - 1), self.first)
        up = min(max(near[1], steps + 1), self.last)
        return _others(value, [self._times(down), self._times(up)])

    def _steps(self, value: float) -> int:
        return round(_exact(value) / _exact(self.step))

    def _times(self, steps: int) -> Value:
        exact = steps * _exact(self.step)
        return int(exact) if isinstance(self.step, int) else float(exact)


@dataclass(frozen=True)
class QUniform(Stepped):
    """One of the multiples of `q` between two numbers, each as likely as the others."""

    q: Value

    @property
    def step(self) -> Value:
        return self.q

    def problem(self) -> str | None:
        if bad := super().problem() or _bad_order(self.low, self.high):
            return bad
        if self.q <= 0:
            return "`q` must be above 0: it is the step from one value to the next"
        return None if self.first <= self.last else f"there must be a multiple of q={self.q} between low and high"


class QLogUniform(QUniform):
    """One of the multiples of `q` between two numbers, each order of magnitude as likely as the others."""

    def problem(self) -> str | None:
        return _bad_log(self.low) or super().problem()

    def sample(self, rng: np.random.Generator) -> Value:
        return self.snap(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


class RandInt(Stepped):
    """A whole number from `low` up to, but not including, `high`."""

    @property
    def last(self) -> int:
        return int(self.high) - 1

    def problem(self) -> str | None:
        bad = next((name for name, value in vars(self).items() if not is_number(value, int)), None)
        return _bad_order(self.low, self.high) if bad is None else f"`{bad}` must be a whole number"


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


def _others(value: Value, near: list[Value]) -> list[Value]:
    return [other for other in near if other != value]


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _bad_order(low: Value, high: Value) -> str | None:
    return None if low < high else "`low` must be below `high`: swap them, or write a fixed number as itself"


def _bad_log(low: Any) -> str | None:
    if not _is_finite(low) or low > 0:
        return None
    return "`low` must be above 0, for there is no logarithm of it: bounds are the values themselves, not exponents"
