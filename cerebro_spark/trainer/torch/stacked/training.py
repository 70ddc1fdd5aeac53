"""Trains members of a bundle as stacks. What is not stacked, or not yet known to be exact, is trained one by one."""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources, TrainedMember
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.feed import Columns, Feed
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.stacked.buffers import list_trained
from cerebro_spark.trainer.torch.stacked.check import host_state
from cerebro_spark.trainer.torch.stacked.comparing import StackComparing, feed_of
from cerebro_spark.trainer.torch.stacked.members import MemberState, read_state
from cerebro_spark.trainer.torch.stacked.refusals import refuse_model, refuse_search
from cerebro_spark.trainer.torch.stacked.stack import Stack, check_member, trace_step
from cerebro_spark.trainer.torch.stacked.structures import Structure, explain, is_out_of_memory
from cerebro_spark.trainer.torch.stacked.trace import StepTrace
from cerebro_spark.trainer.unit_errors import check_loss
from cerebro_spark.types import DigestName, Metrics

# Structures that are remembered. Trials whose models are like no others would fill the memory.
_KNOWN = 256

Outcome = TrainedMember | Exception


class StackedTraining(StackComparing):
    """The part of a PyTorch trainer that trains bundles."""

    device: torch.device

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self.structures: dict[Any, Structure] = {}
        """What is known of the structures of trials that came in bundles."""
        self._constants: dict[Any, list[float]] = {}
        self._families: dict[Any, Structure] = {}

    @abstractmethod
    def _make_collector(
        self, model: BuiltTorchModel, carried: Metrics | None, metrics: Mapping[str, Any] | None = None
    ) -> MetricCollector:
        """Return a collector of the metrics of a unit; `metrics` replace those of the model."""

    def train_together(self, members: Sequence[Member], digest: DigestName = DIGEST) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        if len(members) > 1 and self._stacks_search():
            for states in self._group(self._read(members)):
                outcomes.update(self._train_group(states[0].structure, states, digest))
        for index, member in enumerate(members):
            if index not in outcomes:
                outcomes[index] = self._train_member(member, digest)
        return [outcomes[index] for index in range(len(members))]

    def _stacks_search(self) -> bool:
        whole = self.structures.setdefault(None, Structure("this search"))
        if not whole.judged:
            reason = refuse_search(self.hooks, self.resources, self.device)
            whole.judged = True
            if reason is not None:
                whole.refuse(reason)
        return whole.reason is None

    # Reading

    def _read(self, members: Sequence[Member]) -> list[MemberState]:
        """Return the states of those members that may be stacked. What fails here fails again when trained alone."""
        found = (self._read_member(index, member) for index, member in enumerate(members))
        return [state for state in found if state is not None]

    def _read_member(self, index: int, member: Member) -> MemberState | None:
        began = time.perf_counter()
        batches = _count_batches(member)
        if not batches:
            return None
        known, _ = self.models.find_build(member.params)
        if known is not None and not self._is_stackable(self._find_structure(known, member), known):
            return None
        try:
            state = self._load_state(index, member, batches)
        except Exception:
            self._current = None
            return None  # its own unit says what is wrong
        if state is not None:
            state.seconds = time.perf_counter() - began
        return state

    def _load_state(self, index: int, member: Member, batches: int) -> MemberState | None:
        unit = member.unit
        if member.source is None:
            self.build(unit.trial, member.params)
        else:
            self.load(unit.trial, member.params, member.source, digest=member.digest, warm_start=member.warm_start)
        current = self._require_unchanged()
        self._current = None
        current.digest = ""
        structure = self._find_structure(current.model, member)
        if not self._is_stackable(structure, current.model):
            return None
        with self._guarded(current, unit), self._own_generators(current):
            if current.epoch and unit.epoch > current.epoch:
                self._end_epochs(current.model, unit.epoch - current.epoch)
            state = read_state(index, member, structure, current, batches)
        return state if self._join_family(state) else None

    def _join_family(self, state: MemberState) -> bool:
        """Trace the step of a new structure, and take it for one that differs only in numbers; False if refused."""
        key = self._structure_key(state.current.model, state.member)
        if key not in self._constants:
            try:
                trace = self._trace(state)
            except Exception as error:
                state.structure.refuse(explain(error))
            else:
                own = state.current.model.model
                family = trace.key, type(own.optimizer), own.clip_norm, own.clip_value, state.structure.name
                state.structure.trace = trace
                self.structures[key] = self._families.setdefault(family, state.structure)
                self._constants[key] = trace.numbers
            self._drop_changed(state.structure, [state])
        state.key, state.structure = key, self.structures[key]
        state.constants = self._constants.get(key, [])
        if state.structure.trace is not None:
            check_member(state.structure.trace, state)
        return state.structure.reason is None

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

    def _is_stackable(self, structure: Structure, model: BuiltTorchModel) -> bool:
        if structure.reason is None and not structure.judged:
            reason = refuse_model(model)
            if reason is not None:
                structure.refuse(reason)
        return structure.reason is None

    def _group(self, states: Sequence[MemberState]) -> list[list[MemberState]]:
        """Return those that can be computed together, if there are two at least."""
        groups: dict[Any, list[MemberState]] = {}
        for state in states:
            groups.setdefault((id(state.structure), len(state.numbers), state.mode), []).append(state)
        return [group for group in groups.values() if len(group) > 1]

    def _structure_key(self, model: BuiltTorchModel, member: Member) -> Any:
        feed = feed_of(member)
        # A model that is not kept is like no other.
        signature = self.models.signature_of(model) or id(model)
        shapes = [(name, str(feed.arrays[name].dtype), feed.arrays[name].shape[1:]) for name in self.columns.names]
        return signature, feed.batch_size, str(shapes)

    def _find_structure(self, model: BuiltTorchModel, member: Member) -> Structure:
        key = self._structure_key(model, member)
        if key not in self.structures and len(self.structures) > _KNOWN:
            self.structures.clear()
            self._constants.clear()
            self._families.clear()
        name = f"{type(model.model.module).__name__} with batches of {feed_of(member).batch_size}"
        return self.structures.setdefault(key, Structure(name))

    # Stacks

    def _train_group(
        self, structure: Structure, states: Sequence[MemberState], digest: DigestName
    ) -> dict[int, Outcome]:
        """Train members of one structure; those that are not in the answer are to be trained alone."""
        outcomes: dict[int, Outcome] = {}
        left = list(states)
        while len(left) > 1 and structure.reason is None:
            width = structure.widths(len(left))[0]
            try:
                if structure.judged:
                    outcomes.update(self._train_stack(left[:width], digest))
                    del left[:width]
                else:
                    self._judge(structure, left)
            except Exception as error:
                structure.halve(width) if is_out_of_memory(error) else structure.refuse(explain(error))
            self._drop_changed(structure, states)
        return outcomes

    def _drop_changed(self, structure: Structure, states: Sequence[MemberState]) -> None:
        """Have members trained alone if a step of them has changed what no checkpoint saves."""
        for model in {id(state.current.model): state.current.model for state in states}.values():
            change = self._discard_changed(model)
            if change is not None and structure.reason is None:
                structure.refuse(f"{change} in a step")

    # A unit

    def _train_stack(self, states: Sequence[MemberState], digest: DigestName) -> dict[int, Outcome]:
        """Train members as one stack; those that are not in the answer are to be trained alone."""
        stack = self._find_stack(states[0].structure, states)
        began = time.perf_counter()
        stack.fill(states)
        collectors = [self._copy_collector(state.current.model, state.member.carried) for state in states]
        self._run_stack(stack, states, collectors)
        share = (time.perf_counter() - began) / len(states)
        outcomes: dict[int, Outcome] = {}
        for row, (state, collector) in enumerate(zip(states, collectors, strict=True)):
            outcome = self._leave_stack(stack, row, state, collector, share, digest)
            outcomes[state.index] = outcome
            change = state.current.model.snapshot.find_change() if isinstance(outcome, Exception) else None
            if change is not None:
                # The built model must not be used again: the others are trained alone.
                state.structure.refuse(f"{change} in a step")
                break
        return outcomes

    def _copy_collector(self, model: BuiltTorchModel, carried: Metrics | None) -> MetricCollector:
        """Return a collector with metric objects of its own: the members of a bundle take turns with each batch."""
        metrics = model.model.metrics
        own = {name: copy.deepcopy(each) if is_metric_object(each) else each for name, each in metrics.items()}
        return self._make_collector(model, carried, own)

    def _run_stack(self, stack: Stack, states: Sequence[MemberState], collectors: Sequence[MetricCollector]) -> None:
        """Take the steps of all batches that have the full size."""
        feeds = [feed_of(state.member) for state in states]
        results = []
        for number, batch in enumerate(self._batches.load_together(feeds, len(states[0].numbers) - 1)):
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

    @abstractmethod
    def _pick_label(self, tensors: Tensors) -> Any:
        """Return the label of a batch; a dict of several."""

    def _leave_stack(
        self,
        stack: Stack,
        row: int,
        state: MemberState,
        collector: MetricCollector,
        share: float,
        digest: DigestName,
    ) -> Outcome:
        """Train a member on what is left of its feed, and save it."""
        began = time.perf_counter()
        current, unit, file = state.current, state.member.unit, BytesIO()
        try:
            self._restore(current.model, stack.leave(row, state))
            current.generators = {**current.generators, "torch": stack.generator_state(row).numpy()}
            with self._guarded(current, unit), self._own_generators(current):
                self._begin_unit(current.model, training=True)
                self._take_steps(current.model, self._batches.load(_rest(state)), collector, eagerly=True)
                metrics = collector.collect()
                check_loss(metrics, unit, current.params)
            current.epoch, current.units = unit.epoch, current.units + 1
            self._current = current
            saved = self.save(file, digest)
            values = self._finish_member(state.member, metrics)
        except Exception as error:
            self._current = None
            return error
        seconds = state.seconds + share + time.perf_counter() - began
        return TrainedMember(metrics, values, file, saved, stack.width, seconds, "stacked")


def _add_losses(results: Sequence[tuple[Any, Any]], rows: int, collectors: Sequence[MetricCollector]) -> None:
    """Count the losses of all batches for each member."""
    losses = torch.stack([torch.stack(loss) if isinstance(loss, list) else loss for loss, _ in results], 1)
    weights: Any = [weight for _, weight in results]
    for row, collector in enumerate(collectors):
        own = [weight[row] for weight in weights] if isinstance(weights[0], torch.Tensor | list) else weights
        collector.add_losses(losses[row], None if own[0] is None else own, rows)


def _count_batches(member: Member) -> int:
    """Return how many batches of a feed have its full size; those come first."""
    feed = member.feed
    return feed.sizes.count(feed.batch_size) if isinstance(feed, Feed) else 0


def _rest(state: MemberState) -> Feed:
    """Return the rows after the batches that have the full size."""
    feed = feed_of(state.member)
    order = feed.order[(len(state.numbers) - 1) * feed.batch_size :]
    return Feed(feed.arrays, order, batch_size=feed.batch_size, key=feed.key, smallest=feed.smallest)
