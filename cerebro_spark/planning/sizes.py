"""Sizes and speeds as people write them, such as "64g" and "10Gb"; and numbers as people read them."""

from __future__ import annotations

import math
import re

from cerebro_spark.checks import is_number
from cerebro_spark.errors import ConfigurationError

_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_SPEED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(b|B|bit)(?:ps|/s)?\s*", re.IGNORECASE)


def parse_bytes(name: str, value: object) -> int:
    """Return a number of bytes, given as such or as Spark does.

    Args:
        name: The argument, for the error.
        value: What was given.

    Raises:
        ConfigurationError: It is no size above 0.

    >>> parse_bytes("memory", "64g") == 64 << 30, parse_bytes("memory", 1000)
    (True, 1000)
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        size = float(found[1]) * 1024 ** _STEPS[found[2].lower()]
        if size >= 1:
            return int(size)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ConfigurationError(f"`{name}` is {value!r}, but must be a size above 0, such as '64g' or a number of bytes")


def parse_bandwidth(name: str, value: object) -> float:
    """Return bytes a second, given as such or as bits ("10Gb") or bytes ("1GB") a second.

    Args:
        name: The argument, for the error.
        value: What was given.

    Raises:
        ConfigurationError: It is no speed above 0.

    >>> parse_bandwidth("network", "10Gb"), parse_bandwidth("network", "100MB"), parse_bandwidth("network", 5e6)
    (1250000000.0, 100000000.0, 5000000.0)
    """
    if isinstance(value, str) and (found := _SPEED.fullmatch(value)):
        speed: float = float(found[1]) * 1000 ** _STEPS[found[2].lower()] / (1 if found[3] == "B" else 8)
        if speed > 0:
            return speed
    if is_number(value) and 0 < float(value) < math.inf:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"`{name}` is {value!r}, but must be a speed above 0: '10Gb' for bits a second, '1GB' or a number for bytes"
    )


def duration(seconds: float) -> str:
    """Return a time span for people.

    >>> duration(5.24), duration(95), duration(4000), duration(200000)
    ('5.2 s', '1 min 35 s', '1 h 06 min', '55 h 33 min')
    """
    if not math.isfinite(seconds):
        return "no end"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Return a number of bytes for people.

    >>> size(3 << 30), size(5_000_000)
    ('3.0 GiB', '4.8 MiB')
    """
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"
