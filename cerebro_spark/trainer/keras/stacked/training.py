"""Trains members of a bundle of Keras models on PyTorch as stacks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import keras
import numpy as np
import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.keras.backend import KerasBackend
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel, default_generator
from cerebro_spark.trainer.keras.metrics import read_metrics, start_metrics
from cerebro_spark.trainer.keras.stacked.refusals import refuse_keras_model, refuse_keras_search
from cerebro_spark.trainer.keras.stacked.stack import KerasMember, KerasStack
from cerebro_spark.trainer.keras.stacked.trace import StepTrace, read_values, write_values
from cerebro_spark.trainer.torch.batches import Conversion, TensorBatches, Tensors
from cerebro_spark.trainer.torch.stacked.bundling import Bundling, count_batches, feed_of, rest_of
from cerebro_spark.trainer.torch.stacked.calls import find_places
from cerebro_spark.trainer.torch.stacked.check import find_difference, host_state
from cerebro_spark.trainer.torch.stacked.structures import Structure
from cerebro_spark.trainer.torch.tensors import widen
from cerebro_spark.types import Metrics


class _SingleRun(NamedTuple):
    """What some single steps of a member left.

    Attributes:
        values: The values of all variables.
        generator: The state of PyTorch's generator.
        seconds: The time of the fastest step.
    """

    values: list[torch.Tensor]
    generator: torch.Tensor
    seconds: float


class KerasBatches(TensorBatches):
    """Batches of tensors as Keras makes them."""

    def _find_conversion(self, name: str, dtype: np.dtype[Any]) -> Conversion:
        like: torch.Tensor = keras.ops.convert_to_tensor(np.zeros(1, dtype))
        return lambda rows: widen(rows, dtype).to(like.dtype)


class KerasBundling(Bundling[BuiltKerasModel, KerasMember, KerasStack]):
    """The part of a Keras trainer that trains bundles on PyTorch."""

    _backend: KerasBackend

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._batches = KerasBatches(columns, torch.device("cpu"), None)

    # Who is stacked

    def _refuse_search(self) -> str | None:
        return refuse_keras_search(self.hooks, self.resources)

    def _refuse_model(self, model: BuiltKerasModel) -> str | None:
        return refuse_keras_model(model)

    def _name_model(self, model: BuiltKerasModel) -> str:
        return type(model.model).__name__

    def _read_state(
        self, index: int, member: Member, structure: Structure, current: CurrentTrial[BuiltKerasModel]
    ) -> KerasMember:
        self._start_metrics(current.model, member)
        return KerasMember(index, member, structure, current, read_values(current.model), count_batches(member))

    def _start_metrics(self, model: BuiltKerasModel, member: Member) -> None:
        model.model.reset_metrics()
        start_metrics(model.metrics, member.carried)

    def _trace(self, state: KerasMember) -> StepTrace:
        # The first step of a model finds out what later ones know already, such as the shapes of labels.
        self._run_single(state, 1)
        (batch,) = self._load_batches([state], 1)
        with self._outer_generators():
            write_values(state.current.model, state.values)
            before = host_state()
            trace = StepTrace(state.current.model, {name: part[0] for name, part in batch.items()})
            if host_state() != before:
                raise ValueError("it draws random numbers from Python or NumPy")
        return trace

    def _family_of(self, state: KerasMember) -> Any:
        return type(state.current.model.model.optimizer)

    # Stacks

    def _find_varying(self, trace: StepTrace, states: Sequence[KerasMember]) -> tuple[int, ...]:
        return find_places(trace.numbers, [state.constants for state in states])

    def _make_stack(self, trace: StepTrace, states: Sequence[KerasMember]) -> KerasStack:
        return KerasStack(trace, len(states), self._find_varying(trace, states))

    def _time_single(self, state: KerasMember, batches: Sequence[Tensors]) -> float:
        return self._run_single(state, len(batches)).seconds

    def _compare(self, stack: KerasStack, states: Sequence[KerasMember], batches: Sequence[Tensors]) -> float:
        stack.fill(states)
        for number, batch in enumerate(batches):
            stack.step({name: part.clone() for name, part in batch.items()}, states, number)
        fastest = float("inf")
        for row, state in enumerate(states):
            single = self._run_single(state, len(batches))
            seen = stack.named_values(row)
            wanted = dict(zip(seen, single.values, strict=True))
            place = find_difference((seen, stack.generator_state(row)), (wanted, single.generator))
            if place is not None:
                raise ValueError(f"a stacked step leaves other bits than a single one (at {place})")
            fastest = min(fastest, single.seconds)
        return fastest

    def _run_single(self, state: KerasMember, batches: int) -> _SingleRun:
        """Take single steps of a member in the built model, from its state.

        Raises ValueError if they draw random numbers from Python or NumPy.
        """
        model, fastest = state.current.model, float("inf")
        with self._outer_generators():
            write_values(model, state.values)
            self._restore_generators(state.current.generators)
            default_generator()
            before = host_state()
            for batch in islice(feed_of(state.member), batches):
                began = time.perf_counter()
                self._backend.run(model, "train", [batch])
                fastest = min(fastest, time.perf_counter() - began)
            if host_state() != before:
                raise ValueError("it draws random numbers from Python or NumPy")
            return _SingleRun(read_values(model), torch.get_rng_state(), fastest)

    # A unit

    def _run_stack(self, stack: KerasStack, states: Sequence[KerasMember]) -> Sequence[None]:
        feeds = [feed_of(state.member) for state in states]
        for number, batch in enumerate(self._batches.load_together(feeds, states[0].batches)):
            stack.step(batch, states, number)
        return [None] * len(states)

    def _take_from_stack(self, stack: KerasStack, row: int, state: KerasMember) -> None:
        write_values(state.current.model, stack.values(row))

    def _train_rest(self, state: KerasMember, seen: None) -> Metrics:
        default_generator()
        self._backend.run(state.current.model, "train", rest_of(state))
        return read_metrics(state.current.model.metrics)
