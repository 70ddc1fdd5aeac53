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
    """The event that `encode` made this line from. Raises EventLogError for any other line, whatever it holds.

    >>> decode('{"event":"WorkerLost","at":1.5,"worker":"w1","reason":"killed","blames_unit":true,"running":null}')
    WorkerLost(at=1.5, worker='w1', reason='killed', blames_unit=True, running=None)
    """
    try:
        body = json.loads(line)
        name = body.pop("event")
        kind = EVENTS[name]
        body.pop("n", None)
        body.pop("by", None)
        event: Event = from_plain(kind, body)
    except EventLogError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise EventLogError(f"{line[:80]!r} is not an event that this version knows ({said})") from error
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
def _shape(kind: Any) -> tuple[bool, Any]:
    """Whether a type has fields, and the generic type that it is made from."""
    has_fields = isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
    return has_fields, get_origin(kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """Give plain JSON the type that an annotation says."""
    is_record, origin = _shape(kind)
    if is_record:
        hints = _hints(kind)
        if not isinstance(value, dict):
            raise EventLogError(f"{value!r:.80} is no {kind.__name__}: the log is foreign, or from another version")
        if not value.keys() <= hints.keys():
            unknown = set(value) - set(hints)
            raise EventLogError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}: the log is from another version")
        return kind(**{name: from_plain(hints[name], item) for name, item in value.items()})
    if origin in (Union, types.UnionType):
        return None if value is None else from_plain(next(a for a in get_args(kind) if a is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(get_args(kind)[0], item) for item in value["$tuple"])
    if origin is Literal:
        return _checked(value, value in get_args(kind), kind)
    if isinstance(kind, NewType) or kind is str:
        return _checked(value, isinstance(value, str), kind)
    if kind is bool:
        return _checked(value, isinstance(value, bool), kind)
    if kind is int:
        return _checked(value, isinstance(value, (int, float)), kind)
    if kind is float:
        number = float(value) if isinstance(value, int) else _restore(value)
        return _checked(number, isinstance(number, float), kind)
    return _restore(value)


def _checked(value: Any, fits: bool, kind: Any) -> Any:
    if not fits:
        raise EventLogError(f"{value!r:.80} is no {getattr(kind, '__name__', kind)}: the log is foreign, or damaged")
    return value
