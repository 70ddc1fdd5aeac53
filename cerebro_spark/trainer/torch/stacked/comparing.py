"""Compares stacks of PyTorch models with single steps, before they are used."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from cerebro_spark.trainer.checkpoints.arrays import MemorySource
from cerebro_spark.trainer.checkpoints.tree import flatten
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.stacked.bundling import Bundling
from cerebro_spark.trainer.torch.stacked.check import SingleRun, StepWitness, find_difference, host_state
from cerebro_spark.trainer.torch.stacked.members import MemberState
from cerebro_spark.trainer.torch.stacked.stack import Stack


class StepObserver(Protocol):
    """Sees the loss of each step, the output and the label."""

    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None: ...


class StackComparing(Bundling[BuiltTorchModel, MemberState, Stack]):
    """The part of a PyTorch trainer that compares stacks."""

    @abstractmethod
    def _compute_loss(self, model: BuiltTorchModel, tensors: Tensors) -> tuple[torch.Tensor, Any, Any]:
        """Return the loss of a batch, the output and the label."""

    @abstractmethod
    def _take_steps(
        self, model: BuiltTorchModel, batches: Iterable[Tensors], collector: StepObserver, eagerly: bool = False
    ) -> None:
        """Take a step for each batch; `eagerly` even if the model has faster steps."""

    def _time_single(self, state: MemberState, batches: Sequence[Tensors]) -> float:
        return self._run_single(state, [{name: part[0] for name, part in batch.items()} for batch in batches]).seconds

    def _compare(self, stack: Stack, states: Sequence[MemberState], batches: Sequence[Tensors]) -> float:
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
