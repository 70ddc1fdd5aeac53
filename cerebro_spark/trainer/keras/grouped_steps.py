"""Training steps of a Keras model that are taken together with others: gradients are added up before they are used.

It runs Keras' own `train_step`. What differs is put in its way: the loss that is differentiated counts as much as the
rows of the member, and what the optimizer is given are the gradients of all members. It knows no partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from cerebro_spark.trainer.feed import Batch
from cerebro_spark.trainer.group import Group
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.loss_parts import LossParts
from cerebro_spark.trainer.keras.replacing import replaced
from cerebro_spark.trainer.shares import Step


class GroupedSteps(ABC):
    """The training steps of one member.

    Args:
        model: The built model.
        group: The other members.

    Attributes:
        loss_parts: Whether its losses are means over rows.
    """

    def __init__(self, model: BuiltKerasModel, group: Group) -> None:
        self.loss_parts = LossParts(model.model)
        self._model = model
        self._group = group

    def take_share(self, batch: Batch | None, step: Step) -> None:
        """Take a step together with the others.

        Args:
            batch: This member's share of the batch; None if it gives no row.
            step: How large that share is.
        """
        if batch is None:
            self._keep_pace()
            self._take_nothing()
        else:
            self._take(batch, step.weight)

    @abstractmethod
    def _take(self, batch: Batch, weight: float) -> None:
        """Give the gradients of some rows, which count so much in the mean over the batch, and use those of all."""

    @abstractmethod
    def _take_nothing(self) -> None:
        """Give no gradients, and use those of the others."""

    @abstractmethod
    def _run(self, batch: Batch) -> None:
        """Compute what a step computes, and use nothing of it."""

    def _keep_pace(self) -> None:
        """Change without rows what others change with theirs, such as a count of steps or a spectral norm.

        That depends on no row, or no group trains the model. So it may be done with made-up rows, which metrics must
        not see.
        """
        if not self._model.list_statistics():
            return
        measured = [(variable, np.array(variable.numpy())) for variable in self._model.model.metrics_variables]
        self._run(self._model.sample)
        for variable, value in measured:
            variable.assign(value)


@contextmanager
def weighing(optimizer: Any, weight: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """Have an optimizer weigh the loss that is differentiated in the block. Metrics see the loss as it is.

    Args:
        optimizer: The optimizer of a model.
        weight: What the loss counts: a number, or a scalar tensor.
        methods: Other methods that it has in the block, by name.
    """
    scale_loss = optimizer.scale_loss

    def weigh(loss: Any) -> Any:
        # After the scaling of float16, so that a row's gradient is scaled as in one process.
        scaled = scale_loss(loss)
        return scaled * keras.ops.cast(weight, scaled.dtype)

    with replaced(optimizer, {"scale_loss": weigh, **methods}):
        yield
