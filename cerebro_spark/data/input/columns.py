"""The arrays of a batch and the types of columns: which can be trained on, and as what they are stored.

It never looks at a row, and knows nothing of the arguments that name columns."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from cerebro_spark.errors import DataError

Role = Literal["feature", "label", "weight"]
Codec = Literal["image", "ndarray", "compressed_ndarray"]

LONGEST_NAME = 200  # in bytes: with an ending it is the name of a file, which may have 255
_REMEDIES = {
    "string": "turn it into numbers first, for example with StringIndexer or pandas.factorize",
    "timestamp": "turn it into numbers first, for example with unix_timestamp or .astype('int64')",
    "date": "turn it into numbers first, for example days since a fixed date",
    "time": "turn it into numbers first, for example seconds since midnight",
    "duration": "turn it into numbers first, for example seconds",
    "interval": "turn it into numbers first, for example seconds",
    "decimal": "cast it to double",
    "map": "select the keys you need as columns of their own",
    "struct": "select the fields you need as columns of their own",
    "dictionary": "use the category codes (.cat.codes) instead, or, of categories that are numbers, .astype(float)",
    "null": "it holds no values at all: drop it or fill it",
}


@dataclass(frozen=True, slots=True)
class SourceType:
    """What a source column holds in each row."""

    dtype: str
    shape: tuple[int, ...] = ()
    codec: Codec | None = None

    @property
    def is_flat(self) -> bool:
        """Whether it is one number a row, or a list of numbers, not encoded."""
        return self.codec is None and len(self.shape) <= 1

    def __str__(self) -> str:
        return f"{self.codec or 'arrays'} of shape {self.shape}"


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
            "shape": self.shape,
            "sources": self.sources,
            "codec": self.codec,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Column:
        shape, sources = tuple(value["shape"]), tuple(value["sources"])
        return Column(value["name"], value["role"], value["dtype"], shape, sources, value["codec"])


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
        and len(name.encode()) <= LONGEST_NAME
    )


def check_type(name: str, kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the element type of a column, None for encoded bytes; DataError if it cannot be trained on.

    >>> check_type("x", pa.list_(pa.float64()))
    dtype('float64')
    """
    element, depth = unnest_type(kind)
    if is_numeric(element):
        return np.dtype(element.to_pandas_dtype())
    if not depth and (pa.types.is_binary(element) or pa.types.is_large_binary(element)):
        return None
    text = str(element).replace("large_", "")
    remedy = next((fix for prefix, fix in _REMEDIES.items() if text.startswith(prefix)), "convert it to numbers first")
    raise DataError(f"column {name!r} is of type {kind} in all its rows, which cannot be trained on: {remedy}")


def unnest_type(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """Return the type of the elements of nested lists, and how deep they are nested: 0 if this is no list.

    >>> unnest_type(pa.list_(pa.int32()))
    (DataType(int32), 1)
    """
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return kind, depth


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether values of this type are numbers or booleans."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def stored_dtype(dtype: np.dtype[Any]) -> str:
    """Return the type that a type is stored as: floats become float32, integers and booleans stay.

    >>> stored_dtype(np.dtype("float64")), stored_dtype(np.dtype("int16"))
    ('float32', 'int16')
    """
    return "float32" if dtype.kind == "f" else dtype.name
