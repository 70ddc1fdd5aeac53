"""Values as every JSON reader knows them: numbers are finite or null, and what users wrote stays a string. PURE."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_DEEPEST = 20
_LONGEST_LINE = 200


def finite(value: float | None) -> float | None:
    """A number that JSON can hold, or None.

    >>> finite(0.5), finite(float("nan")), finite(float("-inf"))
    (0.5, None, None)
    """
    return value if value is not None and math.isfinite(value) else None


def plain(value: Any, depth: int = 0) -> Any:
    """Any value as JSON: tuples become lists, and what JSON does not know becomes its text.

    >>> plain({"lr": float("inf"), "units": (64, 32), "name": "<b>"})
    {'lr': None, 'units': [64, 32], 'name': '<b>'}
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return finite(value)
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {str(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, depth + 1) for item in value]
    return str(value)[:_LONGEST_LINE]


def metrics(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Metrics by name; what is no number is null."""
    return {name: finite(value) if isinstance(value, (int, float)) else None for name, value in values.items()}


def first_line(text: str) -> str:
    """What to show of an error in one line: its last line, where an exception is named, shortened.

    >>> first_line("Traceback (most recent call last):\\n  File ...\\nValueError: no")
    'ValueError: no'
    >>> first_line("ValueError: no\\n\\nwith params {}")
    'ValueError: no'
    """
    lines = [line.strip() for line in text.strip().split("\n") if line.strip()]
    if not lines:
        return ""
    return (lines[-1] if lines[0].startswith("Traceback") else lines[0])[:_LONGEST_LINE]


def dump(value: Any) -> bytes:
    """The JSON text of plain values. Raises ValueError for a number that is not finite: nobody shall guess.

    Characters beyond ASCII are escaped, so that halves of characters, which file names may have, do no harm.
    """
    return _encode(value).encode("ascii")


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
