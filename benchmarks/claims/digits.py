"""The work of the learning curves: 1,797 handwritten digits in eight partitions, and a small CNN. It trains nothing.

Everybody has the same rows: partitions are those of one prepared data set, and every fifth row is for validation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache

Rows = tuple[Any, Any]


def prepared(folder: Path, partitions: int, rows: int | None = None) -> Dataset:
    """The digits, or the first `rows` of them, as a data set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    data = {
        "image": (digits.images[:rows, None, :, :] / 16).astype("float32"),
        "digit": digits.target[:rows].astype("int64"),
    }
    aside = np.arange(len(data["digit"])) % 5 == 0
    return cs.prepare(
        {**data, "held_out": aside},
        store=str(folder),
        features="image",
        label="digit",
        validation="held_out",
        partitions=partitions,
        seed=1,
    )


def tensors(dataset: Dataset) -> tuple[list[Rows], Rows]:
    """The rows of each training partition, and all rows for validation."""
    import torch

    with tempfile.TemporaryDirectory() as place, Cache(place, memory_budget=0) as cache:

        def read(partition: Any) -> Rows:
            arrays = cache.load(dataset, partition)
            return torch.tensor(arrays["features"]), torch.tensor(arrays["label"])

        train, validation = [read(each) for each in dataset.train], [read(each) for each in dataset.validation]
    return train, (torch.cat([x for x, _ in validation]), torch.cat([y for _, y in validation]))


def model_fn(params: Mapping[str, Any]) -> cs.TorchModel:
    """A CNN without layers that look at a whole batch, for which batches of other sizes would be another model."""
    import torch
    from torch import nn

    # So that everybody starts from the same weights.
    torch.manual_seed(params["seed"])
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, nn.CrossEntropyLoss(), metrics={"accuracy": accuracy})


def accuracy(output: Any, label: Any) -> Any:
    return (output.argmax(dim=1) == label).float()
