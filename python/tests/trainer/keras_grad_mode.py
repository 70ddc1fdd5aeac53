"""What is done with Keras on PyTorch in a process of its own, for the tests of the grad mode."""

from __future__ import annotations

from typing import Any

import keras
import torch
from trainer_data import columns, feed

from cerebro_spark.trainer import Hooks, Resources
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.types import Unit


def model_fn(params: Any) -> Any:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def turn_off(model: Any, batches: Any, params: Any) -> dict[str, float]:
    torch.set_grad_enabled(False)
    return {"loss": 1.0, "rows": 1.0}


def train_after_turning_off() -> list[float]:
    """Return the losses of two epochs; an evaluation between them turns gradients off."""
    hooks = Hooks(model_fn, eval_fn=turn_off)
    trainer = KerasTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    losses = []
    for epoch in (1, 2):
        losses.append(trainer.train(Unit("t", epoch, "0"), feed("tabular", 0)).values()["loss"])
        trainer.evaluate(Unit("t", epoch, "0", "eval"), feed("tabular", 0))
    return losses
