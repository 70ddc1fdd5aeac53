"""Scoring of rows that are in this process: pandas frames, dicts of arrays, prepared data. It needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import Column, Input, check_present
from cerebro_spark.data.input.local import LocalFrame, column_names
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.result.blueprint import Scorer
from cerebro_spark.result.reading import answers
from cerebro_spark.result.rows import read_rows, rows_at_once, sources_of
from cerebro_spark.trainer.feed import Batch

_CHUNK_ROWS = 1 << 16

Frame = pd.DataFrame | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutputNames:
    """What the new columns are called, by Spark's own names for them; one without a name is left out."""

    prediction: str = "prediction"
    probability: str = "probability"
    raw: str = "rawPrediction"


def score_frame(scorer: Scorer, data: Frame, names: OutputNames, kind: str | None = None) -> pd.DataFrame:
    """The rows with their predictions in new columns; what was there stays as it is."""
    features = scorer.blueprint.features
    check_columns(features, column_names(data))
    parts = [scorer.predict(chunk) for chunk in _chunks(data, features)]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found = answers(scorer.reading(outputs, kind), outputs)
    table = data.copy() if isinstance(data, pd.DataFrame) else _table(data)
    for answer, column in column_for(found, len(outputs), names, column_names(data)).items():
        table[column] = found[answer] if found[answer].ndim == 1 else list(found[answer])
    return table


def frame_chunks(data: Frame, columns: Sequence[Column]) -> Iterator[Batch]:
    """The rows as arrays with everything that measuring takes: inputs, labels, weights."""
    check_columns(columns, column_names(data))
    return _chunks(data, columns)


def dataset_chunks(dataset: Dataset, columns: Sequence[Column]) -> Iterator[Batch]:
    """All rows of a prepared data set, a partition at a time."""
    for column in columns:
        found = next((each for each in dataset.columns if each.name == column.name), None)
        if found is None or (found.dtype, found.shape) != (column.dtype, column.shape):
            what = "none" if found is None else f"{found.dtype} of shape {found.shape}"
            raise DataError(
                f"the model was trained on {column.name!r} as {column.dtype} of shape {column.shape}, but {dataset.url}"
                f" has {what}: prepare it with the same features, label and weight"
            )
    return (load_arrays(dataset, partition) for partition in dataset.partitions)


def check_columns(columns: Sequence[Column], available: Sequence[str], any_case: bool = False) -> None:
    """Raise ConfigurationError if a source is missing, or there more than once."""
    inputs = [Input(column.name, column.role, column.sources, matrix=False) for column in columns]
    check_present(inputs, available, any_case=any_case)


def column_for(
    found: Iterable[str], outputs: int, names: OutputNames, taken: Sequence[str], any_case: bool = False
) -> dict[str, str]:
    """The new column of each answer that has one: of several outputs each has the prediction's name before its own.

    >>> column_for(["prediction", "probability"], 1, OutputNames(probability=""), ["x"])
    {'prediction': 'prediction'}
    >>> column_for(["churn", "value"], 2, OutputNames(), ["x"])
    {'churn': 'prediction_churn', 'value': 'prediction_value'}
    """
    if outputs > 1:
        columns = {name: f"{names.prediction}_{name}" for name in found if names.prediction}
    else:
        own = {"prediction": names.prediction, "probability": names.probability, "rawPrediction": names.raw}
        columns = {name: own[name] for name in found if own[name]}
    _check_free(list(columns.values()), taken, any_case)
    return columns


def _check_free(columns: Sequence[str], taken: Sequence[str], any_case: bool) -> None:
    folded = [name.lower() if any_case else name for name in (*taken, *columns)]
    for name in columns:
        if folded.count(name.lower() if any_case else name) > 1:
            raise ConfigurationError(
                f"the data has a column {name!r} already, or two of the new ones have that name: rename it, or give the"
                " new ones other names with transform(df, column='my_prediction', probability='my_probability',"
                " raw='my_raw'), or '' for those that are not wanted"
            )


def _chunks(data: Frame, columns: Sequence[Column]) -> Iterator[Batch]:
    frame = LocalFrame(data, sources_of(columns))
    if not frame.rows:
        # Columns without rows have no types of their own either.
        yield {column.name: np.empty((0, *column.shape), np.dtype(column.dtype)) for column in columns}
    step = min(_CHUNK_ROWS, rows_at_once(columns))
    for start in range(0, frame.rows, step):
        cells = {name: values[start : start + step] for name, values in frame.columns.items()}
        yield read_rows(columns, cells)


def _table(data: Mapping[str, Any]) -> pd.DataFrame:
    """A dict of arrays as a frame: an array of several dimensions becomes a column of its rows."""

    def plain(values: Any) -> Any:
        array: NDArray[Any] | None = values if isinstance(values, np.ndarray) else None
        return list(values) if array is not None and array.ndim > 1 else values

    return pd.DataFrame({name: plain(values) for name, values in data.items()})
