"""Which columns become which inputs, outputs and weights, and of what type. It never looks at a row."""

from __future__ import annotations

import difflib
import keyword
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from cerebro_spark.errors import ConfigurationError, DataError

Role = Literal["feature", "label", "weight"]
Codec = Literal["image", "ndarray", "compressed_ndarray"]
ColumnNames = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_LONGEST_NAME = 200  # with an ending it is the name of a file, which may have 255
_REMEDIES: tuple[tuple[str, str], ...] = (
    ("string", "turn it into numbers first, for example with StringIndexer or pandas.factorize"),
    ("timestamp", "turn it into numbers first, for example with unix_timestamp or .astype('int64')"),
    ("date", "turn it into numbers first, for example days since a fixed date"),
    ("time", "turn it into numbers first, for example seconds since midnight"),
    ("duration", "turn it into numbers first, for example seconds"),
    ("interval", "turn it into numbers first, for example seconds"),
    ("decimal", "cast it to double"),
    ("map", "select the keys you need as columns of their own"),
    ("struct", "select the fields you need as columns of their own"),
    ("dictionary", "use the category codes (.cat.codes) instead"),
    ("null", "it holds no values at all: drop it or fill it"),
)


@dataclass(frozen=True, slots=True)
class Input:
    """One array of the batches as it was asked for: the source columns it is made of.

    With `matrix` they stand side by side as float32; without, the one source keeps its own type and shape.
    """

    name: str
    role: Role
    sources: tuple[str, ...]
    matrix: bool


@dataclass(frozen=True, slots=True)
class SourceType:
    """What a source column holds in each row."""

    dtype: str
    shape: tuple[int, ...] = ()
    codec: Codec | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One array of the batches: its type and the shape of one row of it.

    `sources` are the columns of the Parquet files it is read from: one of its own in data that `prepare` wrote.

    >>> Column("features", "feature", "float32", (64,), ("features",)).row_bytes
    256
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    codec: Codec | None = None

    @property
    def stored_name(self) -> str:
        """Its name in the files that `prepare` writes."""
        return self.sources[0] if len(self.sources) == 1 else self.name

    @property
    def row_bytes(self) -> int:
        """Bytes of one row once loaded."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "sources": list(self.sources),
            "codec": self.codec,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Column:
        return Column(
            name=value["name"],
            role=value["role"],
            dtype=value["dtype"],
            shape=tuple(value["shape"]),
            sources=tuple(value["sources"]),
            codec=value["codec"],
        )


def parse_inputs(features: ColumnNames, label: ColumnNames, weight: str | None = None) -> tuple[Input, ...]:
    """Turn the `features`, `label` and `weight` arguments into Inputs.

    A list of columns is one float matrix, a single name is that column as it is, a dict names several of either.

    >>> [(i.name, i.sources, i.matrix) for i in parse_inputs(["a", "b"], "y")]
    [('features', ('a', 'b'), True), ('label', ('y',), False)]
    """
    inputs = [*_parse_role("features", "feature", features), *_parse_role("label", "label", label)]
    if weight is not None:
        inputs += _parse_role("weight", "weight", _one_name("weight", weight))
    names = [given.name for given in inputs]
    taken = sorted({name for name in names if names.count(name) > 1})
    if taken:
        raise ConfigurationError(
            f"the name {taken[0]!r} stands for two arrays of a batch: give features and label different names,"
            " for example features={'x': ...}"
        )
    _check_label_apart(inputs)
    return tuple(inputs)


def _check_label_apart(inputs: Sequence[Input]) -> None:
    """Refuse a label within a larger matrix of features; label and features of the same columns are an autoencoder."""
    for label in (given for given in inputs if given.role == "label"):
        for features in (given for given in inputs if given.role == "feature" and given.matrix):
            if set(label.sources) < set(features.sources):
                raise ConfigurationError(
                    f"column {label.sources[0]!r} is the label and one of the features {list(features.sources)}: leave"
                    " it out of `features`, or a model need only copy it"
                )


def is_array_name(name: object) -> bool:
    """Return whether this can name an array of a batch: a plain identifier, which is also a good name of a file.

    >>> is_array_name("x1"), is_array_name("../x1")
    (True, False)
    """
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not name.startswith("_")
        and not keyword.iskeyword(name)
        and len(name.encode()) <= _LONGEST_NAME
    )


def source_names(inputs: Iterable[Input]) -> tuple[str, ...]:
    """Return every source column once, in the order of first use."""
    return tuple(dict.fromkeys(source for given in inputs for source in given.sources))


def check_present(
    inputs: Iterable[Input], available: Sequence[str], extra: Iterable[str] = (), *, any_case: bool = False
) -> None:
    """Raise ConfigurationError if a source column, or one of `extra`, is missing or there more than once.

    With `any_case`, names that differ in capital letters only are one name, as they are for Spark.
    """
    wanted = (*source_names(inputs), *extra)
    missing = [name for name in wanted if name not in available]
    if missing:
        shown = ", ".join(map(repr, list(available)[:20])) + (", ..." if len(available) > 20 else "")
        near = difflib.get_close_matches(missing[0], list(available), n=1)
        hint = f"did you mean {near[0]!r}? It has {shown}" if near else f"it has {shown}"
        raise ConfigurationError(f"the data has no column {missing[0]!r}: {hint}")
    counts = Counter(name.lower() if any_case else name for name in available)
    for name in wanted:
        count = counts[name.lower() if any_case else name]
        if count > 1:
            raise ConfigurationError(f"the data has {count} columns {name!r}: rename all but one of them")


def check_type(name: str, kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the element type of a column, None for encoded bytes; DataError if it cannot be trained on.

    >>> check_type("x", pa.list_(pa.float64()))
    dtype('float64')
    """
    leaf = kind
    while pa.types.is_list(leaf) or pa.types.is_large_list(leaf) or pa.types.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    if pa.types.is_boolean(leaf) or pa.types.is_integer(leaf) or pa.types.is_floating(leaf):
        return np.dtype(leaf.to_pandas_dtype())
    if leaf is kind and (pa.types.is_binary(leaf) or pa.types.is_large_binary(leaf)):
        return None
    raise DataError(f"column {name!r} is of type {kind} in all its rows, which cannot be trained on: {_remedy(leaf)}")


