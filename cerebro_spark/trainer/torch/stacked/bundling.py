"""How a bundle is trained, whatever the framework: who is stacked, how many at once, and what becomes of each member.

What is not stacked, or not yet known to be exact, is trained one by one. Nothing here computes a step.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Generic, Protocol, TypeVar

from cerebro_spark.trainer.base import Hooks, Member, Resources, TrainedMember
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.feed import Columns, Feed
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.group_training import GroupTraining
from cerebro_spark.trainer.sharing.built_model import M
from cerebro_spark.trainer.torch.batches import TensorBatches, Tensors
from cerebro_spark.trainer.torch.stacked.operations import CountedOperations
from cerebro_spark.trainer.torch.stacked.structures import Structure, explain, is_out_of_memory
from cerebro_spark.trainer.unit_errors import check_loss
from cerebro_spark.types import DigestName, Metrics

# Structures that are remembered. Trials whose models are like no others would fill the memory.
_KNOWN = 256
# Batches that are compared with single steps, and batches that are timed.
_COMPARED, _TIMED = 2, 4
# Seconds after which two batches are enough to know how long a step takes.
_LONG = 0.1
# Half of the members must be that much faster: times of single steps vary.
_FASTER = 0.9
# Single steps of so many seconds, and so many for each operation, are nearly all kernels: a stack saves the code
# between them, some microseconds for each.
_LONG_STEP, _LONG_OPERATION = 0.02, 1e-4

Outcome = TrainedMember | Exception


class StackedMember(Protocol):
    """A member with its state, ready to be stacked.

    Attributes:
        index: Its place in the bundle.
        member: What it was asked for.
        structure: What is known of its structure.
        current: Its trial, with its generators and counters.
        key: What its structure is known by; structures that differ only in numbers have different ones.
        constants: The numbers among the arguments of its traced step.
        seconds: The time that reading it took.
    """

    index: int
    member: Member
    structure: Structure
    current: CurrentTrial[Any]
    key: Any
    constants: list[float]
    seconds: float

    @property
    def batches(self) -> int:
        """How many batches are stacked."""
        ...


S = TypeVar("S", bound=StackedMember)


class MemberStack(Protocol):
    """Members of one structure and batch shape that are computed as one model.

    Attributes:
        width: The number of members.
        compared: The structures of members whose stacked steps were compared with single ones.
    """

    width: int
    compared: set[Any]

    def fill(self, states: Any) -> None:
        """Take on the states of members, as many as there are rows."""

    def step(self, batch: Tensors, states: Any, number: int) -> Any:
        """Take a step of all members, with their batch of that number."""

    def generator_state(self, row: int) -> Any:
        """Return the state of a member's generator as a tensor."""


K = TypeVar("K", bound=MemberStack)


