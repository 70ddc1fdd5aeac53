"""Scores and measures Spark DataFrames on their executors. The rows never come to the driver; the model goes to them.

Predictions are a pandas UDF over the source columns alone: all other columns stay in the JVM, whatever their type.
Arrow's nulls become NaN in pandas, so each row also has a number that says which of its columns is null.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from cerebro_spark import pickling
from cerebro_spark.data.input.columns import Column, check_type
from cerebro_spark.data.input.spark import SparkFrame, plain_column
from cerebro_spark.errors import CerebroError, DataError
from cerebro_spark.result.blueprint import Blueprint, Scorer, predict_chunks
from cerebro_spark.result.decoding import OutputDecoder, decode_outputs, to_cells
from cerebro_spark.result.frames import OutputNames, check_columns, name_columns
from cerebro_spark.result.rows import chunk_size, list_sources, read_rows
from cerebro_spark.types import Metrics
from cerebro_spark.user_modules import import_sent_modules_first

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Numbers that hardly occur in data. `array_contains` returns null if it does not find one in an array with a null.
_RARE = {"float": -1.1013e-41, "double": -1.1013e-41, "tinyint": -128, "smallint": -(2**15), "int": -(2**31)}
_RARE["bigint"] = -(2**63)
_SQL_TYPES = {"float32": "float", "float64": "double", "bool": "boolean"}
_CARRIES = "carries"

_scorers: dict[str, Scorer] = {}
_MOST_SCORERS = 4


class BroadcastModel:
    """A model that is broadcast once to all executors, and unpickled once in each of their processes."""

    def __init__(self, blueprint: Blueprint, context: Any) -> None:
        data = pickling.dumps(blueprint)
        self._digest = hashlib.sha256(data).hexdigest()
        self._data = context.broadcast(data)
        self._threads = int(context.getConf().get("spark.task.cpus", "1"))

    def scorer(self) -> Scorer:
        """Return the scorer in this process, built on first use."""
        if self._digest not in _scorers:
            import_sent_modules_first()
            while len(_scorers) >= _MOST_SCORERS:
                _scorers.pop(next(iter(_scorers)))
            _scorers[self._digest] = Scorer(pickle.loads(self._data.value), self._threads)
        return _scorers[self._digest]


def score(
    model: BroadcastModel, scorer: Scorer, df: DataFrame, names: OutputNames, kind: str | None = None
) -> DataFrame:
    """Return `df` with predictions in new columns, computed when it is used. `scorer` is the driver's own."""
    features = scorer.blueprint.features
    frame = _check_frame(df, features)
    frame.make_room()  # what uses the columns is a job of the user's, which is not asked later
    outputs = scorer.sample_outputs()
    decoder = scorer.choose_decoder(outputs, kind)
    found = decode_outputs(decoder, outputs)
    columns = name_columns(found, len(outputs), names, df.columns, _any_case(df))
    if not columns:
        return df
    udf = _prediction_udf(model, features, decoder, {name: _sql_type(found[name]) for name in columns})
    made = udf(_first_null(df, frame.names), *(plain_column(df, name) for name in frame.names))
    return _with_columns(df, made, columns, vectors=decoder is not None)


def _check_frame(df: DataFrame, columns: Sequence[Column]) -> SparkFrame:
    """Return the sources of these columns. Raises an error if one is missing, or has a type that cannot be used."""
    check_columns(columns, df.columns, _any_case(df))
    frame = SparkFrame(df, list_sources(columns))
    for name, kind in frame.types().items():
        check_type(name, kind)
    return frame


