"""Training steps of a PyTorch model that are taken together with others: gradients are added up before they are used.

It knows no partition and collects no metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from cerebro_spark.trainer.group import Group, GroupRefused
from cerebro_spark.trainer.shares import Step
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.loss_parts import LossParts
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, StepResult


class GradientSum:
    """Adds up the gradients of all members.

    Those below float32 are added up in float32, so that nothing is lost that a single process would keep. A parameter
    that has a gradient at some members counts as zero at the others; one that has none anywhere keeps none.

    Args:
        parameters: All parameters of the optimizer.
        group: The other members.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], group: Group) -> None:
        self._group = group
        self._frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        self._parameters: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        """By parameter, where its gradient lies in a sum."""
        self._counts: list[torch.Tensor] = []
        """By parameter, where the number of members lies that have a gradient of it."""
        self._sums: list[_Sum] = []
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                kinds.setdefault(sum_dtype(parameter.dtype), []).append(parameter)
        for kind, those in kinds.items():
            self._lay_out(kind, those)

    def _lay_out(self, kind: torch.dtype, parameters: Sequence[torch.Tensor]) -> None:
        shapes = [_as_real(parameter.detach()).shape for parameter in parameters]
        sizes = [shape.numel() for shape in shapes]
        whole = torch.zeros(sum(sizes) + len(sizes), dtype=kind, device=parameters[0].device)
        *places, counts = whole.split([*sizes, len(sizes)])
        self._sums.append(_Sum(whole, counts))
        self._parameters += parameters
        self._values += [place.view(shape) for place, shape in zip(places, shapes, strict=True)]
        self._counts += counts.unbind()

    @torch.no_grad()
    def run(self) -> None:
        """Replace the gradients of this member by those of all. Raises GroupRefused for what cannot be added up."""
        if any(parameter.grad is not None for parameter in self._frozen):
            raise GroupRefused("it thaws a parameter in the middle of a unit")
        own = [parameter.grad for parameter in self._parameters]
        if any(gradient is not None and gradient.layout != torch.strided for gradient in own):
            raise GroupRefused("it has sparse gradients")
        there = [(gradient, place) for gradient, place in zip(own, self._values, strict=True) if gradient is not None]
        gradients, values = [_as_real(gradient) for gradient, _ in there], [place for _, place in there]
        self._fill(values, gradients, missing=own.count(None) > 0)
        for total in self._sums:
            self._group.sum(total.whole)
        if values:
            torch._foreach_copy_(gradients, values)
        for index in (index for index, gradient in enumerate(own) if gradient is None):
            if self._counts[index].item():  # asked only here, since it waits for a GPU
                self._parameters[index].grad = _make_gradient(self._parameters[index], self._values[index])

    def _fill(self, values: list[torch.Tensor], gradients: list[torch.Tensor], missing: bool) -> None:
        """Write this member's gradients into the sums."""
        for whole, counts in self._sums:
            if missing:
                whole.zero_()
            else:
                counts.fill_(1)
        if values:
            torch._foreach_copy_(values, gradients)
        if missing:
            for parameter, count in zip(self._parameters, self._counts, strict=True):
                count.fill_(parameter.grad is not None)


class _Sum(NamedTuple):
    """The sum of all gradients of one dtype.

    Attributes:
        whole: What is added up, in one piece.
        counts: Its end: for each parameter how many members have a gradient.
    """

    whole: torch.Tensor
    counts: torch.Tensor


class GroupedSteps(EagerSteps):
    """The training steps of one member.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        group: The other members.

    Attributes:
        loss_parts: Whether its losses are means over rows.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss, group: Group) -> None:
        super().__init__(model, compute)
        self._gradients = GradientSum(model.parameters, group)
        self.loss_parts = LossParts(model)

    def take_share(self, tensors: Tensors | None, step: Step) -> StepResult | None:
        """Take a step together with the others.

        Args:
            tensors: This member's share of the batch; None if it gives no row.
            step: How large that share is.

        Returns:
            What came of the share; None if there was none.
        """
        own, scaler = self._model.model, self._model.scaler
        own.optimizer.zero_grad()
        result = None
        if tensors is None:
            scaler.scale(torch.zeros((), device=self._model.parameters[0].device))  # it makes its state at first use
        else:
            loss, output, label = self._compute(self._model, tensors)
            # Not the loss that counts in the metrics: its part of the mean over the rows of all.
            torch.autograd.backward(scaler.scale(loss * step.weight))
            result = loss.detach(), output, label
            self.loss_parts.look(*result)
        self._gradients.run()
        self._apply_gradients()
        return result


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of a dtype are added up.

    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64), sum_dtype(torch.complex64)
    (torch.float32, torch.float64, torch.float32)
    """
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _make_gradient(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    gradient = torch.empty_like(parameter)
    _as_real(gradient).copy_(values)
    return gradient
