"""Makes stacks, compares them with single steps before they are used, and finds out how many members are fastest."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.checkpoints.arrays import MemorySource
from cerebro_spark.trainer.checkpoints.tree import flatten
from cerebro_spark.trainer.feed import Feed
from cerebro_spark.trainer.framework_trainer import FrameworkTrainer
from cerebro_spark.trainer.torch.batches import TensorBatches, Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.stacked.check import SingleRun, StepWitness, find_difference, host_state
from cerebro_spark.trainer.torch.stacked.members import MemberState
from cerebro_spark.trainer.torch.stacked.stack import Stack, find_varying
from cerebro_spark.trainer.torch.stacked.structures import Structure

# Batches that are compared with single steps, and batches that are timed.
_COMPARED, _TIMED = 2, 4
# Half of the members must be that much faster: times of single steps vary.
_FASTER = 0.9


class StepObserver(Protocol):
    """Sees the loss of each step, the output and the label."""

    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None: ...


class StackComparing(FrameworkTrainer[BuiltTorchModel]):
    """The part of a PyTorch trainer that makes stacks.

    If `widths_are_tried`, the fastest width is looked for; if not, all members of a structure are stacked.
    """

    _batches: TensorBatches
    widths_are_tried = True

    @abstractmethod
    def _compute_loss(self, model: BuiltTorchModel, tensors: Tensors) -> tuple[torch.Tensor, Any, Any]:
        """Return the loss of a batch, the output and the label."""

    @abstractmethod
    def _take_steps(
        self, model: BuiltTorchModel, batches: Iterable[Tensors], collector: StepObserver, eagerly: bool = False
    ) -> None:
        """Take a step for each batch; `eagerly` even if the model has faster steps."""

    def _judge(self, structure: Structure, states: Sequence[MemberState]) -> None:
        """Find the fastest width: all members, half of them, and so on while that is clearly faster; or one."""
        best, width = float("inf"), len(states)
        while width > 1:
            seconds = self._time(self._find_stack(structure, states[:width]), states[:width])
            if seconds > _FASTER * best:
                break
            structure.limit = None if width == len(states) else width
            best, width = seconds, width // 2 if self.widths_are_tried else 1
        structure.judged = True
        if self.widths_are_tried and structure.single_seconds <= best:
            alone, together = (f"{seconds * 1e3:.3f} ms" for seconds in (structure.single_seconds, best))
            structure.refuse(f"a single step takes {alone}, a stacked one {together} a member")

    def _time(self, stack: Stack, states: Sequence[MemberState]) -> float:
        """Return the time of the fastest stacked step, a member. Afterwards the stack must be filled again."""
        stack.fill(states)
        fastest = float("inf")
        for number, batch in enumerate(self._load_batches(states, _TIMED)):
            began = time.perf_counter()
            stack.step(batch, states, number)
            fastest = min(fastest, time.perf_counter() - began)
        return fastest / stack.width

    def _find_stack(self, structure: Structure, states: Sequence[MemberState]) -> Stack:
        """Return a stack of this width. It is compared with single steps before it computes members of a new structure.

        Raises ValueError that says what differs.
        """
        if structure.trace is None:
            raise ValueError("its step is not traced")
        key = states[0].mode, len(states), find_varying(structure.trace, states)
        if key not in structure.stacks:
            structure.keep(key, Stack(states[0].current.model, structure.trace, states))
        stack = structure.stacks[key]
        if not {state.key for state in states} <= stack.compared:
            seconds = self._compare(stack, states, self._load_batches(states, _COMPARED))
            structure.single_seconds = min(structure.single_seconds, seconds)
            stack.compared |= {state.key for state in states}
        return stack

    def _compare(self, stack: Stack, states: Sequence[MemberState], batches: Sequence[Tensors]) -> float:
        """Compare stacked steps with single ones; return the time of the fastest single one.

        Raises ValueError that says what differs.
        """
        stack.fill(states)
        # Of copies: a step may change its batch in place.
        copies = [{name: part.clone() for name, part in batch.items()} for batch in batches]
        results = [stack.step(batch, states, number) for number, batch in enumerate(copies)]
        fastest = float("inf")
        for row, state in enumerate(states):
            single = self._run_single(state, [{name: part[row] for name, part in batch.items()} for batch in batches])
            if single.draws_on_host:
                raise ValueError("it draws random numbers from Python or NumPy")
            tree = stack.leave(row, state)
            tree["optimizer"]["groups"] = state.numbers[len(batches)]
            tree["scheduler"] = single.tree["scheduler"]
            seen = [result.of(row) for result in results], tree, stack.generator_state(row)
            place = find_difference(seen, (single.results, single.tree, single.generator))
            if place is not None:
                raise ValueError(f"a stacked step leaves other bits than a single one (at {place})")
            fastest = min(fastest, single.seconds)
        return fastest

    def _run_single(self, state: MemberState, batches: Sequence[Tensors]) -> SingleRun:
        """Take single steps of a member in the built model, from its state."""
        model, fastest = state.current.model, float("inf")
        witness = StepWitness(model.loss.weigh)
        with self._outer_generators():
            self._restore(model, state.tree)
            self._restore_generators(state.current.generators)
            self._begin_unit(model, training=True)
            before = host_state()
            for batch in batches:
                began = time.perf_counter()
                self._take_steps(model, [{name: part.clone() for name, part in batch.items()}], witness, True)
                fastest = min(fastest, time.perf_counter() - began)
            return SingleRun(witness.results, model.state(), torch.get_rng_state(), host_state() != before, fastest)

    def _restore(self, model: BuiltTorchModel, tree: dict[str, Any]) -> None:
        json, arrays = flatten({"model": tree}, self._wrap_array)
        model.restore(MemorySource(arrays, json))

    def _load_batches(self, states: Sequence[MemberState], count: int) -> list[Tensors]:
        """Return the first batches of all members, stacked."""
        most = min(count, len(states[0].numbers) - 1)
        return list(self._batches.load_together([feed_of(state.member) for state in states], most))


def feed_of(member: Member) -> Feed:
    """Return the feed of a member that is stacked."""
    feed = member.feed
    assert isinstance(feed, Feed)
    return feed
