"""Trains members of a bundle of PyTorch models as stacks."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.stacked.buffers import list_trained
from cerebro_spark.trainer.torch.stacked.bundling import Outcome as Outcome
from cerebro_spark.trainer.torch.stacked.bundling import count_batches, feed_of, rest_of
from cerebro_spark.trainer.torch.stacked.check import host_state
from cerebro_spark.trainer.torch.stacked.comparing import StackComparing
from cerebro_spark.trainer.torch.stacked.members import MemberState, read_state
from cerebro_spark.trainer.torch.stacked.refusals import refuse_model, refuse_search
from cerebro_spark.trainer.torch.stacked.stack import Stack, check_member, find_varying, trace_step
from cerebro_spark.trainer.torch.stacked.structures import Structure
from cerebro_spark.trainer.torch.stacked.trace import StepTrace
from cerebro_spark.types import Metrics


class StackedTraining(StackComparing):
    """The part of a PyTorch trainer that trains bundles."""

    device: torch.device

    @abstractmethod
    def _make_collector(
        self, model: BuiltTorchModel, carried: Metrics | None, metrics: Mapping[str, Any] | None = None
    ) -> MetricCollector:
        """Return a collector of the metrics of a unit; `metrics` replace those of the model."""

    # Who is stacked

    def _refuse_search(self) -> str | None:
        return refuse_search(self.hooks, self.resources, self.device)

    def _refuse_model(self, model: BuiltTorchModel) -> str | None:
        return refuse_model(model)

    def _name_model(self, model: BuiltTorchModel) -> str:
        return type(model.model.module).__name__

    def _read_state(
        self, index: int, member: Member, structure: Structure, current: CurrentTrial[BuiltTorchModel]
    ) -> MemberState:
        return read_state(index, member, structure, current, count_batches(member))

    def _trace(self, state: MemberState) -> StepTrace:
        (batch,) = self._load_batches([state], 1)
        self._begin_unit(state.current.model, training=True)
        before = host_state()
        with self._outer_generators():
            own = {name: part[0] for name, part in batch.items()}
            model = state.current.model
            trace = trace_step(model, self._compute_loss, list_trained(model), state.tree, own)
            if host_state() != before:
                raise ValueError("it draws random numbers from Python or NumPy")
        return trace

    def _family_of(self, state: MemberState) -> Any:
        own = state.current.model.model
        return type(own.optimizer), own.clip_norm, own.clip_value

    def _check_member(self, state: MemberState) -> None:
        check_member(state.structure.trace, state)

    def _mode_of(self, state: MemberState) -> Any:
        return state.mode

    # Stacks

    def _find_varying(self, trace: StepTrace, states: Sequence[MemberState]) -> tuple[int, ...]:
        return find_varying(trace, states)

    def _make_stack(self, trace: StepTrace, states: Sequence[MemberState]) -> Stack:
        return Stack(states[0].current.model, trace, states)

    def _run_stack(self, stack: Stack, states: Sequence[MemberState]) -> list[MetricCollector]:
        collectors = [self._copy_collector(state.current.model, state.member.carried) for state in states]
        feeds = [feed_of(state.member) for state in states]
        results = []
        for number, batch in enumerate(self._batches.load_together(feeds, states[0].batches)):
            result = stack.step(batch, states, number)
            results.append((result.loss, result.weight))
            if not collectors[0].counts_only_losses:
                for row, collector in enumerate(collectors):
                    loss, _, output = result.of(row)
                    collector.add(
                        loss, output, self._pick_label({name: batch[name][row] for name in self.columns.labels})
                    )
        if collectors[0].counts_only_losses:
            _add_losses(results, feeds[0].batch_size, collectors)
        return collectors

    def _copy_collector(self, model: BuiltTorchModel, carried: Metrics | None) -> MetricCollector:
        """Return a collector with metric objects of its own: the members of a bundle take turns with each batch."""
        metrics = model.model.metrics
        own = {name: copy.deepcopy(each) if is_metric_object(each) else each for name, each in metrics.items()}
        return self._make_collector(model, carried, own)

    @abstractmethod
    def _pick_label(self, tensors: Tensors) -> Any:
        """Return the label of a batch; a dict of several."""

    def _take_from_stack(self, stack: Stack, row: int, state: MemberState) -> None:
        self._restore(state.current.model, stack.leave(row, state))

    def _train_rest(self, state: MemberState, seen: MetricCollector) -> Metrics:
        self._take_steps(state.current.model, self._batches.load(rest_of(state)), seen, eagerly=True)
        return seen.collect()


def _add_losses(results: Sequence[tuple[Any, Any]], rows: int, collectors: Sequence[MetricCollector]) -> None:
    """Count the losses of all batches for each member."""
    losses = torch.stack([torch.stack(loss) if isinstance(loss, list) else loss for loss, _ in results], 1)
    weights: Any = [weight for _, weight in results]
    for row, collector in enumerate(collectors):
        own = [weight[row] for weight in weights] if isinstance(weights[0], torch.Tensor | list) else weights
        collector.add_losses(losses[row], None if own[0] is None else own, rows)
