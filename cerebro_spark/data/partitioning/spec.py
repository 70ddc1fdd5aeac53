"""The arguments of `prepare`, checked and made plain. It never looks at the data they speak of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import pandas as pd

from cerebro_spark._version import __version__
from cerebro_spark.checks import is_number
from cerebro_spark.data.input.columns import ColumnNames, Input, parse_inputs
from cerebro_spark.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Order:
    """What `prepare` was asked for.

    >>> Order.of(["a"], "y", None, validation=0.25, partitions=4, seed=7).fraction
    0.25
    """

    inputs: tuple[Input, ...]
    fraction: float
    flag: str | None
    partitions: int | None
    seed: int
    made: Mapping[str, Any]

    @staticmethod
    def of(
        features: ColumnNames,
        label: ColumnNames,
        weight: str | None,
        validation: Any,
        partitions: Any,
        seed: Any,
        allow_nan: Any = False,
    ) -> Order:
        inputs = parse_inputs(features, label, weight)
        if partitions is not None and (not is_number(partitions, Integral) or partitions < 1):
            raise ConfigurationError(f"partitions is {partitions!r}, but must be a whole number of at least 1")
        if not is_number(seed, Integral):
            raise ConfigurationError(f"seed is {seed!r}, but must be a whole number")
        check_allow_nan(allow_nan)
        fraction = 0.0
        flag = str(validation) if isinstance(validation, str) else None
        described: Any = "rows of its own" if is_frame(validation) else flag
        if is_number(validation):
            described = fraction = float(validation)
            if not 0 <= fraction < 1:
                raise ConfigurationError(f"validation is {validation!r}, but a fraction must be at least 0 and below 1")
        elif validation is not None and described is None:
            raise ConfigurationError(
                f"validation is {validation!r}, but must be a fraction, the name of a boolean column, or a DataFrame"
            )
        made = {
            "by": "prepare",
            "version": __version__,
            "columns": {given.name: list(given.sources) for given in inputs},
            "validation": described,
            "allow_nan": allow_nan,
        }
        return Order(inputs, fraction, flag, None if partitions is None else int(partitions), int(seed), made)


def check_allow_nan(value: Any) -> None:
    """Raise ConfigurationError if this is neither yes nor no."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"allow_nan is {value!r}, but must be True or False")


def is_spark(df: Any) -> bool:
    """Whether this is a DataFrame of Spark, which is not imported to find out."""
    return type(df).__module__.startswith("pyspark.sql")


def is_frame(value: Any) -> bool:
    """Whether this can be the rows of a data set.

    >>> is_frame({"x": [1.0]}), is_frame(0.2)
    (True, False)
    """
    return is_spark(value) or isinstance(value, pd.DataFrame | Mapping)
