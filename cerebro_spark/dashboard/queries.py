"""Arguments of requests, checked. A mistake is said by name, and answered with 400."""

from __future__ import annotations

import math
from typing import Any

from cerebro_spark.dashboard.feeds import RunFeed
from cerebro_spark.errors import ConfigurationError

_LONGEST = 1_000
_LATEST = 1e12


class Query:
    """The arguments of one request."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number within limits."""
        text = self._values.get(name)
        if text is None or text == "":
            return default
        try:
            value = int(text[:_LONGEST])
        except ValueError:
            raise ConfigurationError(f"`{name}` is {text[:40]!r}, but must be a whole number") from None
        if not low <= value <= high:
            raise ConfigurationError(f"`{name}` is {value}, but must be between {low} and {high}")
        return value

    def seconds(self, name: str) -> float | None:
        """A time in seconds, or None."""
        text = self._values.get(name)
        if text is None or text == "":
            return None
        try:
            value = float(text[:_LONGEST])
        except ValueError:
            value = math.nan
        if not abs(value) <= _LATEST:
            raise ConfigurationError(f"`{name}` is {text[:40]!r}, but must be a number of seconds")
        return value

    def text(self, name: str) -> str:
        """Any text, "" if it is not there."""
        return str(self._values.get(name, ""))[:_LONGEST]

    def since(self, feed: RunFeed) -> int:
        """From which version on something is wanted: 0, for all, if that was one of another generation."""
        value = self.whole("since", 0, 0, 2**53)
        generation = self.text("generation")
        if generation and generation != feed.index.generation:
            return 0
        return value if value is not None and value <= feed.index.version else 0
