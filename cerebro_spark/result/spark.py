"""Scoring and measuring of Spark DataFrames on their executors. The rows never come to the driver, the model goes out.

Predictions are a pandas UDF over the source columns alone: whatever other columns there are, of whatever type, stay in
the JVM. Arrow's nulls become NaN on the way into pandas, so a number that says which column is null goes with each row.
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
from cerebro_spark.result.blueprint import Packed, Scorer, resident_scorer
from cerebro_spark.result.frames import OutputNames, check_columns, column_for
from cerebro_spark.result.reading import Reading, answers
from cerebro_spark.result.rows import read_rows, rows_at_once, sources_of
from cerebro_spark.types import Metrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Numbers that hardly any data holds. Spark answers "null" when it looks for one in vain in an array that has a null.
_NOWHERE = {"float": -1.1013e-41, "double": -1.1013e-41, "tinyint": -128, "smallint": -(2**15), "int": -(2**31)}
_NOWHERE["bigint"] = -(2**63)
_SQL_TYPES = {"float32": "float", "float64": "double", "bool": "boolean"}


class _Wanted(NamedTuple):
    """How outputs are read, and what of that goes into columns, with its SQL type."""

    reading: Reading | None
    types: Mapping[str, str]


class Shipment:
    """A packed model on its way to executors: broadcast once, unpacked once in each of their processes."""

    def __init__(self, packed: Packed, context: Any) -> None:
        self._digest = packed.digest
        self._data = context.broadcast(packed.data)
        self._threads = int(context.getConf().get("spark.task.cpus", "1"))

    def scorer(self) -> Scorer:
        """The scorer in this process."""
        return resident_scorer(self._digest, lambda: Packed(self._digest, self._data.value), self._threads)


def score(shipment: Shipment, scorer: Scorer, df: DataFrame, names: OutputNames, kind: str | None = None) -> DataFrame:
    """`df` with predictions in new columns, worked out when it is. `scorer` is one here, to know what comes."""
    features = scorer.blueprint.features
    any_case = _any_case(df)
    check_columns(features, df.columns, any_case)
    outputs = scorer.like()
    reading = scorer.reading(outputs, kind)
    found = answers(reading, outputs)
    columns = column_for(found, len(outputs), names, df.columns, any_case)
    if not columns:
        return df
    sources = sources_of(features)
    for name, kind in SparkFrame(df, sources).types().items():
        check_type(name, kind)
    inputs = [plain_column(df, name) for name in sources]
    wanted = _Wanted(reading, {name: _sql_type(found[name]) for name in columns})
    made = _prediction_udf(shipment, features, sources, wanted)(_first_null(df, sources), *inputs)
    return _with_columns(df, made, columns, vectors=reading is not None)


def _with_columns(df: DataFrame, made: Any, columns: Mapping[str, str], vectors: bool) -> DataFrame:
    """What the UDF makes under the names of its parts; probabilities and raw scores as Spark ML's vectors."""
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


def measure(shipment: Shipment, scorer: Scorer, df: DataFrame, series: bool) -> Metrics:
    """What the rows of `df` measure in all, still to be finished by a trainer.

    In `series`, one partition after the other, where a metric can only be updated; else all of them at once.
    """
    columns = list(scorer.blueprint.sources)
    check_columns(columns, df.columns, _any_case(df))
    frame = SparkFrame(df, sources_of(columns))
    for name, kind in frame.types().items():
        check_type(name, kind)
    with frame.small_batches():
        parts = None if series else _measure(shipment, columns, frame.selected, frame.names, alone=False)
        if parts is None:
            parts = _measure(shipment, columns, frame.selected.coalesce(1), frame.names, alone=True)
    if not parts:
        raise DataError("the DataFrame has no rows, so there is nothing to measure: check its filters")
    return Metrics.merge(parts)


def _measure(
    shipment: Shipment, columns: Sequence[Column], df: DataFrame, names: Sequence[str], alone: bool
) -> list[Metrics] | None:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            answer = _measured(shipment, columns, names, batches, alone)
        except CerebroError as error:
            # What trying again cannot mend is told as it is, not as a failed task.
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


