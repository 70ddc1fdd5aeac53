"""Grouped steps of Keras models on PyTorch: eager ones, whose gradients are added up as those of PyTorch models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cerebro_spark.trainer.feed import Batch
from cerebro_spark.trainer.group import Group
from cerebro_spark.trainer.keras.backend import KerasBackend
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.grouped_steps import GroupedSteps, weighing
from cerebro_spark.trainer.torch.grouped_steps import GradientSum


class TorchShares(GroupedSteps):
    """The training steps of one member on PyTorch.

    Args:
        model: The built model.
        group: The other members.
        backend: Makes tensors of batches.
    """

    def __init__(self, model: BuiltKerasModel, group: Group, backend: KerasBackend) -> None:
        super().__init__(model, group)
        self._backend = backend
        self._variables = list(model.model.trainable_variables)
        self._sum = GradientSum([variable.value for variable in self._variables], group)

    def _take(self, batch: Batch, weight: float) -> None:
        apply = self._model.model.optimizer.apply

        def use(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
            self._sum.run()
            apply([variable.value.grad for variable in variables], variables)

        with self.loss_parts.watching() as seen:
            self._step(batch, weight, use)
        self.loss_parts.count(seen)

    def _take_nothing(self) -> None:
        own = self._model.model
        if not self._variables:
            return
        own.zero_grad()
        self._sum.run()
        with torch.no_grad():
            own.optimizer.apply([variable.value.grad for variable in self._variables], self._variables)

    def _run(self, batch: Batch) -> None:
        self._step(batch, 0.0, lambda gradients, variables: None)

    def _step(self, batch: Batch, weight: float, use: Any) -> None:
        own, tensors = self._model.model, self._backend.load(batch)
        rows = len(next(iter(tensors.values())))
        self._backend.set_mode(self._model, True)
        with weighing(own.optimizer, weight, apply=use):
            self._model.steps.take("train", own.train_step, self._model.pack(tensors), rows)
        self._backend.set_mode(self._model, False)
