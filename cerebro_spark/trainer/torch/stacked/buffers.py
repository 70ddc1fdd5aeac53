"""The trained parameters of stacked members as one buffer, with all that an optimizer keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.stacked.members import MemberState
from cerebro_spark.trainer.torch.stacked.optimizers import Numbers, StackedOptimizer, StackedSGD

# Rows and parameters begin at multiples of 64 bytes, as tensors of their own do.
_ALIGNMENT = 16


class TrainedParameter(NamedTuple):
    """A parameter that an optimizer has, and that takes gradients.

    Attributes:
        name: Its name in the module.
        number: Its number, as the optimizer counts parameters over all groups.
        group: The number of its group.
        like: The parameter of the built model.
    """

    name: str
    number: int
    group: int
    like: torch.Tensor


def list_trained(model: BuiltTorchModel) -> list[TrainedParameter]:
    """Return the trained parameters in the order of the optimizer. Raises ValueError if one is not in float32."""
    names = {parameter: name for name, parameter in model.model.module.named_parameters()}
    groups = enumerate(model.model.optimizer.param_groups)
    placed = [(number, parameter) for number, group in groups for parameter in group["params"]]
    listed = enumerate(placed)
    found = [TrainedParameter(names[p], index, number, p) for index, (number, p) in listed if p.requires_grad]
    for each in found:
        if each.like.dtype is not torch.float32 or not each.like.is_contiguous():
            raise ValueError(f"parameter {each.name} is of {each.like.dtype}, or not contiguous")
    return found


class FlatGroup:
    """The trained parameters of one group of the optimizer, with a row a member.

    Args:
        parameters: The parameters, all of one group.
        width: The number of members.
        kind: The optimizer.
        moments: The names of what the optimizer keeps of each parameter.

    Attributes:
        parameters: The parameters.
        values: For each of them its values, with a row a member.
        gradients: For each of them its gradients, with a row a member.
        moments: For each of them what the optimizer keeps, by name and with a row a member.
        optimizer: The optimizer, which works on these.
    """

    def __init__(
        self, parameters: Sequence[TrainedParameter], width: int, kind: type[StackedOptimizer], moments: Sequence[str]
    ) -> None:
        self.parameters = parameters
        sizes = [-(-each.like.numel() // _ALIGNMENT) * _ALIGNMENT for each in parameters]
        self._starts = [sum(sizes[:place]) for place in range(len(sizes))]
        device = parameters[0].like.device
        flat, gradients, *kept = (torch.zeros(width, sum(sizes), device=device) for _ in range(2 + len(moments)))
        self._flats = [flat, gradients, *kept]
        self.moments = {name: self._view(buffer) for name, buffer in zip(moments, kept, strict=True)}
        self.values, self.gradients = self._view(flat), self._view(gradients)
        self.optimizer = kind(flat, gradients, dict(zip(moments, kept, strict=True)), [0.0] * width)

    @property
    def number(self) -> int:
        """The number of the group."""
        return self.parameters[0].group

    def clamp_gradients(self, limit: float) -> None:
        """Limit each element of the gradients."""
        self._flats[1].clamp_(min=-limit, max=limit)

    def fill(self, row: int, state: MemberState) -> None:
        """Take on the state of a member."""
        kept = [state.optimizer_states[each.number] for each in self.parameters]
        for place, each in enumerate(self.parameters):
            self.values[place][row].copy_(state.tree["parameters"][each.name])
            for name, views in self.moments.items():
                moment = kept[place].get(name)
                views[place][row].zero_() if moment is None else views[place][row].copy_(moment)
        self.optimizer.counts[row] = float(kept[0].get("step", 0.0))
        if isinstance(self.optimizer, StackedSGD):
            self.optimizer.fresh[row] = "momentum_buffer" not in kept[0]

    def leave(self, row: int, tree: dict[str, Any]) -> None:
        """Put what a member has learned into its tree."""
        for place, each in enumerate(self.parameters):
            tree["parameters"][each.name] = self.values[place][row]
            count = (
                {"step": torch.tensor(self.optimizer.counts[row], device="cpu")} if self.optimizer.counts_steps else {}
            )
            moments = {name: views[place][row] for name, views in self.moments.items()}
            # In the order in which the optimizer makes them in its first step.
            tree["optimizer"]["state"][each.number] = {**tree["optimizer"]["state"][each.number], **count, **moments}

    def _view(self, flat: torch.Tensor) -> list[torch.Tensor]:
        shapes = [each.like.shape for each in self.parameters]
        placed = zip(self._starts, shapes, strict=True)
        return [flat[:, at : at + shape.numel()].view(len(flat), *shape) for at, shape in placed]


def make_groups(
    kind: type[StackedOptimizer], trained: Sequence[TrainedParameter], numbers: Sequence[Numbers], width: int
) -> list[FlatGroup]:
    """Return the buffers of all groups of the optimizer.

    Args:
        kind: The optimizer.
        trained: The parameters that have gradients, in the order of the optimizer.
        numbers: The numbers of each group.
        width: The number of members.
    """
    grouped = [(number, list(own)) for number, own in groupby(trained, lambda each: each.group)]
    return [FlatGroup(own, width, kind, kind.moment_names(numbers[number])) for number, own in grouped]


def make_slots(groups: Sequence[FlatGroup], row: int) -> list[torch.Tensor]:
    """Return parameters of one member whose gradients are its rows: PyTorch's clipping goes by parameters."""
    slots: list[torch.Tensor] = []
    for group in groups:
        for values, gradients in zip(group.values, group.gradients, strict=True):
            slot = torch.nn.Parameter(values[row])
            slot.grad = gradients[row]
            slots.append(slot)
    return slots