def stored_dtype(dtype: np.dtype[Any]) -> str:
    """Return the type that a type is stored as: floats become float32, integers and booleans stay.

    >>> stored_dtype(np.dtype("float64")), stored_dtype(np.dtype("int16"))
    ('float32', 'int16')
    """
    return "float32" if dtype.kind == "f" else dtype.name


def resolve_columns(inputs: Iterable[Input], types: Mapping[str, SourceType]) -> tuple[Column, ...]:
    """Return the Column of each Input, with the type and shape that its sources have."""
    return tuple(_resolve(given, [types[source] for source in given.sources]) for given in inputs)


def stored_columns(inputs: Sequence[Input], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns with the names they have in files: the user's own name if an array is one source column.

    A matrix of several columns has the name of the array. So has a column whose own name Petastorm cannot read, or
    that is taken.

    >>> given = parse_inputs({"x": ["a", "b"], "day": "weekday"}, "y")
    >>> made = [Column(i.name, i.role, "float32") for i in given]
    >>> [column.stored_name for column in stored_columns(given, made)]
    ['x', 'weekday', 'y']
    """
    wanted = [given.sources[0] if _has_own_name(given) else given.name for given in inputs]
    counts = Counter(name.lower() for name in (*wanted, *(given.name for given in inputs)))
    names = [
        name if name == given.name or counts[name.lower()] == 1 else given.name
        for name, given in zip(wanted, inputs, strict=True)
    ]
    return tuple(replace(column, sources=(name,)) for column, name in zip(columns, names, strict=True))


def _has_own_name(given: Input) -> bool:
    return len(given.sources) == 1 and is_array_name(given.sources[0])


def _resolve(given: Input, types: Sequence[SourceType]) -> Column:
    for source, kind in zip(given.sources, types, strict=True):
        if 0 in kind.shape:
            raise DataError(f"column {source!r} holds arrays of shape {kind.shape} in all its rows, without any value")
    first = types[0]
    if given.role == "weight" and (first.codec is not None or first.shape):
        raise DataError(
            f"column {given.sources[0]!r} is a weight and holds {first.codec or 'arrays'} of shape {first.shape} in all"
            " its rows, but a weight is one number a row: use a plain column of numbers"
        )
    whole = len(types) == 1 and (first.codec is not None or len(first.shape) > 1)
    if whole or not given.matrix:
        dtype = stored_dtype(np.dtype(first.dtype))
        return Column(given.name, given.role, dtype, first.shape, given.sources, first.codec)
    width = 0
    for source, kind in zip(given.sources, types, strict=True):
        if kind.codec is not None or len(kind.shape) > 1:
            raise DataError(
                f"column {source!r} holds {kind.codec or 'arrays'} of shape {kind.shape} in all its rows and cannot"
                f" stand beside other columns in the matrix {given.name!r}: make it an input of its own, as in"
                f" features={{'{given.name}': [...], 'image': {source!r}}}"
            )
        width += kind.shape[0] if kind.shape else 1
    return Column(given.name, given.role, "float32", (width,), given.sources)


def _parse_role(argument: str, role: Role, given: ColumnNames) -> list[Input]:
    if isinstance(given, Mapping):
        if not given:
            raise ConfigurationError(f"{argument} is an empty dict: name at least one column")
        return [_parse_input(argument, role, name, columns) for name, columns in given.items()]
    return [_parse_input(argument, role, argument, given)]


def _parse_input(argument: str, role: Role, name: str, columns: str | Sequence[str]) -> Input:
    if not is_array_name(name):
        raise ConfigurationError(
            f"{argument} has the key {name!r}, but an array of a batch needs a plain identifier such as 'x1', of at"
            f" most {_LONGEST_NAME} bytes"
        )
    if isinstance(columns, str):
        return Input(name, role, (_one_name(argument, columns),), matrix=False)
    if isinstance(columns, bytes | Mapping) or not isinstance(columns, Iterable):
        place = f" for {name!r}" if name != argument else ""
        raise ConfigurationError(
            f"{argument} is {columns!r}{place}, but must be the name of a column, a list of names, or a dict of either"
        )
    sources = tuple(_one_name(argument, column) for column in columns)
    if not sources:
        raise ConfigurationError(f"{argument} names no column for {name!r}: name at least one")
    twice = sorted({source for source in sources if sources.count(source) > 1})
    if twice:
        raise ConfigurationError(f"{argument} names the column {twice[0]!r} twice: name it once")
    return Input(name, role, sources, matrix=True)


def _one_name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{argument} has {value!r} where the name of a column is expected")
    return value


def _remedy(kind: pa.DataType) -> str:
    text = str(kind).replace("large_", "")
    return next((remedy for prefix, remedy in _REMEDIES if text.startswith(prefix)), "convert it to numbers first")
