"""Trains members of a bundle as stacks. What is not stacked, or not yet known to be exact, is trained one by one."""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Protocol

import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources, TrainedMember
from cerebro_spark.trainer.checkpoints.arrays import MemorySource
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.checkpoints.tree import flatten
from cerebro_spark.trainer.feed import Columns, Feed
from cerebro_spark.trainer.framework_trainer import FrameworkTrainer
from cerebro_spark.trainer.torch.batches import TensorBatches, Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.stacked.check import SingleRun, StepWitness, find_difference, host_state
from cerebro_spark.trainer.torch.stacked.members import MemberState, read_state
from cerebro_spark.trainer.torch.stacked.refusals import refuse_model, refuse_search
from cerebro_spark.trainer.torch.stacked.stack import Stack, trace_step
from cerebro_spark.trainer.torch.stacked.structures import Structure, explain, is_out_of_memory
from cerebro_spark.trainer.torch.stacked.trace import StepTrace
from cerebro_spark.trainer.unit_errors import check_loss
from cerebro_spark.types import DigestName, Metrics

# Batches that are compared with single steps, and batches that are timed.
_COMPARED, _TIMED = 2, 4
# Structures that are remembered. Trials whose models are like no others would fill the memory.
_KNOWN = 256

Outcome = TrainedMember | Exception


class StepObserver(Protocol):
    """Sees the loss of each step, the output and the label."""

    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None: ...


