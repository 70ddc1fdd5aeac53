"""Scores and measures Spark DataFrames on their executors. The rows never come to the driver; the model goes to them.

Predictions are a pandas UDF over the source columns alone: all other columns stay in the JVM, whatever their type.
Arrow's nulls become NaN in pandas, so each row also has a number that says which of its columns is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from cerebro_spark import errors
from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.data.input.columns import Column, check_type
from cerebro_spark.data.input.spark import SparkFrame, plain_column
from cerebro_spark.errors import CerebroError, DataError
from cerebro_spark.result.blueprint import PackedBlueprint, Scorer, get_scorer
from cerebro_spark.result.decoding import OutputDecoder, decode_outputs
from cerebro_spark.result.frames import OutputNames, check_columns, name_columns
from cerebro_spark.result.rows import chunk_size, list_sources, read_rows
from cerebro_spark.types import Metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Numbers that hardly occur in data. `array_contains` returns null if it does not find one in an array with a null.
_RARE = {"float": -1.1013e-41, "double": -1.1013e-41, "tinyint": -128, "smallint": -(2**15), "int": -(2**31)}
_RARE["bigint"] = -(2**63)
_SQL_TYPES = {"float32": "float", "float64": "double", "bool": "boolean"}


class _Wanted(NamedTuple):
    """The decoder of the outputs, and the SQL types of those decoded outputs that become columns."""

    decoder: OutputDecoder | None
    types: Mapping[str, str]


class BroadcastModel:
    """A model that is broadcast once to all executors, and unpickled once in each of their processes."""

    def __init__(self, packed: PackedBlueprint, context: Any) -> None:
        self._digest = packed.digest
        self._data = context.broadcast(packed.data)
        self._threads = int(context.getConf().get("spark.task.cpus", "1"))

    def scorer(self) -> Scorer:
        """Return the scorer in this process."""
        return get_scorer(self._digest, lambda: PackedBlueprint(self._digest, self._data.value), self._threads)


def score(
    model: BroadcastModel, scorer: Scorer, df: DataFrame, names: OutputNames, kind: str | None = None
) -> DataFrame:
    """Return `df` with predictions in new columns, computed when it is used. `scorer` is the driver's own."""
    features = scorer.blueprint.features
    any_case = _any_case(df)
    check_columns(features, df.columns, any_case)
    outputs = scorer.sample_outputs()
    decoder = scorer.choose_decoder(outputs, kind)
    found = decode_outputs(decoder, outputs)
    columns = name_columns(found, len(outputs), names, df.columns, any_case)
    if not columns:
        return df
    sources = list_sources(features)
    for name, kind in SparkFrame(df, sources).types().items():
        check_type(name, kind)
    inputs = [plain_column(df, name) for name in sources]
    wanted = _Wanted(decoder, {name: _sql_type(found[name]) for name in columns})
    made = _prediction_udf(model, features, sources, wanted)(_first_null(df, sources), *inputs)
    return _with_columns(df, made, columns, vectors=decoder is not None)


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
    columns = list(scorer.blueprint.sources)
    check_columns(columns, df.columns, _any_case(df))
    frame = SparkFrame(df, list_sources(columns))
    for name, kind in frame.types().items():
        check_type(name, kind)
    with frame.small_batches():
        parts = None if series else _measure(model, columns, frame.selected, frame.names, alone=False)
        if parts is None:
            parts = _measure(model, columns, frame.selected.coalesce(1), frame.names, alone=True)
    if not parts:
        raise DataError("the DataFrame has no rows, so there is nothing to measure: check its filters")
    return Metrics.merge(parts)


def _measure(
    model: BroadcastModel, columns: Sequence[Column], df: DataFrame, names: Sequence[str], alone: bool
) -> list[Metrics] | None:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            answer = _measure_batches(model, columns, names, batches, alone)
        except CerebroError as error:
            # A new attempt would fail in the same way: report the error as it is, not as a failed task.
            answer = {"error": type(error).__name__, "message": str(error)}
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})

    answers = [json.loads(row.answer) for row in df.mapInArrow(run, "answer string").collect()]
    for answer in answers:
        if "error" in answer:
            kind: type[CerebroError] = getattr(errors, answer["error"], CerebroError)
            raise kind(answer["message"])
    if any("carries" in answer for answer in answers):
        return None
    return [from_plain(Metrics, answer["metrics"]) for answer in answers if answer["metrics"] is not None]


def _measure_batches(
    model: BroadcastModel,
    columns: Sequence[Column],
    names: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    alone: bool,
) -> dict[str, Any]:
    parts: list[Metrics] = []
    chunks = (read_rows(columns, dict(zip(names, batch.columns, strict=True))) for batch in batches if batch.num_rows)
    for part in _measure_chunks(model, chunks):
        if part.carried and not alone:
            # Spark ends a process that leaves rows unread, and its model would be lost.
            for _ in batches:
                pass
            return {"carries": True}
        parts = [Metrics.merge([*parts, part])]
    return {"metrics": to_plain(parts[0], "metrics") if parts else None}


def _measure_chunks(model: BroadcastModel, chunks: Iterator[Any]) -> Iterator[Metrics]:
    """Measure the chunks, but build no model for an empty partition."""
    for first in chunks:
        yield from model.scorer().measure(_chain(first, chunks))


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _prediction_udf(model: BroadcastModel, features: Sequence[Column], sources: Sequence[str], wanted: _Wanted) -> Any:
    from pyspark.sql.pandas.functions import pandas_udf

    types = list(wanted.types.values())
    several = len(types) > 1
    returns = f"struct<{', '.join(f'o{i}: {kind}' for i, kind in enumerate(types))}>" if several else types[0]

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        for null, *cells in batches:
            outputs = _predict(model, features, sources, null.to_numpy(), cells)
            found = decode_outputs(wanted.decoder, outputs)
            made = [found[name] if found[name].ndim == 1 else list(found[name]) for name in wanted.types]
            yield pd.DataFrame({f"o{i}": each for i, each in enumerate(made)}) if several else pd.Series(made[0])

    # As types, not as text: Spark chooses the kind of UDF by the annotations.
    answer: Any = Iterator[pd.DataFrame] if several else Iterator[pd.Series]
    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": answer}
    udf: Any = pandas_udf
    return udf(predict, returns)


def _predict(
    model: BroadcastModel,
    features: Sequence[Column],
    sources: Sequence[str],
    null: NDArray[Any],
    cells: list[pd.Series],
) -> dict[str, NDArray[Any]]:
    if (null >= 0).any():
        number, rows = int(null[null >= 0][0]), int((null == null[null >= 0][0]).sum())
        raise DataError(
            f"column {sources[number]!r} has {rows} null rows among {len(null)}: fill them (fillna) or drop them"
            " (dropna) before transform"
        )
    step = chunk_size(features)
    parts = []
    for start in range(0, max(1, len(null)), step):
        named = zip(sources, (series.iloc[start : start + step] for series in cells), strict=True)
        arrays = {name: _to_array(name, series) for name, series in named}
        parts.append(model.scorer().predict(read_rows(features, arrays)))
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
