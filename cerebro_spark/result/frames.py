"""Scores rows in this process: pandas frames, dicts of arrays, prepared data. It needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.input.inputs import check_present
from cerebro_spark.data.input.local import LocalFrame, column_names
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.result.blueprint import Scorer, predict_chunks
from cerebro_spark.result.decoding import decode_outputs, to_cells
from cerebro_spark.result.rows import chunk_size, list_sources, read_rows
from cerebro_spark.trainer.feed import Batch

_CHUNK_ROWS = 1 << 16

Frame = pd.DataFrame | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutputNames:
    """The names of the new columns, by default those of Spark; a column without a name is left out."""

    prediction: str = "prediction"
    probability: str = "probability"
    raw: str = "rawPrediction"


def score_frame(scorer: Scorer, data: Frame, names: OutputNames, kind: str | None = None) -> pd.DataFrame:
    """Return the rows with their predictions in new columns; all other columns stay."""
    features = scorer.blueprint.features
    check_columns(features, column_names(data))
    outputs = predict_chunks(scorer, _chunks(data, features))
    found = decode_outputs(scorer.choose_decoder(outputs, kind), outputs)
    if isinstance(data, pd.DataFrame):
        table = data.copy()
    else:
        table = pd.DataFrame({name: to_cells(values) for name, values in data.items()})
    for name, column in name_columns(found, len(outputs), names, column_names(data)).items():
        table[column] = to_cells(found[name])
    return table


def frame_chunks(data: Frame, columns: Sequence[Column]) -> Iterator[Batch]:
    """Yield the rows as arrays of all that measuring needs: inputs, labels, weights."""
    check_columns(columns, column_names(data))
    return _chunks(data, columns)


def dataset_chunks(dataset: Dataset, columns: Sequence[Column]) -> Iterator[Batch]:
    """Yield all rows of a prepared data set, a partition at a time."""
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
    """Raise ConfigurationError if a source is missing, or occurs more than once."""
    check_present(list_sources(columns), available, any_case=any_case)


def name_columns(
    found: Iterable[str], outputs: int, names: OutputNames, taken: Sequence[str], any_case: bool = False
) -> dict[str, str]:
    """Return the new column of each decoded output. Several outputs have the name of the prediction before their own.

    >>> name_columns(["prediction", "probability"], 1, OutputNames(probability=""), ["x"])
    {'prediction': 'prediction'}
    >>> name_columns(["churn", "value"], 2, OutputNames(), ["x"])
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
    frame = LocalFrame(data, list_sources(columns))
    if not frame.rows:
        # Columns without rows have no types.
        yield {column.name: np.empty((0, *column.shape), np.dtype(column.dtype)) for column in columns}
    step = min(_CHUNK_ROWS, chunk_size(columns))
    for start in range(0, frame.rows, step):
        cells = {name: values[start : start + step] for name, values in frame.columns.items()}
        yield read_rows(columns, cells)