class StackedTraining(FrameworkTrainer[BuiltTorchModel]):
    """The part of a PyTorch trainer that trains bundles."""

    device: torch.device
    _batches: TensorBatches

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self.structures: dict[Any, Structure] = {}
        """What is known of the structures of trials that came in bundles."""
        self.widths_are_tried = True
        """Whether the fastest width is looked for. If not, all members of a structure are stacked."""

    @abstractmethod
    def _compute_loss(self, model: BuiltTorchModel, tensors: Tensors) -> tuple[torch.Tensor, Any, Any]:
        """Return the loss of a batch, the output and the label."""

    @abstractmethod
    def _take_steps(self, model: BuiltTorchModel, batches: Iterable[Tensors], collector: StepObserver) -> None:
        """Take a step for each batch."""

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
            return read_state(index, member, structure, current, batches)

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

    def _find_structure(self, model: BuiltTorchModel, member: Member) -> Structure:
        feed = member.feed
        assert isinstance(feed, Feed)
        # A model that is not kept is like no other.
        signature = self.models.signature_of(model) or id(model)
        shapes = [(name, str(feed.arrays[name].dtype), feed.arrays[name].shape[1:]) for name in self.columns.names]
        key = signature, feed.batch_size, str(shapes)
        name = f"{type(model.model.module).__name__} with batches of {feed.batch_size}"
        while len(self.structures) > _KNOWN:
            del self.structures[next(each for each in self.structures if each not in (None, key))]
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
        change = self._discard_changed(states[0].current.model)
        if change is not None and structure.reason is None:
            structure.refuse(f"{change} in a step")

    def _judge(self, structure: Structure, states: Sequence[MemberState]) -> None:
        """Find the fastest width: all members, half of them, and so on while that is faster; or one."""
        best, width = float("inf"), len(states)
        while width > 1:
            seconds = self._time(self._find_stack(structure, states[:width]), states[:width])
            if seconds >= best:
                break
            structure.limit = None if width == len(states) else width
            best, width = seconds, width // 2 if self.widths_are_tried else 1
        structure.judged = True
        if self.widths_are_tried and structure.single_seconds <= best:
            alone, together = (f"{seconds * 1e3:.3f} ms" for seconds in (structure.single_seconds, best))
            structure.refuse(f"a single step takes {alone}, a stacked one {together} a member")

    def _time(self, stack: Stack, states: Sequence[MemberState]) -> float:
        """Return the time of the fastest stacked step, a member. The stack is left as it was."""
        stack.fill(states)
        fastest = float("inf")
        for number, batch in enumerate(self._load_batches(states, _TIMED)):
            began = time.perf_counter()
            stack.step(batch, states, number)
            fastest = min(fastest, time.perf_counter() - began)
        return fastest / stack.width

    def _find_stack(self, structure: Structure, states: Sequence[MemberState]) -> Stack:
        """Return a stack of this width, which is compared with single steps when it is made."""
        key = states[0].mode, len(states)
        if key not in structure.stacks:
            self._begin_unit(states[0].current.model, training=True)
            batches = self._load_batches(states, _COMPARED)
            stack = Stack(states[0].current.model, self._find_trace(structure, states[0], batches[0]), states)
            seconds = self._compare(stack, states, batches)
            structure.single_seconds = min(structure.single_seconds, seconds)
            structure.keep(key, stack)
        return structure.stacks[key]

    def _find_trace(self, structure: Structure, state: MemberState, batch: Tensors) -> StepTrace:
        if structure.trace is None:
            before = host_state()
            with self._outer_generators():
                own = {name: part[0].clone() for name, part in batch.items()}
                structure.trace = trace_step(state.current.model, self._compute_loss, state, own)
                if host_state() != before:
                    raise ValueError("it draws random numbers from Python or NumPy")
        return structure.trace

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
                self._take_steps(model, [{name: part.clone() for name, part in batch.items()}], witness)
                fastest = min(fastest, time.perf_counter() - began)
            return SingleRun(witness.results, model.state(), torch.get_rng_state(), host_state() != before, fastest)

    def _restore(self, model: BuiltTorchModel, tree: dict[str, Any]) -> None:
        json, arrays = flatten({"model": tree}, self._wrap_array)
        model.restore(MemorySource(arrays, json))

    def _load_batches(self, states: Sequence[MemberState], count: int) -> list[Tensors]:
        """Return the first batches of all members, stacked."""
        most = min(count, len(states[0].numbers) - 1)
        return list(self._batches.load_together([_feed(state) for state in states], most))

    # A unit

    def _train_stack(self, states: Sequence[MemberState], digest: DigestName) -> dict[int, Outcome]:
        """Train members as one stack; those that are not in the answer are to be trained alone."""
        stack = self._find_stack(states[0].structure, states)
        began = time.perf_counter()
        stack.fill(states)
        collectors = [self._copy_collector(state) for state in states]
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

    def _copy_collector(self, state: MemberState) -> MetricCollector:
        """Return a collector with metric objects of its own: the members of a stack take turns with each batch."""
        metrics = state.current.model.model.metrics
        own = {name: copy.deepcopy(each) if is_metric_object(each) else each for name, each in metrics.items()}
        return self._make_collector(state.current.model, state.member.carried, own)

    def _run_stack(self, stack: Stack, states: Sequence[MemberState], collectors: Sequence[MetricCollector]) -> None:
        """Take the steps of all batches that have the full size."""
        feeds = [_feed(state) for state in states]
        results = []
        for number, batch in enumerate(self._batches.load_together(feeds, len(states[0].numbers) - 1)):
            result = stack.step(batch, states, number)
            results.append((result.loss, result.weight))
            if not collectors[0].counts_only_losses:
                for row, collector in enumerate(collectors):
                    loss, _, output = result.of(row)
                    collector.add(loss, output, self._pick_label(batch, row))
        if collectors[0].counts_only_losses:
            _add_losses(results, feeds[0].batch_size, collectors)

    def _pick_label(self, batch: Tensors, row: int) -> Any:
        labels = {name: batch[name][row] for name in self.columns.labels}
        return labels if len(labels) > 1 else next(iter(labels.values()))

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
                self._take_steps(current.model, self._batches.load(_rest(state)), collector)
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
        return TrainedMember(metrics, values, file, saved, stack.width, seconds)


def _add_losses(results: Sequence[tuple[Any, Any]], rows: int, collectors: Sequence[MetricCollector]) -> None:
    """Count the losses of all batches for each member."""
    losses = torch.stack([torch.stack(loss) if isinstance(loss, list) else loss for loss, _ in results], 1)
    weights: Any = [weight for _, weight in results]
    for row, collector in enumerate(collectors):
        own = [weight[row] for weight in weights] if isinstance(weights[0], torch.Tensor | list) else weights
        collector.add_losses(losses[row], None if own[0] is None else own, rows)


def _feed(state: MemberState) -> Feed:
    feed = state.member.feed
    assert isinstance(feed, Feed)
    return feed


def _count_batches(member: Member) -> int:
    """Return how many batches of a feed have its full size; those come first."""
    feed = member.feed
    return feed.sizes.count(feed.batch_size) if isinstance(feed, Feed) else 0


def _rest(state: MemberState) -> Feed:
    """Return the rows after the batches that have the full size."""
    feed = _feed(state)
    order = feed.order[(len(state.numbers) - 1) * feed.batch_size :]
    return Feed(feed.arrays, order, batch_size=feed.batch_size, key=feed.key, smallest=feed.smallest)
