"""Whether a data set is what somebody asks for who names columns again. It reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cerebro_spark.checks import is_number
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import Column, Role
from cerebro_spark.data.input.inputs import ColumnNames, name_sources, parse_role
from cerebro_spark.errors import ConfigurationError


def check_prepared_as(
    dataset: Dataset,
    features: ColumnNames | None = None,
    label: ColumnNames | None = None,
    weight: str | None = None,
    validation: Any = None,
    partitions: int | None = None,
) -> None:
    """Check that a data set has the columns and the parts that are asked for. Nothing is checked that is None.

    Args:
        dataset: The data set.
        features: The input columns, as `prepare` takes them.
        label: The label columns.
        weight: The column of weights.
        validation: The fraction of validation rows, or the column that tells them. Rows of their own are not compared.
        partitions: Into how many partitions the training rows are split.

    Raises:
        ConfigurationError: Something that is asked for is another in the data set.
    """
    _check_columns(dataset, "features", "feature", features, dataset.features)
    _check_columns(dataset, "label", "label", label, dataset.labels)
    _check_columns(dataset, "weight", "weight", weight, [dataset.weight] if dataset.weight else [])
    if (is_number(validation) or isinstance(validation, str)) and "validation" in dataset.made:
        was = dataset.made["validation"]
        if (validation or None) != (was or None):
            raise _differs(dataset, "validation", validation, was)
    if partitions is not None and partitions != len(dataset.train):
        raise _differs(dataset, "partitions", partitions, len(dataset.train))


def _check_columns(
    dataset: Dataset, argument: str, role: Role, asked: ColumnNames | None, columns: Sequence[Column]
) -> None:
    known = dataset.made.get("columns")
    if known is None or asked is None:
        return
    has = {column.name: list(known.get(column.name, [])) for column in columns}
    if name_sources(parse_role(argument, role, asked)) != has:
        raise _differs(dataset, argument, asked, has or None)


def _differs(dataset: Dataset, argument: str, given: Any, has: Any) -> ConfigurationError:
    return ConfigurationError(
        f"`{argument}` is {given!r}, but the data set {dataset.url} was prepared with {has!r}: leave `{argument}` out,"
        " or prepare the rows again"
    )
