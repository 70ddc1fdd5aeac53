"""Petastorm's Unischema without Petastorm: write and read the pickle it keeps beside a data set.

It never runs what a pickle asks for: only the names below are accepted, as stand-ins that do nothing."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.data.input.columns import Codec, Column
from cerebro_spark.errors import DataError

COMMON_METADATA = "_common_metadata"
"""The file beside the Parquet files that makes their folder a Petastorm data set."""
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"


class UnischemaField(NamedTuple):
    """Stands in for petastorm.unischema.UnischemaField, field for field."""

    name: str
    numpy_dtype: Any
    shape: tuple[int | None, ...]
    codec: Any = None
    nullable: bool = False


class Unischema:
    """Stands in for petastorm.unischema.Unischema: the same attributes, so that the same pickle comes out."""

    def __init__(self, name: str, fields: Iterable[UnischemaField]) -> None:
        self._name = name
        self._fields = OrderedDict((field.name, field) for field in fields)
        for field in self._fields.values():
            setattr(self, field.name, field)

    @property
    def fields(self) -> dict[str, UnischemaField]:
        return self._fields


class CompressedImageCodec:
    """Stands in for petastorm.codecs.CompressedImageCodec."""

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        self._image_codec = "." + image_codec
        self._quality = quality


class NdarrayCodec:
    """Stands in for petastorm.codecs.NdarrayCodec."""


class CompressedNdarrayCodec:
    """Stands in for petastorm.codecs.CompressedNdarrayCodec."""


class ScalarCodec:
    """Stands in for petastorm.codecs.ScalarCodec."""


class _Ignored:
    """Stands in for Spark's types, which say nothing that we need."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


_HOMES: dict[str, tuple[type, ...]] = {
    "petastorm.unischema": (Unischema, UnischemaField),
    "petastorm.codecs": (CompressedImageCodec, NdarrayCodec, CompressedNdarrayCodec, ScalarCodec),
}
_STAND_INS = {kind.__name__: kind for kinds in _HOMES.values() for kind in kinds}
_CODECS: dict[Codec, type] = {
    "image": CompressedImageCodec,
    "ndarray": NdarrayCodec,
    "compressed_ndarray": CompressedNdarrayCodec,
}


def dump_unischema(schema: Unischema) -> bytes:
    """Return the pickle that Petastorm itself would keep for this schema.

    >>> b"cpetastorm.unischema\\nUnischema" in dump_unischema(Unischema("data", []))
    True
    """
    data = pickle.dumps(schema, protocol=2)
    # Protocol 2 names a class as a line of text, without lengths or frames around it: another home fits there.
    for home, kinds in _HOMES.items():
        for kind in kinds:
            name = kind.__name__
            data = data.replace(f"c{__name__}\n{name}\n".encode(), f"c{home}\n{name}\n".encode())
    return data


def load_unischema(data: bytes) -> Unischema:
    """Read the schema in such a pickle; DataError if it holds anything else."""
    try:
        schema = _SchemaUnpickler(io.BytesIO(data)).load()
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the Petastorm schema beside the data cannot be read: {error}") from error
    if not isinstance(schema, Unischema):
        raise DataError(f"the Petastorm schema beside the data is a {type(schema).__name__}, not a Unischema")
    return schema


def make_field(column: Column) -> UnischemaField:
    """Return the field of a column in the files that `prepare` writes."""
    codec = _CODECS[column.codec]() if column.codec is not None else None
    return UnischemaField(column.stored_name, np.dtype(column.dtype).type, column.shape, codec)


def codec_of(field: UnischemaField) -> Codec | None:
    """Return how the cells of a field are encoded; None for plain values."""
    return next((codec for codec, kind in _CODECS.items() if isinstance(field.codec, kind)), None)


def _restore_field(_: str, __: Any, values: tuple[Any, ...]) -> UnischemaField:
    return UnischemaField(*values)


class _SchemaUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _STAND_INS and module.rpartition(".")[2] in ("unischema", "codecs", "sequence"):
            return _STAND_INS[name]
        if module == "pyspark.serializers" and name == "_restore":
            return _restore_field
        if module.startswith("pyspark.sql.types"):
            return _Ignored
        if (module, name) in _SAFE:
            return _SAFE[module, name]
        kind = getattr(np, name, None) if module == "numpy" else None
        if isinstance(kind, type) and issubclass(kind, np.generic):
            return kind
        raise DataError(
            f"the Petastorm schema beside the data asks for {module}.{name}, which no schema needs: refused"
        )


_SAFE: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "string_"): np.bytes_,
    ("numpy", "unicode_"): np.str_,
    ("decimal", "Decimal"): _Ignored,
    ("datetime", "date"): _Ignored,
    ("datetime", "datetime"): _Ignored,
    ("builtins", "object"): object,
    ("__builtin__", "object"): object,
    ("copy_reg", "_reconstructor"): lambda cls, base, state: object.__new__(cls),
    ("copyreg", "_reconstructor"): lambda cls, base, state: object.__new__(cls),
}