def _with_columns(df: DataFrame, made: Any, columns: Mapping[str, str], vectors: bool) -> DataFrame:
    """Add the columns of the UDF; probabilities and raw scores become vectors of Spark ML."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions

    def typed(name: str, part: Any) -> Any:
        return array_to_vector(part) if vectors and name != "prediction" else part

    if len(columns) == 1:
        ((name, column),) = columns.items()
        return df.select("*", typed(name, made).alias(column))
    both = _free_name(df)
    parts = [typed(name, functions.col(both)[f"o{i}"]).alias(columns[name]) for i, name in enumerate(columns)]
    return df.select("*", made.alias(both)).select("*", *parts).drop(both)


def measure(model: BroadcastModel, scorer: Scorer, df: DataFrame, series: bool) -> Metrics:
    """Return the metrics over all rows of `df`, still to be finished by a trainer.

    With `series`, one partition after the other, for metrics that cannot be merged; else all at once.
    """
    columns = scorer.blueprint.sources
    frame = _check_frame(df, columns)
    parts = [] if series else frame.map_splits(partial(_measure_split, model, columns, False))
    if series or _CARRIES in parts:
        frame = SparkFrame(df.coalesce(1), frame.names)
        parts = frame.map_splits(partial(_measure_split, model, columns, True))
    measured = [part for part in parts if isinstance(part, Metrics)]
    if not measured:
        raise DataError("the DataFrame has no rows, so there is nothing to measure: check its filters")
    return Metrics.merge(measured)


def _measure_split(
    model: BroadcastModel, columns: Sequence[Column], alone: bool, number: int, batches: Iterable[Mapping[str, Any]]
) -> Metrics | str | CerebroError | None:
    """Return the metrics of a split; None if it has no rows, _CARRIES if they cannot be merged with those of others."""
    del number
    parts: list[Metrics] = []
    chunks = (read_rows(columns, cells) for cells in batches if len(next(iter(cells.values()))))
    try:
        for first in chunks:  # no model is built for an empty split
            for part in model.scorer().measure(chain([first], chunks)):
                if part.carried and not alone:
                    # Spark ends a process that leaves rows unread, and its model would be lost.
                    deque(batches, maxlen=0)
                    return _CARRIES
                parts = [Metrics.merge([*parts, part])]
    except CerebroError as error:
        # A new attempt would fail in the same way. The driver raises an error that is returned.
        return error
    return parts[0] if parts else None


def _prediction_udf(
    model: BroadcastModel, features: Sequence[Column], decoder: OutputDecoder | None, types: Mapping[str, str]
) -> Any:
    """Return a UDF that makes the decoded outputs of these names and SQL types: a struct if they are several."""
    from pyspark.sql.pandas.functions import pandas_udf

    several = len(types) > 1
    fields = ", ".join(f"o{i}: {kind}" for i, kind in enumerate(types.values()))

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        for null, *cells in batches:
            found = decode_outputs(decoder, _predict(model, features, null.to_numpy(), cells))
            made = [to_cells(found[name]) for name in types]
            yield pd.DataFrame({f"o{i}": each for i, each in enumerate(made)}) if several else pd.Series(made[0])

    # As types, not as text: Spark chooses the kind of UDF by the annotations.
    answer: Any = Iterator[pd.DataFrame] if several else Iterator[pd.Series]
    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": answer}
    udf: Any = pandas_udf
    return udf(predict, f"struct<{fields}>" if several else next(iter(types.values())))


def _predict(
    model: BroadcastModel, features: Sequence[Column], null: NDArray[Any], cells: Sequence[pd.Series]
) -> dict[str, NDArray[Any]]:
    sources = list_sources(features)
    if (null >= 0).any():
        number, rows = int(null[null >= 0][0]), int((null == null[null >= 0][0]).sum())
        raise DataError(
            f"column {sources[number]!r} has {rows} null rows among {len(null)}: fill them (fillna) or drop them"
            " (dropna) before transform"
        )
    step = chunk_size(features)
    chunks = (
        {name: _to_array(name, series.iloc[start : start + step]) for name, series in zip(sources, cells, strict=True)}
        for start in range(0, max(1, len(null)), step)
    )
    return predict_chunks(model.scorer(), (read_rows(features, chunk) for chunk in chunks))


def _to_array(name: str, series: pd.Series) -> Any:
    """Return the cells of a column, as they came through Arrow, as one array."""
    values = series.to_numpy()
    if values.dtype != object or not len(values):
        return values
    if isinstance(values[0], bytes):
        return pa.array(values, pa.binary())
    try:
        return _stack(values)
    except ValueError as error:
        shapes = sorted({np.shape(value) for value in values})[:5]
        raise DataError(
            f"column {name!r} is ragged: its rows have shapes {shapes}; pad or crop them to one shape"
        ) from error


def _stack(values: NDArray[Any]) -> NDArray[Any]:
    """Return arrays of one shape as one array, nested arrays too."""
    if values[0].dtype == object:
        return np.stack([_stack(value) for value in values])
    return np.concatenate(values).reshape(len(values), -1) if _has_one_length(values) else np.stack(list(values))


def _has_one_length(values: NDArray[Any]) -> bool:
    width = len(values[0])
    return values[0].ndim == 1 and all(len(value) == width for value in values)


def _first_null(df: DataFrame, sources: Sequence[str]) -> Any:
    """Return the number of the first source that is null in a row; -1 if none is."""
    from pyspark.sql import functions

    found: Any = functions
    for number, name in enumerate(sources):
        condition = _is_null(df, name)
        if condition is not None:
            found = found.when(condition, number)
    return (functions.lit(-1) if found is functions else found.otherwise(-1)).cast("int")


def _is_null(df: DataFrame, name: str) -> Any:
    """Return whether a cell, or an element of it, is null; None if the schema rules that out."""
    from pyspark.sql import functions

    field = df.schema[name]
    conditions = [_by_name(name).isNull()] if field.nullable else []
    column = _by_name(name)
    kind: Any = field.dataType
    deep = False
    while kind.typeName() == "array" and kind.elementType.typeName() == "array":
        column, deep, kind = functions.flatten(column), deep or kind.containsNull, kind.elementType
    if kind.typeName() == "array" and (kind.containsNull or deep):
        element = kind.elementType.simpleString()
        if element in _RARE:
            # Spark compiles it; `exists` is not compiled, and would cost more than the model.
            sought = functions.lit(_RARE[element]).cast(kind.elementType)
            conditions.append(functions.array_contains(column, sought).isNull())
        else:
            conditions.append(functions.exists(column, lambda value: value.isNull()))
    return reduce(or_, conditions) if conditions else None


def _by_name(name: str) -> Any:
    from pyspark.sql import functions

    return functions.col("`" + name.replace("`", "``") + "`")


def _free_name(df: DataFrame) -> str:
    name = "outputs"
    while any(name == taken.lower() for taken in df.columns):
        name += "_"
    return name


def _any_case(df: DataFrame) -> bool:
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"


def _sql_type(output: NDArray[Any]) -> str:
    kind = _SQL_TYPES.get(output.dtype.name, "bigint")
    for _ in output.shape[1:]:
        kind = f"array<{kind}>"
    return kind
