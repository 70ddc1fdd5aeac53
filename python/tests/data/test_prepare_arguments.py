"""The arguments of prepare: what cannot work is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.store.local import LocalStore


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"validation": 1.0}, ConfigurationError, "validation is 1.0"),
        ({"validation": -0.1}, ConfigurationError, "validation is -0.1"),
        ({"validation": True}, ConfigurationError, "validation is True"),
        ({"validation": "nobody"}, ConfigurationError, "no column 'nobody'"),
        ({"validation": "y"}, DataError, "'y', which is int64 .* not boolean"),
        ({"validation": 0.01}, DataError, "0 of 20 rows"),
        ({"validation": "none"}, DataError, "true in 0 rows"),
        ({"partitions": 0}, ConfigurationError, "partitions is 0"),
        ({"partitions": 21}, DataError, "only 20 rows to train on: use partitions=20"),
        ({"seed": "x"}, ConfigurationError, "seed is 'x'"),
        ({"features": "nobody"}, ConfigurationError, "no column 'nobody'"),
        ({"name": "../x"}, ConfigurationError, "data set id"),
        ({"partitions": True}, ConfigurationError, "partitions is True"),
        ({"partitions": 2.0}, ConfigurationError, "partitions is 2.0"),
        ({"seed": True}, ConfigurationError, "seed is True"),
        ({"validation": 0.99}, DataError, "validation is 0.99, .* all 20 rows .* none to train on: use a smaller"),
        ({"validation": "every"}, DataError, "true in all 20 rows"),
        ({"features": None}, ConfigurationError, "features is None, .* name of a column, a list"),
        ({"features": 3}, ConfigurationError, "features is 3, "),
        ({"features": {"x": None}}, ConfigurationError, "features is None for 'x', "),
        ({"features": b"x"}, ConfigurationError, "features is b'x', "),
        ({"label": None}, ConfigurationError, "label is None, "),
        ({"features": ["y", "v"], "label": {"features": "y"}}, ConfigurationError, "stands for two arrays"),
    ],
)
def test_arguments_that_cannot_work(
    store: LocalStore, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    data = {**numbered(20), "none": np.zeros(20, bool), "every": np.ones(20, bool)}
    arguments = {"features": "x", "label": "y", "partitions": 2, **changes}
    with pytest.raises(error, match=message):
        prepare(data, store=store, **arguments)
    assert store.list() == []


@pytest.mark.parametrize("given", [None, 3, b"/tmp"])
def test_what_is_no_store_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"no address of a store: give a path"):
        prepare(numbered(4), store=given, features="x", label="y")


def test_numbers_of_numpy_are_numbers(store: LocalStore) -> None:
    dataset = prepare(
        numbered(20),
        store=store,
        features="x",
        label="y",
        validation=np.float32(0.25),
        partitions=np.int64(2),  # type: ignore[arg-type]
        seed=np.int32(7),  # type: ignore[arg-type]
    )
    assert ([part.rows for part in dataset.train], [part.rows for part in dataset.validation]) == ([8, 7], [3, 2])
    assert Dataset.open(store) == dataset
    assert (dataset.seed, dataset.made["validation"]) == (7, 0.25)


def test_what_is_no_frame_is_refused(store: LocalStore) -> None:
    with pytest.raises(ConfigurationError, match="df is a list"):
        prepare([1, 2], store=store, features="x", label="y")


def test_a_store_may_be_given_by_its_address(tmp_path: Path) -> None:
    dataset = prepare(numbered(10), store=str(tmp_path / "s"), features="x", label="y", partitions=1)
    assert Dataset.open(LocalStore(tmp_path / "s")).train == dataset.train
