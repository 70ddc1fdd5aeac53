"""Scoring of rows that are in this process: pandas frames, dicts of arrays, prepared data. It needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cerebro_spark.data.columns import Column, Input, check_present
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.frames import FrameSource, column_names
from cerebro_spark.data.load import load_arrays
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.result.blueprint import Scorer
from cerebro_spark.result.rows import read_rows, rows_at_once, sources_of
from cerebro_spark.trainer.feed import Batch

_CHUNK_ROWS = 1 << 16

Frame = pd.DataFrame | Mapping[str, Any]


def score_frame(scorer: Scorer, data: Frame, column: str) -> pd.DataFrame:
    """The rows with their predictions in new columns; what was there stays as it is."""
    features = scorer.blueprint.features
    check_columns(features, column_names(data))
    parts = [scorer.predict(chunk) for chunk in _chunks(data, features)]
    outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    names = output_names(list(outputs), column, column_names(data))
    table = data.copy() if isinstance(data, pd.DataFrame) else _table(data)
    for name, output in outputs.items():
        table[names[name]] = output if output.ndim == 1 else list(output)
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


def output_names(outputs: Sequence[str], column: str, taken: Sequence[str], any_case: bool = False) -> dict[str, str]:
    """The new column of each output: `column` itself for the only one, `column`_<output> for several.

    >>> output_names(["churn", "value"], "prediction", ["x"])
    {'churn': 'prediction_churn', 'value': 'prediction_value'}
    """
    names = {output: column if len(outputs) == 1 else f"{column}_{output}" for output in outputs}
    folded = {name.lower() if any_case else name for name in taken}
    for name in names.values():
        if (name.lower() if any_case else name) in folded:
            raise ConfigurationError(
                f"the data has a column {name!r} already: rename it, or give the predictions another name with"
                f" transform(df, column='my_{column}')"
            )
    return names


def _chunks(data: Frame, columns: Sequence[Column]) -> Iterator[Batch]:
    source = FrameSource(data, sources_of(columns))
    if not source.rows:
        # Columns without rows have no types of their own either.
        yield {column.name: np.empty((0, *column.shape), np.dtype(column.dtype)) for column in columns}
    step = min(_CHUNK_ROWS, rows_at_once(columns))
    for start in range(0, source.rows, step):
        cells = {name: values[start : start + step] for name, values in source.columns.items()}
        yield read_rows(columns, cells)


def _table(data: Mapping[str, Any]) -> pd.DataFrame:
    """A dict of arrays as a frame: an array of several dimensions becomes a column of its rows."""

    def plain(values: Any) -> Any:
        array: NDArray[Any] | None = values if isinstance(values, np.ndarray) else None
        return list(values) if array is not None and array.ndim > 1 else values

    return pd.DataFrame({name: plain(values) for name, values in data.items()})
