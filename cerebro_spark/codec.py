"""The JSON form of events: readable by people, exact for machines. It must never execute or import what it reads."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.events import EVENTS, Event


def encode(event: Event) -> str:
    """One line of JSON, without the line break.

    >>> from cerebro_spark.events import WorkerLost
    >>> encode(WorkerLost(1.5, "w1", "killed"))
    '{"event":"WorkerLost","at":1.5,"worker":"w1","reason":"killed","blames_unit":true,"running":null}'
    """
    body = {"event": type(event).__name__, **_fields(event)}
    line = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Half a character, as file names may have it, is no UTF-8; its escape is, and JSON reads it back.
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


def decode(line: str) -> Event:
    """The event that `encode` made this line from.

    >>> decode('{"event":"WorkerLost","at":1.5,"worker":"w1","reason":"killed","blames_unit":true,"running":null}')
    WorkerLost(at=1.5, worker='w1', reason='killed', blames_unit=True, running=None)
    """
    body = json.loads(line)
    if not isinstance(body, dict) or body.get("event") not in EVENTS:
        raise EventLogError(f"{line[:80]!r} is not an event that this version knows")
    kind = EVENTS[body.pop("event")]
    body.pop("n", None)
    body.pop("by", None)
    event: Event = from_plain(kind, body)
    return event


def _fields(value: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
    return {name: to_plain(getattr(value, name), name) for name in value._fields}


def to_plain(value: Any, where: str) -> Any:
    """A value as JSON knows it; `where` names it if that cannot be.

    >>> to_plain({"units": (64, 32)}, "params")
    {'units': {'$tuple': [64, 32]}}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        return _fields(value)
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item, where) for item in value]}
    if isinstance(value, list):
        return [to_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key.startswith("$"):
                raise ConfigurationError(
                    f"{key!r} in {where!r} cannot be logged: keys are strings that do not start with '$'"
                )
        return {key: to_plain(item, f"{where}.{key}") for key, item in value.items()}
    raise ConfigurationError(
        f"{where!r} holds a {type(value).__name__}, which cannot be logged:"
        " use numbers, strings, booleans, None, and lists, tuples or dicts of them"
    )


def _restore(value: Any) -> Any:
    if isinstance(value, dict):
        if "$float" in value:
            return float(value["$float"])
        if "$tuple" in value:
            return tuple(_restore(item) for item in value["$tuple"])
        return {key: _restore(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore(item) for item in value]
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """Give plain JSON the type that an annotation says."""
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        hints = _hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise EventLogError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}: the log is from another version")
        return kind(**{name: from_plain(hints[name], item) for name, item in value.items()})
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else from_plain(next(a for a in get_args(kind) if a is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(get_args(kind)[0], item) for item in value["$tuple"])
    if kind is float and isinstance(value, int):
        return float(value)
    if origin is Literal or isinstance(kind, NewType) or kind in (str, int, bool):
        return value
    return _restore(value)
