"""Checks of the numbers a backend is given. It changes nothing."""

from __future__ import annotations

from cerebro_spark.errors import ConfigurationError


def check_whole(name: str, value: object) -> None:
    """Raise ConfigurationError unless this can be a number of workers or threads."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"`{name}` is {value!r}, but must be a whole number of at least 1")


def check_seconds(name: str, value: object) -> None:
    """Raise ConfigurationError unless this can be a time to wait."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError(f"`{name}` is {value!r}, but must be a number of seconds above 0")
