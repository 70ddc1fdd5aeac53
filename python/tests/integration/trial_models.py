"""The models of the end-to-end tests, in both frameworks: small, with dropout, and measured by three metrics.

Executors have no copy of this file: what is in it travels with the run, as a user's notebook would.
"""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

from cerebro_spark.trainer.torch.model import TorchModel

FEATURES = 6
CONFIGURATIONS = [
    {"lr": lr, "batch_size": size, "hidden": hidden} for hidden in (8, 12) for lr, size in ((0.01, 32), (0.02, 50))
]


def keras_model_fn(params: Any) -> Any:
    import keras

    layers = [
        keras.layers.Dense(params["hidden"], activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.Adam(params["lr"]),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


class RankedAuc:
    """The area under the curve from the ranks of all scores: its state neither adds up nor averages."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.scores: list[Any] = []
        self.labels: list[Any] = []

    def update(self, output: Any, label: Any) -> None:
        self.scores.append(output)
        self.labels.append(label)

    def compute(self) -> float:
        import torch

        scores, labels = torch.cat(self.scores), torch.cat(self.labels) > 0.5
        above = scores[labels].unsqueeze(1) - scores[~labels].unsqueeze(0)
        return float(((above > 0).double() + (above == 0).double() / 2).mean())


def torch_model_fn(params: Any) -> TorchModel:
    import torch
    from torch import nn

    hidden = params["hidden"]
    module = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])

    def accuracy(output: Any, label: Any) -> Any:
        return ((output > 0) == (label > 0.5)).double()

    return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), {"accuracy": accuracy, "auc": RankedAuc()})


MODEL_FNS = {"keras": keras_model_fn, "torch": torch_model_fn}

cloudpickle.register_pickle_by_value(sys.modules[__name__])
