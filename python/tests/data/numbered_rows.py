"""Data whose rows can be told apart, for the tests of the data layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.formats import petastorm
from cerebro_spark.data.loading.arrays import load_arrays

needs_petastorm = pytest.mark.skipif(not petastorm.is_installed(), reason="Petastorm cannot be imported on this stack")
READERS = ["arrow", pytest.param("petastorm", marks=needs_petastorm)]


def numbered(rows: int, width: int = 3) -> dict[str, Any]:
    """Rows that carry their own number, in the label and in every feature."""
    number = np.arange(rows)
    return {"x": np.repeat(number[:, None], width, axis=1).astype("float32"), "y": number.astype("int64")}


def labels(dataset: Dataset, split: str = "train") -> list[list[int]]:
    """The labels of each partition in stored order."""
    chosen = dataset.train if split == "train" else dataset.validation
    return [load_arrays(dataset, partition, reader="arrow")["label"].tolist() for partition in chosen]


def numbers(dataset: Dataset, *splits: str) -> list[int]:
    """The labels of all partitions of these splits, sorted: which rows are there at all."""
    return sorted(label for split in splits for part in labels(dataset, split) for label in part)
