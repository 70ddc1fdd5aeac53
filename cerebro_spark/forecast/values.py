"""A forecast as a value, and its JSON form. It computes nothing, and reading it never runs code."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro_spark.command_views import describe_command
from cerebro_spark.commands import Command
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.forecast.words import describe

_TIMES = ("done_at", "low", "high")


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a run will be done, as it seems. Times are wall clocks, in seconds since 1970.

    Args:
        made_at: When the forecast was made.
        events: How many events of the run it knew.
        done_at: When the run will be done; None if that is not known, for the `reason`.
        low: The earliest end that is likely: about one run in twenty ends before it. None like `done_at`.
        high: The latest end that is likely, in the same sense.
        exact: Whether what the search asks for is the same whatever future epochs measure. Then only unit times are
            uncertain.
        reason: Why nothing is known; "" if something is.
        what_if: The same for the run after one more command, by `label_of` that command. Empty by default.

    >>> Forecast(made_at=1.8e9, events=0, reason="no unit has ended").known
    False
    """

    made_at: float
    events: int
    done_at: float | None = None
    low: float | None = None
    high: float | None = None
    exact: bool = False
    reason: str = ""
    what_if: Mapping[str, Forecast] = field(default_factory=dict)

    def __str__(self) -> str:
        return describe(self, time.time())

    @property
    def known(self) -> bool:
        """Whether it says when the run will be done."""
        return self.done_at is not None

    @property
    def hopeless(self) -> bool:
        """Whether nothing will ever be known of this run: that was found out without a look at its events."""
        return not self.known and self.events == 0

    def shifted(self, seconds: float) -> Forecast:
        """Return the same forecast by another clock, its answers included.

        Args:
            seconds: By how much all its times are later.

        Returns:
            The forecast.
        """
        moved: dict[str, Any] = {name: None if (at := getattr(self, name)) is None else at + seconds for name in _TIMES}
        answers = {label: answer.shifted(seconds) for label, answer in self.what_if.items()}
        return replace(self, **moved, what_if=answers)


def label_of(command: Command) -> str:
    """Return the name of a command's answer in `what_if`: its verb, what it is about, and what else it says.

    >>> label_of(Command("stop_trial", trial="t7")), label_of(Command("add_workers", workers=2))
    ('stop_trial t7', 'add_workers 2')
    >>> label_of(Command("clone", trial="t7", params={"lr": 0.1}, warm_start=False, epochs=2))
    'clone t7, 2 epochs, lr=0.1, with new weights'
    """
    more = [] if command.epochs is None else [f"{command.epochs} epochs"]
    more += [f"{name}={value}" for name, value in command.params.items()]
    more += [] if command.warm_start else ["with new weights"]
    return ", ".join([describe_command(command), *more])


def to_json(forecast: Forecast) -> str:
    """Return a forecast as JSON, in which all numbers are finite.

    >>> to_json(Forecast(1.0, 5, done_at=3.0, low=2.0, high=4.0))
    '{"made_at":1.0,"done_at":3.0,"low":2.0,"high":4.0,"exact":false,"events":5,"reason":"","what_if":{}}'
    """
    return json.dumps(to_plain(forecast), separators=(",", ":"), allow_nan=False)


def to_plain(forecast: Forecast) -> dict[str, Any]:
    """Return a forecast as values that JSON knows."""
    return {
        "made_at": forecast.made_at,
        "done_at": forecast.done_at,
        "low": forecast.low,
        "high": forecast.high,
        "exact": forecast.exact,
        "events": forecast.events,
        "reason": forecast.reason,
        "what_if": {label: to_plain(answer) for label, answer in forecast.what_if.items()},
    }


def from_json(text: str | bytes) -> Forecast:
    """Return the forecast that `to_json` made this text from.

    Raises:
        ConfigurationError: If the text is anything else.
    """
    try:
        return _from_plain(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{text[:80]!r} is no forecast ({type(error).__name__}: {error})") from error


def _from_plain(plain: Mapping[str, Any]) -> Forecast:
    times = {name: None if plain[name] is None else _finite(plain[name]) for name in _TIMES}
    return Forecast(
        _finite(plain["made_at"]),
        int(plain["events"]),
        times["done_at"],
        times["low"],
        times["high"],
        exact=plain["exact"] is True,
        reason=str(plain.get("reason", "")),
        what_if={str(label): _from_plain(answer) for label, answer in plain.get("what_if", {}).items()},
    )


def _finite(number: Any) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{value} is no time")
    return value
