"""The arguments of `prepare`, checked and made plain. It never looks at the data they are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from cerebro_spark._version import __version__
from cerebro_spark.checks import is_number
from cerebro_spark.data.input.base import is_frame
from cerebro_spark.data.input.inputs import ColumnNames, Input, name_sources, parse_inputs
from cerebro_spark.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PrepareSpec:
    """What `prepare` was asked for. `made` is what the manifest says of it.

    >>> PrepareSpec.parse(["a"], "y", None, validation=0.25, partitions=4, seed=7).validation_fraction
    0.25
    """

    inputs: tuple[Input, ...]
    validation_fraction: float
    validation_column: str | None
    partitions: int | None
    seed: int
    allow_nan: bool
    made: Mapping[str, Any]

    @staticmethod
    def parse(
        features: ColumnNames,
        label: ColumnNames,
        weight: str | None,
        validation: Any,
        partitions: Any,
        seed: Any,
        allow_nan: Any = False,
    ) -> PrepareSpec:
        """Check the arguments; ConfigurationError names the first that is wrong."""
        inputs = parse_inputs(features, label, weight)
        if partitions is not None and (not is_number(partitions, Integral) or partitions < 1):
            raise ConfigurationError(f"partitions is {partitions!r}, but must be a whole number of at least 1")
        if not is_number(seed, Integral):
            raise ConfigurationError(f"seed is {seed!r}, but must be a whole number")
        check_allow_nan(allow_nan)
        fraction, column = _parse_validation(validation)
        described = "rows of its own" if is_frame(validation) else column
        made = {
            "by": "prepare",
            "version": __version__,
            "columns": name_sources(inputs),
            "validation": fraction if is_number(validation) else described,
            "allow_nan": allow_nan,
        }
        count = None if partitions is None else int(partitions)
        return PrepareSpec(inputs, fraction, column, count, int(seed), allow_nan, made)


def _parse_validation(validation: Any) -> tuple[float, str | None]:
    """Return the fraction and the column that `validation` is; 0 and None if it is a DataFrame or not given."""
    if validation is None or is_frame(validation):
        return 0.0, None
    if isinstance(validation, str):
        return 0.0, str(validation)
    if not is_number(validation):
        raise ConfigurationError(
            f"validation is {validation!r}, but must be a fraction, the name of a boolean column, or a DataFrame"
        )
    if not 0 <= float(validation) < 1:
        raise ConfigurationError(f"validation is {validation!r}, but a fraction must be at least 0 and below 1")
    return float(validation), None


def check_allow_nan(value: Any) -> None:
    """Raise ConfigurationError if this is not a bool."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"allow_nan is {value!r}, but must be True or False")