def _measured(
    shipment: Shipment, columns: Sequence[Column], names: Sequence[str], batches: Iterable[pa.RecordBatch], alone: bool
) -> dict[str, Any]:
    parts: list[Metrics] = []
    chunks = (read_rows(columns, dict(zip(names, batch.columns, strict=True))) for batch in batches if batch.num_rows)
    for part in _lazily(shipment, chunks):
        if part.carried and not alone:
            # Spark ends a process that leaves rows unread, and the model with it.
            for _ in batches:
                pass
            return {"carries": True}
        parts = [Metrics.merge([*parts, part])]
    return {"metrics": to_plain(parts[0], "metrics") if parts else None}


def _lazily(shipment: Shipment, chunks: Iterator[Any]) -> Iterator[Metrics]:
    """An empty partition must not cost a model."""
    for first in chunks:
        yield from shipment.scorer().measure(_chain(first, chunks))


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _prediction_udf(shipment: Shipment, features: Sequence[Column], sources: Sequence[str], wanted: _Wanted) -> Any:
    from pyspark.sql.pandas.functions import pandas_udf

    types = list(wanted.types.values())
    several = len(types) > 1
    returns = f"struct<{', '.join(f'o{i}: {kind}' for i, kind in enumerate(types))}>" if several else types[0]

    def predict(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[Any]:
        for null, *cells in batches:
            outputs = _predicted(shipment, features, sources, null.to_numpy(), cells)
            found = answers(wanted.reading, outputs)
            made = [found[name] if found[name].ndim == 1 else list(found[name]) for name in wanted.types]
            yield pd.DataFrame({f"o{i}": each for i, each in enumerate(made)}) if several else pd.Series(made[0])

    # The annotations are read as they are, not as text: Spark chooses the kind of UDF by them.
    answer: Any = Iterator[pd.DataFrame] if several else Iterator[pd.Series]
    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": answer}
    udf: Any = pandas_udf
    return udf(predict, returns)


def _predicted(
    shipment: Shipment, features: Sequence[Column], sources: Sequence[str], null: NDArray[Any], cells: list[pd.Series]
) -> dict[str, NDArray[Any]]:
    if (null >= 0).any():
        number, rows = int(null[null >= 0][0]), int((null == null[null >= 0][0]).sum())
        raise DataError(
            f"column {sources[number]!r} has {rows} null rows among {len(null)}: fill them (fillna) or drop them"
            " (dropna) before transform"
        )
    step = rows_at_once(features)
    parts = []
    for start in range(0, max(1, len(null)), step):
        named = zip(sources, (series.iloc[start : start + step] for series in cells), strict=True)
        arrays = {name: _cells(name, series) for name, series in named}
        parts.append(shipment.scorer().predict(read_rows(features, arrays)))
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cells(name: str, series: pd.Series) -> Any:
    """What came through Arrow, as an array with a row each."""
    values = series.to_numpy()
    if values.dtype != object or not len(values):
        return values
    if isinstance(values[0], bytes):
        return pa.array(values, pa.binary())
    try:
        return _stacked(values)
    except ValueError as error:
        shapes = sorted({np.shape(value) for value in values})[:5]
        raise DataError(
            f"column {name!r} is ragged: its rows have shapes {shapes}; pad or crop them to one shape"
        ) from error


def _stacked(values: NDArray[Any]) -> NDArray[Any]:
    """Arrays of one shape as one array; of arrays of arrays, all levels."""
    if values[0].dtype == object:
        return np.stack([_stacked(value) for value in values])
    return np.concatenate(values).reshape(len(values), -1) if _alike(values) else np.stack(list(values))


def _alike(values: NDArray[Any]) -> bool:
    width = len(values[0])
    return values[0].ndim == 1 and all(len(value) == width for value in values)


def _first_null(df: DataFrame, sources: Sequence[str]) -> Any:
    """Which source is null in a row, by its number; -1 where none is."""
    from pyspark.sql import functions

    found: Any = functions
    for number, name in enumerate(sources):
        condition = _is_null(df, name)
        if condition is not None:
            found = found.when(condition, number)
    return (functions.lit(-1) if found is functions else found.otherwise(-1)).cast("int")


def _is_null(df: DataFrame, name: str) -> Any:
    """Whether a cell, or an element of it, is null; None where the schema says that it never is."""
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
        if element in _NOWHERE:
            # Compiled, unlike `exists`, which would cost more than the model.
            sought = functions.lit(_NOWHERE[element]).cast(kind.elementType)
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