class Bundling(GroupTraining[M], Generic[M, S, K]):
    """The part of a trainer that trains bundles; subclasses define the steps that differ between frameworks.

    If `widths_are_tried`, the fastest width is looked for; if not, all members of a structure are stacked.
    """

    _batches: TensorBatches
    widths_are_tried = True

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self.structures: dict[Any, Structure] = {}
        """What is known of the structures of trials that came in bundles."""
        self._constants: dict[Any, list[float]] = {}
        self._families: dict[Any, Structure] = {}

    def train_together(self, members: Sequence[Member], digest: DigestName = DIGEST) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        if len(members) > 1 and self._stacks_search():
            for states in self._group(self._read(members)):
                outcomes.update(self._train_group(states[0].structure, states, digest))
        for index, member in enumerate(members):
            if index not in outcomes:
                outcomes[index] = self._train_member(member, digest)
        return [outcomes[index] for index in range(len(members))]

    # What a framework defines

    @abstractmethod
    def _refuse_search(self) -> str | None:
        """Return why no trial of the search is stacked, or None."""

    @abstractmethod
    def _refuse_model(self, model: M) -> str | None:
        """Return why trials with this model are not stacked, or None. What it lets pass is still tried."""

    @abstractmethod
    def _name_model(self, model: M) -> str:
        """Return what a model is called in the log."""

    @abstractmethod
    def _read_state(self, index: int, member: Member, structure: Structure, current: CurrentTrial[M]) -> S:
        """Read the state of the trial that the built model holds. Raises ValueError if it cannot be stacked."""

    @abstractmethod
    def _trace(self, state: S) -> Any:
        """Return the traced step of a member, with its `key` and its `numbers`. Raises if it cannot be traced."""

    @abstractmethod
    def _family_of(self, state: S) -> Any:
        """Return what must be the same for members whose traced steps are the same, besides the steps."""

    def _check_member(self, state: S) -> None:
        """Raise ValueError if stacked steps cannot go on from the state of a member."""

    def _mode_of(self, state: S) -> Any:
        """Return what must be the same for members of one stack, besides the structure of the model."""

    @abstractmethod
    def _find_varying(self, trace: Any, states: Sequence[S]) -> tuple[int, ...]:
        """Return the places of the numbers of a traced step that are not those of all these members."""

    @abstractmethod
    def _make_stack(self, trace: Any, states: Sequence[S]) -> K:
        """Return a stack for members like these. Raises ValueError if they cannot be stacked."""

    @abstractmethod
    def _time_single(self, state: S, batches: Sequence[Tensors]) -> float:
        """Return the time of the fastest single step of a member, on batches with a row for it alone."""

    @abstractmethod
    def _compare(self, stack: K, states: Sequence[S], batches: Sequence[Tensors]) -> float:
        """Compare stacked steps with single ones; return the time of the fastest single one.

        Raises ValueError that says what differs.
        """

    @abstractmethod
    def _run_stack(self, stack: K, states: Sequence[S]) -> Sequence[Any]:
        """Take the steps of all batches that have the full size; return for each member what `_train_rest` needs."""

    @abstractmethod
    def _take_from_stack(self, stack: K, row: int, state: S) -> None:
        """Have the built model take on the state of a member after its stacked steps."""

    @abstractmethod
    def _train_rest(self, state: S, seen: Any) -> Metrics:
        """Train the member that the built model holds on the rest of its feed; return the metrics of its unit."""

    # Reading

    def _stacks_search(self) -> bool:
        whole = self.structures.setdefault(None, Structure("this search"))
        if not whole.judged:
            reason = self._refuse_search()
            whole.judged = True
            if reason is not None:
                whole.refuse(reason)
        return whole.reason is None

    def _read(self, members: Sequence[Member]) -> list[S]:
        """Return the states of those members that may be stacked. What fails here fails again when trained alone."""
        found = (self._read_member(index, member) for index, member in enumerate(members))
        return [state for state in found if state is not None]

    def _read_member(self, index: int, member: Member) -> S | None:
        began = time.perf_counter()
        if not count_batches(member):
            return None
        known, _ = self.models.find_build(member.params)
        if known is not None and not self._is_stackable(self._find_structure(known, member), known):
            return None
        try:
            state = self._load_state(index, member)
        except Exception:
            self._current = None
            return None  # its own unit says what is wrong
        if state is not None:
            state.seconds = time.perf_counter() - began
        return state

    def _load_state(self, index: int, member: Member) -> S | None:
        unit = member.unit
        self._make_current(member)
        current = self._require_unchanged()
        self._current = None
        current.digest = ""
        structure = self._find_structure(current.model, member)
        right = self._has_right_labels(current.model, feed_of(member))
        if not right or not self._is_stackable(structure, current.model):
            return None
        with self._guarded(current, unit), self._own_generators(current):
            if current.epoch and unit.epoch > current.epoch:
                self._end_epochs(current.model, unit.epoch - current.epoch)
            state = self._read_state(index, member, structure, current)
        return state if self._join_family(state) else None

    def _join_family(self, state: S) -> bool:
        """Trace the step of a new structure, and take it for one that differs only in numbers; False if refused."""
        key = self._structure_key(state.current.model, state.member)
        if key not in self._constants:
            try:
                if self.widths_are_tried:
                    self._require_short_kernels(state)
                trace = self._trace(state)
            except Exception as error:
                state.structure.refuse(explain(error))
            else:
                family = trace.key, self._family_of(state), state.structure.name
                state.structure.trace = trace
                self.structures[key] = self._families.setdefault(family, state.structure)
                self._constants[key] = trace.numbers
            self._drop_changed(state.structure, [state])
        state.key, state.structure = key, self.structures[key]
        state.constants = self._constants.get(key, [])
        if state.structure.trace is not None:
            self._check_member(state)
        return state.structure.reason is None

    def _require_short_kernels(self, state: S) -> None:
        """Raise ValueError for a structure that gains nothing from a stack, before it is traced, which takes long."""
        batches = self._load_batches([state], _COMPARED)
        seconds = self._time_single(state, batches)
        if seconds < _LONG_STEP:
            return
        with CountedOperations() as counted:
            self._time_single(state, batches[:1])
        if seconds > counted.number * _LONG_OPERATION:
            raise ValueError(
                f"a step takes {seconds * 1e3:.0f} ms, nearly all of it in kernels, which take as long together"
            )

    def _is_stackable(self, structure: Structure, model: M) -> bool:
        if structure.reason is None and not structure.judged:
            reason = self._refuse_model(model)
            if reason is not None:
                structure.refuse(reason)
        return structure.reason is None

    def _group(self, states: Sequence[S]) -> list[list[S]]:
        """Return those that can be computed together, if there are two at least."""
        groups: dict[Any, list[S]] = {}
        for state in states:
            groups.setdefault((id(state.structure), state.batches, self._mode_of(state)), []).append(state)
        return [group for group in groups.values() if len(group) > 1]

    def _structure_key(self, model: M, member: Member) -> Any:
        feed = feed_of(member)
        # A model that is not kept is like no other.
        signature = self.models.signature_of(model) or id(model)
        shapes = [(name, str(feed.arrays[name].dtype), feed.arrays[name].shape[1:]) for name in self.columns.names]
        return signature, feed.batch_size, str(shapes)

    def _find_structure(self, model: M, member: Member) -> Structure:
        key = self._structure_key(model, member)
        if key not in self.structures and len(self.structures) > _KNOWN:
            self.structures.clear()
            self._constants.clear()
            self._families.clear()
        name = f"{self._name_model(model)} with batches of {feed_of(member).batch_size}"
        return self.structures.setdefault(key, Structure(name))

    # Stacks

    def _train_group(self, structure: Structure, states: Sequence[S], digest: DigestName) -> dict[int, Outcome]:
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

    def _drop_changed(self, structure: Structure, states: Sequence[S]) -> None:
        """Have members trained alone if a step of them has changed what no checkpoint saves."""
        for model in {id(state.current.model): state.current.model for state in states}.values():
            change = self._discard_changed(model)
            if change is not None and structure.reason is None:
                structure.refuse(f"{change} in a step")

    def _judge(self, structure: Structure, states: Sequence[S]) -> None:
        """Find the fastest width: all members, half of them, and so on while that is clearly faster; or one."""
        best, width, chosen = float("inf"), len(states), len(states)
        while width > 1:
            seconds = self._time(self._find_stack(structure, states[:width]), states[:width])
            if seconds > _FASTER * best:
                break
            structure.limit = None if width == len(states) else width
            best, chosen, width = seconds, width, width // 2 if self.widths_are_tried else 1
        # First what is cheap to know: of large models a comparison takes long.
        structure.note_single(self._time_single(states[0], self._load_batches(states[:1], _COMPARED)))
        if not (self.widths_are_tried and structure.refuse_slower(best)):
            self._find_compared(structure, states[:chosen])
            structure.judged = True
            if self.widths_are_tried:
                structure.refuse_slower(best)

    def _time(self, stack: K, states: Sequence[S]) -> float:
        """Return the time of the fastest stacked step, a member. Afterwards the stack must be filled again."""
        stack.fill(states)
        times: list[float] = []
        for number, batch in enumerate(self._load_batches(states, _TIMED)):
            began = time.perf_counter()
            stack.step(batch, states, number)
            times.append(time.perf_counter() - began)
            if number and sum(times) > _LONG:
                break
        return min(times) / stack.width

    def _find_stack(self, structure: Structure, states: Sequence[S]) -> K:
        """Return a stack of this width, whose steps may not have been compared with single ones yet."""
        if structure.trace is None:
            raise ValueError("its step is not traced")
        key = self._mode_of(states[0]), len(states), self._find_varying(structure.trace, states)
        if key not in structure.stacks:
            structure.keep(key, self._make_stack(structure.trace, states))
        stack: K = structure.stacks[key]
        return stack

    def _find_compared(self, structure: Structure, states: Sequence[S]) -> K:
        """Return a stack of this width. It is compared with single steps before it computes members of a new structure.

        Raises ValueError that says what differs.
        """
        stack = self._find_stack(structure, states)
        if not {state.key for state in states} <= stack.compared:
            seconds = self._compare(stack, states, self._load_batches(states, _COMPARED))
            structure.note_single(seconds)
            stack.compared |= {state.key for state in states}
        return stack

    def _load_batches(self, states: Sequence[S], count: int) -> list[Tensors]:
        """Return the first batches of all members, stacked."""
        most = min(count, states[0].batches)
        return list(self._batches.load_together([feed_of(state.member) for state in states], most))

    # A unit

    def _train_stack(self, states: Sequence[S], digest: DigestName) -> dict[int, Outcome]:
        """Train members as one stack; those that are not in the answer are to be trained alone."""
        stack = self._find_compared(states[0].structure, states)
        began = time.perf_counter()
        stack.fill(states)
        seen = self._run_stack(stack, states)
        share = (time.perf_counter() - began) / len(states)
        outcomes: dict[int, Outcome] = {}
        for row, state in enumerate(states):
            outcome = self._leave_stack(stack, row, state, seen[row], share, digest)
            outcomes[state.index] = outcome
            change = state.current.model.snapshot.find_change() if isinstance(outcome, Exception) else None
            if change is not None:
                # The built model must not be used again: the others are trained alone.
                state.structure.refuse(f"{change} in a step")
                break
        return outcomes

    def _leave_stack(self, stack: K, row: int, state: S, seen: Any, share: float, digest: DigestName) -> Outcome:
        """Train a member on what is left of its feed, and save it."""
        began = time.perf_counter()
        current, unit, file = state.current, state.member.unit, BytesIO()
        try:
            self._take_from_stack(stack, row, state)
            current.generators = {**current.generators, "torch": stack.generator_state(row).numpy()}
            with self._guarded(current, unit), self._own_generators(current):
                self._begin_unit(current.model, training=True)
                metrics = self._train_rest(state, seen)
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


def feed_of(member: Member) -> Feed:
    """Return the feed of a member that is stacked."""
    feed = member.feed
    assert isinstance(feed, Feed)
    return feed


def count_batches(member: Member) -> int:
    """Return how many batches of a feed have its full size; those come first."""
    feed = member.feed
    return feed.sizes.count(feed.batch_size) if isinstance(feed, Feed) else 0


def rest_of(state: StackedMember) -> Feed:
    """Return the rows after the batches that have the full size."""
    feed = feed_of(state.member)
    order = feed.order[state.batches * feed.batch_size :]
    return Feed(feed.arrays, order, batch_size=feed.batch_size, key=feed.key, smallest=feed.smallest)
