"""The JSON form of the values in `events.py`: in the event log, and on the wire between driver and workers.

It is exact, and readable by people. Reading it never imports or executes anything. How a type is read is worked out
once per type, since a run reads and writes every unit several times.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from cerebro_spark.errors import CerebroError, ConfigurationError, EventLogError
from cerebro_spark.events import EVENTS, Event

Reader = Callable[[Any], Any]
_write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_ATOMS = frozenset({type(None), bool, int, str})
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class CodecError(CerebroError):
    """JSON that is not the form of a value that this version knows."""


def encode(event: Event) -> str:
    """Return an event as one line of the log, without the line break.

    >>> from cerebro_spark.events import WorkerLost
    >>> encode(WorkerLost(1.5, "w1", "killed"))
    '{"event":"WorkerLost","at":1.5,"worker":"w1","reason":"killed","blames_unit":true,"running":null}'
    """
    return to_json(event, "event")


def decode(line: str) -> Event:
    """Return the event that `encode` made this line from.

    Raises:
        EventLogError: For any other line, whatever it holds.

    >>> decode('{"event":"WorkerLost","at":1.5,"worker":"w1","reason":"killed","blames_unit":true,"running":null}')
    WorkerLost(at=1.5, worker='w1', reason='killed', blames_unit=True, running=None)
    """
    try:
        event: Event = from_json(line, "event", EVENTS, ignored=("n", "by"))
    except CodecError as error:
        raise EventLogError(f"{error}: the log is foreign, damaged, or from another version") from error
    return event


def to_json(value: Any, tag: str) -> str:
    """Return a dataclass as a JSON object on one line, with the name of its type under `tag`.

    Raises:
        ConfigurationError: If a field holds what JSON cannot.
    """
    text = _write({tag: type(value).__name__, **_fields(value)})
    # Half a character, as file names may have it, is no UTF-8; its escape is, and JSON reads it back.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def from_json(text: str | bytes, tag: str, kinds: Mapping[str, type], ignored: tuple[str, ...] = ()) -> Any:
    """Return the value that `to_json` made this text from.

    Args:
        text: A JSON object.
        tag: The key of the type's name.
        kinds: The types that are allowed, by name.
        ignored: Keys of the object that are no fields.

    Raises:
        CodecError: If the text is anything else: no JSON, another type, another field, a value of another type.
    """
    try:
        body = json.loads(text if isinstance(text, str) else text.decode())
        name = body.pop(tag)
        for key in ignored:
            body.pop(key, None)
        if name not in kinds:
            raise CodecError(f"{name!r:.80} is not a type that this version knows here")
        return reader_of(kinds[name])(body)
    except CodecError:
        raise
    except _UNREADABLE as error:
        said = f"{type(error).__name__}: {error}"
        raise CodecError(f"{text[:80]!r} is not a value that this version knows ({said})") from error


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(getattr(kind, "_fields", ()))


@cache
def _sparse_fields(kind: type) -> frozenset[str]:
    """Return the fields that are left out where they are empty, as most of them are: those with `()` as a default."""
    if dataclasses.is_dataclass(kind):
        defaults: Mapping[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}
    else:
        defaults = getattr(kind, "_field_defaults", {})
    return frozenset(name for name, default in defaults.items() if type(default) is tuple and not default)


def _fields(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    plain = {}
    sparse = _sparse_fields(kind)
    for name in _field_names(kind):
        item = getattr(value, name)
        if type(item) in _ATOMS:
            plain[name] = item
        elif name not in sparse or len(item):
            plain[name] = to_plain(item, name)
    return plain


def to_plain(value: Any, where: str) -> Any:
    """Return a value as JSON knows it; `where` names it if that cannot be.

    Raises:
        ConfigurationError: If it holds what JSON cannot.

    >>> to_plain({"units": (64, 32)}, "params")
    {'units': {'$tuple': [64, 32]}}
    """
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, (bool, int, str)):
        return value
    if _field_names(kind):
        return _fields(value)
    if isinstance(value, tuple):
        return {"$tuple": [to_plain(item, where) for item in value]}
    if isinstance(value, list):
        return [to_plain(item, where) for item in value]
    if kind is dict or isinstance(value, Mapping):
        return _plain_mapping(value, where)
    raise ConfigurationError(
        f"{where!r} holds a {kind.__name__}, which cannot be logged:"
        " use numbers, strings, booleans, None, and lists, tuples or dicts of them"
    )


def _plain_mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    plain = {}
    for key, item in value.items():
        if not isinstance(key, str) or key.startswith("$"):
            raise ConfigurationError(
                f"{key!r} in {where!r} cannot be logged: keys are strings that do not start with '$'"
            )
        plain[key] = item if type(item) in _ATOMS else to_plain(item, f"{where}.{key}")
    return plain


def from_plain(kind: Any, value: Any) -> Any:
    """Return plain JSON as a value of the type that an annotation says.

    Raises:
        CodecError: If it is none.
    """
    return reader_of(kind)(value)


@cache
def reader_of(kind: Any) -> Reader:
    """Return the function that turns plain JSON into values of this type."""
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return _record_reader(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = reader_of(next(one for one in arguments if one is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        # Found when it is needed: a type may hold a tuple of its own kind.
        return lambda value: tuple([reader_of(arguments[0])(item) for item in value["$tuple"]])
    if origin is Literal:
        return lambda value: value if value in arguments else _refuse(value, kind)
    if origin is not None and issubclass(origin, Mapping):
        return lambda value: _restore_mapping(value) if isinstance(value, dict) else _refuse(value, kind)
    if isinstance(kind, NewType) or kind is str:
        return lambda value: value if isinstance(value, str) else _refuse(value, kind)
    if kind is bool:
        return lambda value: value if isinstance(value, bool) else _refuse(value, kind)
    if kind is int:
        return lambda value: value if isinstance(value, (int, float)) else _refuse(value, kind)
    return _read_float if kind is float else _restore


def _record_reader(kind: type) -> Reader:
    # Most fields hold what their annotation says, as JSON has it: these need no call.
    known = {name: (_json_type(hint), reader_of(hint)) for name, hint in get_type_hints(kind).items()}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            _refuse(value, kind)
        fields = {}
        for name, item in value.items():
            if name not in known:
                raise CodecError(f"{kind.__name__} has no field {name!r} in this version")
            plain, reader = known[name]
            fields[name] = item if type(item) is plain else reader(item)
        return kind(**fields)

    return read


def _json_type(hint: Any) -> type | None:
    """The type of which JSON's own values need no change to be what an annotation says; None if there is none."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    if isinstance(hint, NewType):
        return str
    return hint if hint in (str, int, bool, float) else None


def _read_float(value: Any) -> float:
    number = float(value) if isinstance(value, int) else _restore(value)
    return number if isinstance(number, float) else _refuse(value, float)


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


def _restore_mapping(value: dict[str, Any]) -> Any:
    """The same as `_restore`. Most mappings hold numbers and strings alone, and are what they are."""
    if "$float" in value or "$tuple" in value:
        return _restore(value)
    for item in value.values():
        if type(item) is dict or type(item) is list:
            return _restore(value)
    return value


def _refuse(value: Any, kind: Any) -> Any:
    raise CodecError(f"{value!r:.80} is no {getattr(kind, '__name__', kind)}")
