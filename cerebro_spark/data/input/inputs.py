"""The arguments `features`, `label` and `weight`: which source columns become which arrays. It never looks at a row."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cerebro_spark.data.input.columns import LONGEST_NAME, Column, Role, SourceType, is_array_name, stored_dtype
from cerebro_spark.errors import ConfigurationError, DataError

ColumnNames = str | Sequence[str] | Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Input:
    """One array of the batches as it was asked for: the source columns it is made of.

    With `matrix` they stand side by side as float32; without, the one source keeps its own type and shape.
    """

    name: str
    role: Role
    sources: tuple[str, ...]
    matrix: bool


def parse_inputs(features: ColumnNames, label: ColumnNames, weight: str | None = None) -> tuple[Input, ...]:
    """Turn the `features`, `label` and `weight` arguments into Inputs.

    A list of columns is one float matrix, a single name is that column as it is, a dict names several of either.

    >>> [(i.name, i.sources, i.matrix) for i in parse_inputs(["a", "b"], "y")]
    [('features', ('a', 'b'), True), ('label', ('y',), False)]
    """
    inputs = [*parse_role("features", "feature", features), *parse_role("label", "label", label)]
    if weight is not None:
        inputs += parse_role("weight", "weight", _check_name("weight", weight))
    taken = find_repeated(given.name for given in inputs)
    if taken is not None:
        raise ConfigurationError(
            f"the name {taken!r} stands for two arrays of a batch: give features and label different names,"
            " for example features={'x': ...}"
        )
    _check_label_apart(inputs)
    return tuple(inputs)


def find_repeated(names: Iterable[str]) -> str | None:
    """Return the first of these names that is there more than once; None if there is none.

    >>> find_repeated(["a", "b", "c", "b"])
    'b'
    """
    return next((name for name, count in Counter(names).items() if count > 1), None)


def list_sources(arrays: Iterable[Input | Column]) -> list[str]:
    """Return every source column once, in the order of first use."""
    return list(dict.fromkeys(source for array in arrays for source in array.sources))


def name_sources(inputs: Iterable[Input]) -> dict[str, list[str]]:
    """Return the source columns of each array by its name, as manifests have them."""
    return {given.name: list(given.sources) for given in inputs}


def check_present(wanted: Iterable[str], available: Sequence[str], *, any_case: bool = False) -> None:
    """Raise ConfigurationError if a wanted column is missing or there more than once.

    With `any_case`, names that differ in capital letters only are one name, as they are for Spark.
    """
    wanted = list(wanted)
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


def resolve_columns(inputs: Iterable[Input], types: Mapping[str, SourceType]) -> tuple[Column, ...]:
    """Return the Column of each Input, with the type and shape that its sources have."""
    return tuple(_resolve(given, {source: types[source] for source in given.sources}) for given in inputs)


def stored_columns(inputs: Sequence[Input], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns with the names they have in files: the user's own name if an array is one source column.

    A matrix of several columns has the name of the array. So has a column whose own name Petastorm cannot read, or
    that is taken.

    >>> given = parse_inputs({"x": ["a", "b"], "day": "weekday"}, "y")
    >>> made = [Column(i.name, i.role, "float32") for i in given]
    >>> [column.stored_name for column in stored_columns(given, made)]
    ['x', 'weekday', 'y']
    """
    own = [given.sources[0] if len(given.sources) == 1 else given.name for given in inputs]
    wanted = [name if is_array_name(name) else given.name for name, given in zip(own, inputs, strict=True)]
    counts = Counter(name.lower() for name in (*wanted, *(given.name for given in inputs)))
    return tuple(
        replace(column, sources=(name if counts[name.lower()] == 1 else given.name,))
        for column, name, given in zip(columns, wanted, inputs, strict=True)
    )


def parse_role(argument: str, role: Role, given: ColumnNames) -> list[Input]:
    """Turn one of the arguments of `parse_inputs` into Inputs; errors name the argument."""
    if not isinstance(given, Mapping):
        return [_parse_input(argument, role, argument, given)]
    if not given:
        raise ConfigurationError(f"{argument} is an empty dict: name at least one column")
    return [_parse_input(argument, role, name, columns) for name, columns in given.items()]


def _parse_input(argument: str, role: Role, name: str, columns: str | Sequence[str]) -> Input:
    if not is_array_name(name):
        raise ConfigurationError(
            f"{argument} has the key {name!r}, but an array of a batch needs a plain identifier such as 'x1', of at"
            f" most {LONGEST_NAME} bytes"
        )
    if isinstance(columns, str):
        return Input(name, role, (_check_name(argument, columns),), matrix=False)
    if isinstance(columns, bytes | Mapping) or not isinstance(columns, Iterable):
        place = f" for {name!r}" if name != argument else ""
        raise ConfigurationError(
            f"{argument} is {columns!r}{place}, but must be the name of a column, a list of names, or a dict of either"
        )
    sources = tuple(_check_name(argument, column) for column in columns)
    if not sources:
        raise ConfigurationError(f"{argument} names no column for {name!r}: name at least one")
    twice = find_repeated(sources)
    if twice is not None:
        raise ConfigurationError(f"{argument} names the column {twice!r} twice: name it once")
    return Input(name, role, sources, matrix=True)


def _check_name(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        rename = ": rename columns to strings, as by df.columns = df.columns.astype(str)" if value != "" else ""
        raise ConfigurationError(f"{argument} has {value!r} where the name of a column is expected{rename}")
    return value


def _check_label_apart(inputs: Sequence[Input]) -> None:
    """Refuse a label within a larger matrix of features; label and features of the same columns are an autoencoder."""
    for label in (given for given in inputs if given.role == "label"):
        for features in (given for given in inputs if given.role == "feature" and given.matrix):
            if set(label.sources) < set(features.sources):
                raise ConfigurationError(
                    f"column {label.sources[0]!r} is the label and one of the features {list(features.sources)}: leave"
                    " it out of `features`, or a model need only copy it"
                )


def _resolve(given: Input, types: Mapping[str, SourceType]) -> Column:
    for source, kind in types.items():
        if 0 in kind.shape:
            raise DataError(f"column {source!r} holds arrays of shape {kind.shape} in all its rows, without any value")
    first = types[given.sources[0]]
    if given.role == "weight" and (first.codec is not None or first.shape):
        raise DataError(
            f"column {given.sources[0]!r} is a weight and holds {first} in all its rows, but a weight is one number a"
            " row: use a plain column of numbers"
        )
    if not given.matrix or (len(types) == 1 and not first.is_flat):
        dtype = stored_dtype(np.dtype(first.dtype))
        return Column(given.name, given.role, dtype, first.shape, given.sources, first.codec)
    for source, kind in types.items():
        if not kind.is_flat:
            raise DataError(
                f"column {source!r} holds {kind} in all its rows and cannot stand beside other columns in the matrix"
                f" {given.name!r}: make it an input of its own, as in features={{'{given.name}': [...], 'image':"
                f" {source!r}}}"
            )
    width = sum(kind.shape[0] if kind.shape else 1 for kind in types.values())
    return Column(given.name, given.role, "float32", (width,), given.sources)
