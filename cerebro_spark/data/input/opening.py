"""Open the DataFrames given to `prepare`. A column that is missing or of a wrong type is found before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from cerebro_spark.data.input.base import InputFrame, StagingFolder, is_frame, is_spark_frame
from cerebro_spark.data.input.columns import check_type
from cerebro_spark.data.input.inputs import Input, check_present, list_sources
from cerebro_spark.data.input.local import LocalFrame, column_names
from cerebro_spark.data.input.spark import SparkFrame
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.store.base import Store


@dataclass(frozen=True, slots=True)
class InputFrames:
    """The rows to prepare: those of `df`, and those of a DataFrame that is given as `validation`."""

    data: InputFrame
    validation: InputFrame | None = None

    @property
    def session(self) -> Any:
        """The Spark session of either frame; None if Spark is not used."""
        return getattr(self.data, "session", None) or getattr(self.validation, "session", None)

    def check_reach(self, store: Store) -> None:
        """Raise ConfigurationError if executors cannot reach the store."""
        if self.session is not None and store.url.startswith("memory://"):
            raise ConfigurationError(
                f"{store.url} is in the memory of this process, which Spark's executors cannot reach: use a folder that"
                " all of them mount, hdfs:// or s3://, or give pandas frames"
            )

    def staging_folder(self, store: Store, folder: str) -> AbstractContextManager[StagingFolder]:
        """Make a place for the staged rows of both frames, and delete it when the block ends."""
        # Rows that executors stage can be reached through the store alone, by this process as well.
        stager = self.validation if isinstance(self.validation, SparkFrame) else self.data
        return stager.staging_folder(store, folder)


def open_frames(df: Any, validation: Any, inputs: Sequence[Input], validation_column: str | None) -> InputFrames:
    """Open `df`, and `validation` if that is a DataFrame too.

    Raises:
        ConfigurationError: A column is missing or there twice, or `df` is no DataFrame.
        DataError: A column is of a type that cannot be trained on.
    """
    data = _open_frame(df, inputs, validation_column)
    if not is_frame(validation):
        return InputFrames(data)
    try:
        return InputFrames(data, _open_frame(validation, inputs, None))
    except (ConfigurationError, DataError) as error:
        raise type(error)(f"validation frame: {error}") from error


def _open_frame(df: Any, inputs: Sequence[Input], validation_column: str | None) -> InputFrame:
    wanted = list_sources(inputs)
    if validation_column is not None and validation_column not in wanted:
        wanted.append(validation_column)
    frame: InputFrame
    if is_spark_frame(df):
        any_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"
        check_present(wanted, df.columns, any_case=any_case)
        frame = SparkFrame(df, wanted)
    elif isinstance(df, pd.DataFrame | Mapping):
        check_present(wanted, column_names(df))
        frame = LocalFrame(df, wanted)
    else:
        raise ConfigurationError(
            f"df is a {type(df).__name__}, but must be a Spark DataFrame, a pandas DataFrame or a dict of arrays"
        )
    _check_types(frame.types(), validation_column)
    return frame


def _check_types(types: Mapping[str, pa.DataType], validation_column: str | None) -> None:
    for name, kind in types.items():
        check_type(name, kind)
    if validation_column is not None and not pa.types.is_boolean(types[validation_column]):
        raise DataError(
            f"validation names the column {validation_column!r}, which is {types[validation_column]} in all its rows,"
            " not boolean: cast it, or pass a fraction or a DataFrame"
        )
