"""The models of the works, for everybody. Each framework is loaded by the function that needs it, and by no other."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.works import Params


def torch_module(kind: str, params: Params) -> Any:
    from torch import nn

    size = params["size"]
    if kind == "mlp":
        return nn.Sequential(
            nn.Linear(64, size), nn.ReLU(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )
    return nn.Sequential(
        nn.Conv2d(3, size, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(size, 2 * size, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * size, 2 * size, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * size, 10),
    )  # fmt: skip


def torch_loss(kind: str) -> Any:
    from torch import nn

    return nn.BCEWithLogitsLoss() if kind == "mlp" else nn.CrossEntropyLoss()


def torch_parts(kind: str, params: Params) -> tuple[Any, Any, Any]:
    """A fresh module, its Adam, and its loss."""
    import torch

    module = torch_module(kind, params)
    return module, torch.optim.Adam(module.parameters(), lr=params["lr"]), torch_loss(kind)


def keras_model(kind: str, params: Params) -> Any:
    """A fresh, compiled model."""
    import keras
    from keras import layers

    size = params["size"]
    if kind == "mlp":
        parts = [
            layers.Input((64,)), layers.Dense(size, activation="relu"), layers.Dense(64, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]  # fmt: skip
        loss = "binary_crossentropy"
    else:
        parts = [
            layers.Input((3, 32, 32)), layers.Permute((2, 3, 1)),
            layers.Conv2D(size, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(2 * size, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(2 * size, 3, activation="relu"), layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]  # fmt: skip
        loss = "sparse_categorical_crossentropy"
    model = keras.Sequential(parts)
    model.compile(optimizer=keras.optimizers.Adam(params["lr"]), loss=loss)
    return model
