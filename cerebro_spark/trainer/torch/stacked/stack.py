"""Members as one model: their states in shared buffers, and steps of all of them at once. It reads no feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.stacked.buffers import TrainedParameter, list_trained, make_groups, make_slots
from cerebro_spark.trainer.torch.stacked.calls import find_places
from cerebro_spark.trainer.torch.stacked.members import MemberState, check_state
from cerebro_spark.trainer.torch.stacked.optimizers import find_stacked
from cerebro_spark.trainer.torch.stacked.program import make_program
from cerebro_spark.trainer.torch.stacked.trace import ComputeLoss, StepInputs, StepModule, StepResult, StepTrace

MODULE, LOSS = "module.", "loss."
"""What the names of tensors of the module and of the loss begin with."""


def trace_step(
    model: BuiltTorchModel,
    compute: ComputeLoss,
    parameters: Sequence[TrainedParameter],
    tree: dict[str, Any],
    batch: Tensors,
) -> StepTrace:
    """Trace the step of one trial.

    Args:
        model: The built model of its structure.
        compute: Computes the loss of a batch.
        parameters: The parameters that take gradients.
        tree: The state of the trial.
        batch: Its batch.
    """
    trained = [MODULE + each.name for each in parameters]
    values = {MODULE + name: tensor for name, tensor in tree["parameters"].items()}
    buffers = {MODULE + name: tensor for name, tensor in tree["buffers"].items()}
    buffers |= {LOSS + name: tensor for name, tensor in tree["loss"].items()}
    fixed = {name: tensor for name, tensor in values.items() if name not in trained}
    inputs = StepInputs({name: values[name] for name in trained}, fixed, buffers, batch)
    return StepTrace(StepModule(model, compute), inputs)


def check_member(trace: StepTrace, state: MemberState) -> None:
    """Raise ValueError if stacked steps cannot go on from the state of a member."""
    model = state.current.model
    check_state(state, find_stacked(model.model.optimizer), [each.number for each in find_trained(model, trace)])


class Stack:
    """Members of one structure and batch shape that are computed as one model.

    Args:
        model: The built model of their structure.
        trace: The traced step of one of them.
        states: The members to begin with, as many as will be stacked.

    Attributes:
        width: The number of members.
        compared: The structures of members whose stacked steps were compared with single ones.

    Raises:
        ValueError: Something about the members says that they cannot be stacked.
    """

    def __init__(self, model: BuiltTorchModel, trace: StepTrace, states: Sequence[MemberState]) -> None:
        self.width = len(states)
        self.compared: set[Any] = set()
        self._trace, self._kind = trace, find_stacked(model.model.optimizer)
        self._clip_norm, self._clip_value = model.model.clip_norm, model.model.clip_value
        trained = find_trained(model, trace)
        if not trained:
            raise ValueError("no parameter has a gradient")
        self._groups = make_groups(self._kind, trained, states[0].numbers[0], self.width)
        placed = [item for group in self._groups for item in zip(group.parameters, group.values, strict=True)]
        self._values = {MODULE + each.name: values for each, values in placed}
        likes = {**trace.inputs.trained, **trace.inputs.fixed, **trace.inputs.buffers}
        self._rest = {
            name: torch.zeros((self.width, *like.shape), dtype=like.dtype, device=like.device)
            for name, like in likes.items()
            if name not in self._values
        }
        self._generators = [torch.Generator() for _ in states]
        self._slots = [make_slots(self._groups, row) for row in range(self.width)]
        self._varying = find_varying(trace, states)
        self._constants: dict[int, list[float]] = {}
        self._program = make_program(trace.graph, self.width, self._varying)

    def fill(self, states: Sequence[MemberState]) -> None:
        """Take on the states of members, as many as there are rows."""
        self._constants = {place: [state.constants[place] for state in states] for place in self._varying}
        for row, state in enumerate(states):
            for group in self._groups:
                group.fill(row, state)
            for name, tensor in self._rest.items():
                tensor[row].copy_(_find(state.tree, name))
            self._generators[row].set_state(torch.from_numpy(np.array(state.current.generators["torch"])))

    def leave(self, row: int, state: MemberState) -> dict[str, Any]:
        """Return the tree of a member as it is now. Its tensors are those of the stack."""
        buffers, optimizer = self._rest, state.tree["optimizer"]
        tree = {
            **state.tree,
            "parameters": dict(state.tree["parameters"]),
            "buffers": {name: buffers[MODULE + name][row] for name in state.tree["buffers"]},
            "loss": {name: buffers[LOSS + name][row] for name in state.tree["loss"]},
            "optimizer": {**optimizer, "state": list(optimizer["state"]), "groups": state.numbers[-1]},
            "scheduler": state.schedule,
        }
        for group in self._groups:
            group.leave(row, tree)
        return tree

    def generator_state(self, row: int) -> torch.Tensor:
        """Return the state of a member's generator."""
        return self._generators[row].get_state()

    @torch.no_grad()
    def step(self, batch: Tensors, states: Sequence[MemberState], number: int) -> StepResult:
        """Take a step of all members, each with the numbers of its batch of that number."""
        tensors = {**self._values, **self._rest}
        *parts, _ = self._trace.inputs
        inputs = [*(tensors[name] for part in parts for name in part), *batch.values()]
        result = self._trace.unpack(self._program(inputs, self._generators, self._constants))
        for name, new in zip(self._trace.inputs.buffers, result.buffers, strict=True):
            _put(self._rest[name], new)
        gradients = zip((view for group in self._groups for view in group.gradients), result.gradients, strict=True)
        for view, gradient in gradients:
            _put(view, gradient)
        self._clip()
        for group in self._groups:
            group.optimizer.step([state.numbers[number][group.number] for state in states])
        return result

    def _clip(self) -> None:
        if self._clip_norm is not None:
            for slots in self._slots:
                torch.nn.utils.clip_grad_norm_(slots, self._clip_norm)
        if self._clip_value is not None:
            for group in self._groups:
                group.clamp_gradients(self._clip_value)


def find_trained(model: BuiltTorchModel, trace: StepTrace) -> list[TrainedParameter]:
    """Return the parameters that have gradients in a traced step, in the order of the optimizer."""
    return [each for each in list_trained(model) if MODULE + each.name in trace.trained]


def find_varying(trace: StepTrace, states: Sequence[MemberState]) -> tuple[int, ...]:
    """Return the places of the numbers of a traced step that are not those of all these members."""
    return find_places(trace.numbers, [state.constants for state in states])


def _put(target: torch.Tensor, value: Any) -> None:
    """Copy what a step gives into a tensor with a row a member."""
    if isinstance(value, list):
        torch._foreach_copy_(list(target.unbind(0)), value)
    elif value is not target:
        target.copy_(value)


def _find(tree: dict[str, Any], name: str) -> Any:
    """Return a tensor of a member by its name in the stack."""
    kind, _, own = name.partition(".")
    if kind == "loss":
        return tree["loss"][own]
    return tree["parameters"][own] if own in tree["parameters"] else tree["buffers"][own]
