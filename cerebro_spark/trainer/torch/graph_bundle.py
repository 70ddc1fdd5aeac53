"""Steps of several trials as one CUDA graph, each trial on a stream of its own. It knows no trainer and no feed.

The kernels of a trial are those of its steps alone, so they leave the same bits, whoever else is in the graph. The GPU
runs them side by side: small models leave most of it idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.branches import Branches
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.metrics import detach
from cerebro_spark.trainer.torch.shapes import row_count
from cerebro_spark.trainer.torch.steps import StepResult


class BundleResult(NamedTuple):
    """What a step of all members gave; it is valid until the next one.

    Attributes:
        losses: The loss of each member.
        weights: How much each loss counts: a tensor, or None for losses that are sums over rows.
        results: Of each member the loss, the output and the label.
    """

    losses: torch.Tensor
    weights: torch.Tensor | None
    results: list[StepResult]


WeighedResult = tuple[StepResult, Any]
"""What a step of one member gave, and how much its loss counts."""


class _Recording(NamedTuple):
    """A graph of steps of all members, with the memory of their batches and results, and what it depends on."""

    replay: Callable[[], None]
    inputs: Tensors
    result: BundleResult
    depends_on: Any

    def repeat(self, batch: Tensors) -> BundleResult:
        for name, tensor in batch.items():
            self.inputs[name].copy_(tensor)
        self.replay()
        return self.result


class GraphBundle:
    """Takes steps of several built models of one structure.

    Args:
        members: The steps of each of them.
        weigh: Of each of them, how much the loss of a batch counts; see BatchLoss.
        device: The GPU.

    Attributes:
        generators: The random generators of the members.
        captures: How many graphs were recorded.
    """

    def __init__(
        self, members: Sequence[GraphedSteps], weigh: Sequence[Callable[[Any, Any, int], Any]], device: torch.device
    ) -> None:
        self._members = members
        self._weigh = weigh
        self._branches = Branches(len(members), device)
        self.generators = self._branches.generators
        self._recordings: dict[int, _Recording] = {}
        self._checked: set[int] = set()
        self._are_ready = False
        self._has_rates = False
        self.captures = 0

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit of each member."""
        self._checked.clear()
        self._are_ready = self._has_rates = False
        with ExitStack() as stack:
            for member in self._members:
                stack.enter_context(member.unit())
            yield

    def take(self, batch: Tensors) -> BundleResult:
        """Take a step of every member, by a graph if their optimizers have a state.

        Args:
            batch: The batches of all members, a row a member.
        """
        self._are_ready = self._are_ready or all(member.is_ready for member in self._members)
        if not self._are_ready:
            return self._take_eagerly(batch)
        size = next(iter(batch.values())).shape[1]
        if size not in self._checked:
            needed = [member.dependencies() for member in self._members]
            recording = self._recordings.get(size)
            if recording is None or recording.depends_on != needed:
                self._record(batch, size, needed)
            self._checked.add(size)
        self._send_rates()
        return self._recordings[size].repeat(batch)

    def check_numbers(self) -> None:
        """Take notice that schedulers have been stepped.

        Raises ValueError if they change numbers that a graph has as constants.
        """
        self._has_rates = False
        if any(
            member.dependencies()[1] != depends_on[1]
            for recording in self._recordings.values()
            for member, depends_on in zip(self._members, recording.depends_on, strict=True)
        ):
            raise ValueError("its schedule changes more than the learning rate")

    def _send_rates(self) -> None:
        """Bring the learning rates up to date on the device, if they may have changed."""
        if not self._has_rates:
            for member in self._members:
                member.optimizer.send_rates()
        self._has_rates = True

    def _take_eagerly(self, batch: Tensors) -> BundleResult:
        self._checked.clear()

        def take(index: int) -> WeighedResult:
            loss, output, label = self._members[index].take_eagerly(_row(batch, index))
            # Without its graph of gradients, which would tie recorded steps to the stream of this one.
            return self._weigh_result(index, (loss, detach(output), label))

        return make_result(self._branches.run_in_turn(take))

    def _record(self, batch: Tensors, size: int, needed: Any) -> None:
        self._recordings.pop(size, None)
        self._send_rates()
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        replay, result = self._branches.record(lambda: self._step_side_by_side(inputs))
        self._recordings[size] = _Recording(replay, inputs, result, needed)
        self.captures += 1

    def _step_side_by_side(self, inputs: Tensors) -> BundleResult:
        def take(index: int) -> WeighedResult:
            return self._weigh_result(index, self._members[index].take_recorded(_row(inputs, index)))

        return make_result(self._branches.run_side_by_side(take))

    def _weigh_result(self, index: int, result: StepResult) -> WeighedResult:
        return weigh_result(self._weigh[index], result)


def _row(batch: Tensors, index: int) -> Tensors:
    return {name: tensor[index] for name, tensor in batch.items()}


@torch.no_grad()
def weigh_result(weigh: Callable[[Any, Any, int], Any], result: StepResult) -> WeighedResult:
    """Return a result, and how much its loss counts."""
    _, output, label = result
    return result, weigh(output, label, row_count(label))


def make_result(results: Sequence[WeighedResult]) -> BundleResult:
    """Return the results of all members as one."""
    own, weights = [result for result, _ in results], [weight for _, weight in results]
    losses = torch.stack([loss for loss, _, _ in own])
    if weights[0] is None:
        return BundleResult(losses, None, own)
    if isinstance(weights[0], torch.Tensor):
        return BundleResult(losses, torch.stack(weights), own)
    return BundleResult(losses, torch.full_like(losses, weights[0], dtype=torch.float64), own)
