"""Keras models that share parts which outlive them. To import it imports Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from trainer_data import columns

from cerebro_spark.trainer import Hooks, Resources
from cerebro_spark.trainer.keras.trainer import KerasTrainer


def with_head(part: Any) -> Any:
    model = keras.Sequential([keras.Input((8,)), part, keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def dense() -> Any:
    part = keras.layers.Dense(4, name="shared")
    part.build((None, 8))
    return part


def frozen() -> Any:
    part = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
    part.trainable = False
    return part


def adapted() -> Any:
    part = keras.layers.Normalization()
    part.adapt(np.ones((4, 8), "float32"))
    return part


def dropping() -> Any:
    return keras.layers.Dropout(0.5)


def trainer_of(model_fn: Callable[[], Any]) -> KerasTrainer:
    return KerasTrainer(Hooks(lambda params: model_fn()), columns("tabular"), resources=Resources(device="cpu"))
