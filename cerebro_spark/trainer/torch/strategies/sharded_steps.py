"""Training steps of one member of a group whose members have a part of the model each. It collects no metrics."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cerebro_spark.trainer.shares import Step
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.links import TorchLinks
from cerebro_spark.trainer.torch.loss_parts import LossParts
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, StepResult
from cerebro_spark.trainer.torch.strategies.sharding import ShardedModel


class ShardedSteps(EagerSteps):
    """The training steps of one member.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        links: The other members.
        shards: The model as it lies in parts.
        generators: The generators of the process.
        lend: Returns rows that may stand in where this member gives none to a batch.

    Attributes:
        loss_parts: Whether its losses are means over rows.
    """

    def __init__(
        self,
        model: BuiltTorchModel,
        compute: ComputeLoss,
        links: TorchLinks,
        shards: ShardedModel,
        generators: Generators,
        lend: Callable[[], Tensors],
    ) -> None:
        super().__init__(model, compute)
        self._links = links
        self._shards = shards
        self._generators = generators
        self._lend = lend
        self.loss_parts = LossParts(model)

    def take_share(self, tensors: Tensors | None, step: Step) -> StepResult | None:
        """Take a step together with the others.

        Args:
            tensors: This member's share of the batch; None if it gives no row.
            step: How large that share is.

        Returns:
            What came of the share; None if there was none.
        """
        self._shards.forget_gradients()
        result = None
        with self._shards.naming_readers():
            if tensors is None:
                self._compute_nothing()
            else:
                loss, output, label = self._compute(self._model, tensors)
                torch.autograd.backward(loss * step.weight)
                result = loss.detach(), output, label
                self.loss_parts.look(*result)
        self._shards.take_gradients()
        self._apply_gradients()
        return result

    def _compute_nothing(self) -> None:
        """Let the others have this member's parts of the model, and add nothing to their gradients."""
        statistics, states = self._model.copy_statistics(), self._generators.capture()
        self._shards.lending[0] = True
        try:
            loss, _, _ = self._compute(self._model, self._lend())
            torch.autograd.backward(loss)
        finally:
            self._shards.lending[0] = False
            self._generators.restore(states)
            self._model.restore_statistics(statistics)

    def _apply_gradients(self) -> None:
        own, parts = self._model.model, self._shards.parts
        if own.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parts, own.clip_norm, self._compute_norm(parts))
        if own.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parts, own.clip_value)
        own.optimizer.step()

    def _compute_norm(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the whole gradient."""
        gradients = [part.grad for part in parts if part.grad is not None]
        square = torch.zeros((), dtype=torch.float64, device=parts[0].device)
        if gradients:
            square += torch.nn.utils.get_total_norm(gradients).double() ** 2
        self._links.sum(square)
        dtype = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
        return square.sqrt().to(dtype)
