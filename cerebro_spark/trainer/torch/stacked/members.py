"""The states of members before they are stacked, read from a built model one after another. It computes no step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.members import Member
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.stacked.check import host_state
from cerebro_spark.trainer.torch.stacked.optimizers import Numbers, StackedOptimizer, check_numbers, find_stacked
from cerebro_spark.trainer.torch.stacked.structures import Structure

# PyTorch counts steps in float32, which is exact up to here.
_MAX_COUNT = 1 << 24


@dataclass(slots=True)
class MemberState:
    """A member with its state, ready to be stacked.

    Attributes:
        index: Its place in the bundle.
        member: What it was asked for.
        structure: What is known of its structure.
        current: Its trial, with its generators and counters.
        tree: Its whole state as `BuiltTorchModel.state` returns it; the tensors are its own.
        numbers: For each batch, and after the last one, the numbers of each group of parameters.
        schedule: The state of its scheduler after the last of these batches; None without one.
        key: What its structure is known by; structures that differ only in numbers have different ones.
        constants: The numbers among the arguments of its traced step.
        seconds: The time that reading it took.
    """

    index: int
    member: Member
    structure: Structure
    current: CurrentTrial[BuiltTorchModel]
    tree: dict[str, Any]
    numbers: list[list[Numbers]]
    schedule: Any
    key: Any = None
    constants: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def batches(self) -> int:
        """How many batches are stacked."""
        return len(self.numbers) - 1

    @property
    def optimizer_states(self) -> list[dict[str, Any]]:
        """What the optimizer keeps of each parameter."""
        states: list[dict[str, Any]] = self.tree["optimizer"]["state"]
        return states

    @property
    def mode(self) -> tuple[Any, ...]:
        """What must be the same for members of one stack, besides the structure of the model."""
        kind = find_stacked(self.current.model.model.optimizer)
        return tuple((kind.mode(group), kind.moment_names(group)) for group in self.numbers[0])


def read_state(
    index: int, member: Member, structure: Structure, current: CurrentTrial[BuiltTorchModel], batches: int
) -> MemberState:
    """Read the state of the trial that the built model holds, and step its scheduler for that many batches.

    Raises ValueError that says why it cannot be stacked.
    """
    model = current.model
    tree = _map_tensors(copy_plain(model.state()), lambda tensor: tensor.detach().clone())
    if "requires_grad" in tree:
        raise ValueError("it trains other parameters than when it was built")
    before = torch.get_rng_state(), host_state()
    numbers, schedule = _list_numbers(model, batches)
    if not torch.equal(before[0], torch.get_rng_state()) or before[1] != host_state():
        raise ValueError("its schedule draws random numbers")
    return MemberState(index, member, structure, current, tree, numbers, schedule)


def check_state(state: MemberState, kind: type[StackedOptimizer], trained: Sequence[int]) -> None:
    """Raise ValueError if stacked steps cannot go on from the state of the optimizer.

    Args:
        state: The state.
        kind: The optimizer.
        trained: The numbers of the parameters that have gradients, as the optimizer counts them.
    """
    if len({tuple(map(kind.mode, numbers)) for numbers in state.numbers}) > 1:
        raise ValueError("the schedule switches parts of the optimizer on or off")
    check_kept([state.optimizer_states[index] for index in trained], kind, state.numbers[0])


def check_kept(kept: Sequence[Mapping[str, Any]], kind: type[StackedOptimizer], groups: Sequence[Numbers]) -> None:
    """Raise ValueError if flat buffers cannot go on from what the optimizer keeps.

    Args:
        kept: What it keeps of each trained parameter.
        kind: The optimizer.
        groups: The numbers of each group of parameters.
    """
    if len({tuple(key for key, value in each.items() if value is not None) for each in kept}) > 1:
        raise ValueError("the optimizer keeps different things of different parameters")
    counts = {float(each["step"]) for each in kept if "step" in each}
    if len(counts) > 1 or any(count >= _MAX_COUNT for count in counts):
        raise ValueError("the parameters have taken different numbers of steps, or too many")
    wanted = {name for numbers in groups for name in kind.moment_names(numbers)}
    if any(each and not wanted <= each.keys() for each in kept):
        raise ValueError("the state of the optimizer is that of another optimizer")


def _list_numbers(model: BuiltTorchModel, batches: int) -> tuple[list[list[Numbers]], Any]:
    """Step the scheduler as a unit does, and return the numbers before each batch and after the last."""
    own = model.model
    name = type(own.optimizer).__name__

    def look() -> list[Numbers]:
        held = own.optimizer.param_groups
        groups: list[Numbers] = [{k: v for k, v in group.items() if k != "params"} for group in held]
        for group in groups:
            check_numbers(name, group)
        return copy.deepcopy(groups)

    if own.lr_scheduler is None:
        return [look()] * (batches + 1), None
    numbers = [look()]
    own.optimizer._opt_called = True  # the scheduler warns if it is stepped before the optimizer
    for _ in range(batches):
        if own.scheduler_step == "batch":
            own.lr_scheduler.step()
            numbers.append(look())
        else:
            numbers.append(numbers[0])
    return numbers, copy.deepcopy(own.lr_scheduler.state_dict())


def copy_plain(tree: Tree) -> Any:
    """Return a tree with new containers and the same tensors."""
    return _map_tensors(tree, lambda tensor: tensor)


def _map_tensors(tree: Tree, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if type(tree) is dict:
        return {key: _map_tensors(value, change) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_map_tensors(value, change) for value in tree)
    return copy.deepcopy(tree)
