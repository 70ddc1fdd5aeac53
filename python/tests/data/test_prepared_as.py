"""Columns that are named again for a data set are those that it was prepared with, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cerebro_spark as cs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepared_as import check_prepared_as
from cerebro_spark.errors import ConfigurationError

ROWS = pd.DataFrame({name: np.arange(20.0) for name in "abcyzw"} | {"held_out": [True, False] * 10})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("rows")
    return cs.prepare(ROWS, store=str(folder), features=["a", "b"], label="y", weight="w", validation=0.2, partitions=2)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"features": ["a", "c"]},
            r"`features` is \['a', 'c'\], but .* was prepared with \{'features': \['a', 'b'\]\}",
        ),
        ({"features": ["b", "a"]}, "`features`"),
        ({"features": "a"}, "`features`"),
        ({"features": {"x": ["a", "b"]}}, "`features`"),
        ({"features": []}, "names no column"),
        ({"label": "z"}, "`label` is 'z', but"),
        ({"label": ["y", "z"]}, "`label`"),
        ({"weight": "z"}, "`weight` is 'z', but"),
        ({"validation": 0.5}, "`validation` is 0.5, but .* was prepared with 0.2"),
        ({"validation": 0}, "`validation`"),
        ({"validation": "held_out"}, "`validation`"),
        ({"partitions": 3}, "`partitions` is 3, but .* was prepared with 2: leave `partitions` out"),
    ],
)
def test_what_differs_is_refused_by_name(dataset: Dataset, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_prepared_as(dataset, **asked)


def test_what_is_the_same_or_is_not_asked_for_passes(dataset: Dataset) -> None:
    check_prepared_as(dataset)
    check_prepared_as(dataset, ["a", "b"], "y", "w", 0.2, 2)
    check_prepared_as(dataset, features=("a", "b"), validation=ROWS)


def test_a_weight_that_no_column_has_been_is_refused(tmp_path: Path) -> None:
    plain = cs.prepare(
        ROWS, store=str(tmp_path), features={"one": "a", "two": ["b", "c"]}, label="y", validation="held_out"
    )
    check_prepared_as(plain, {"one": "a", "two": ["b", "c"]}, "y", validation="held_out")
    with pytest.raises(ConfigurationError, match=r"`weight` is 'w', but .* was prepared with None"):
        check_prepared_as(plain, weight="w")
    with pytest.raises(ConfigurationError, match="`features`"):
        check_prepared_as(plain, features={"one": "a"})


def test_a_search_refuses_other_columns_than_its_data_has(dataset: Dataset, tmp_path: Path) -> None:
    search = cs.GridSearch(
        lambda params: None,
        space={"lr": 0.1},
        store=str(tmp_path),
        metric="val_loss",
        label="z",
        framework="torch",
        epochs=1,
    )
    with pytest.raises(ConfigurationError, match="`label` is 'z'"):
        search.fit(dataset)
