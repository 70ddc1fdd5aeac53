"""Trains units in groups: what members agree on before, while and after they train. It knows no framework."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO

from cerebro_spark.trainer.base import Hooks, Resources
from cerebro_spark.trainer.checkpoints.digest import compute_digest
from cerebro_spark.trainer.checkpoints.randomness import derive_seed
from cerebro_spark.trainer.checkpoints.tree import flatten
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.trainer.feed import Batch, Columns, Feed
from cerebro_spark.trainer.framework_trainer import CurrentTrial, FrameworkTrainer
from cerebro_spark.trainer.group import Group, GroupRefused, GroupTrained, Meeting, Seat
from cerebro_spark.trainer.group_checks import (
    LEAST_ROWS,
    NARROW_ROUNDING,
    ROUNDING,
    Probe,
    find_mixing,
    find_obstacle,
    find_reshaped,
)
from cerebro_spark.trainer.group_notes import MemberNote, find_difference, merge_notes
from cerebro_spark.trainer.shares import ShareFeed, Step, split_steps
from cerebro_spark.trainer.sharing.built_model import M
from cerebro_spark.trainer.unit_errors import check_loss
from cerebro_spark.types import Metrics, TrialId, Unit


class GroupTraining(FrameworkTrainer[M]):
    """The part of a trainer that trains units together with others; subclasses define what differs by framework."""

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._fit_for_groups: set[tuple[str, str]] = set()
        """Trials, and signatures of their models, that were tried and that groups train exactly."""

    # What a framework defines

    @abstractmethod
    def _refuse_in_group(self, model: M) -> str | None:
        """Return why no group trains this model, as far as its parts say; None if they let it pass."""

    @abstractmethod
    def _probe(self, model: M, batch: Batch, training: bool) -> Probe:
        """Return what the model makes of a batch. The caller puts its state back."""

    @abstractmethod
    def _join(self, meeting: Meeting) -> Group:
        """Return links to the other members. Raises GroupBroken if they cannot be had."""

    @abstractmethod
    def _train_share(self, model: M, feed: Feed | Iterable[Batch], steps: Sequence[Step], group: Group) -> Metrics:
        """Take all steps together with the others.

        Args:
            model: The built model.
            feed: A batch for each step to which this member gives rows.
            steps: All steps.
            group: The links to the others.
        """

    def _find_inexact(self, model: M) -> str:
        """Return why the share that was just trained was not trained exactly, if that showed only then; else ""."""
        return ""

    @abstractmethod
    def _seed_member(self, model: M, seed: int) -> None:
        """Have all generators draw from this seed, those of the model too."""

    def _computes_narrow(self, model: M) -> bool:
        """Whether the model computes in a precision below float32."""
        return self.resources.precision is not None

    def _rounding(self, model: M) -> float:
        """Return what the model rounds, as a share of the largest value; see `group_checks`."""
        return NARROW_ROUNDING if self._computes_narrow(model) else ROUNDING

    def _is_drawn(self, name: str) -> bool:
        """Whether an array of the model's state is that of a generator, which may differ between members."""
        return False

    # A unit

    def train_in_group(self, unit: Unit, feed: Feed, seat: Seat) -> GroupTrained:
        current = self._require_unchanged()
        self._current = None
        current.digest = ""
        with _naming(current.trial):
            return self._train_in_group(current, unit, feed, seat)

    def _train_in_group(self, current: CurrentTrial[M], unit: Unit, feed: Feed, seat: Seat) -> GroupTrained:
        self._require_fit(current, unit, feed)
        steps = split_steps(seat.rows, feed.batch_size, feed.smallest, seat.rank)
        prepared = time.perf_counter() - seat.began
        group = self._join(seat.meeting)
        seat.links.callback(group.close)
        formed = time.perf_counter()
        metrics = self._train_with_others(current, unit, feed, steps, group)
        note = MemberNote(self._digest_for_group(current), metrics, prepared, self._find_inexact(current.model))
        notes = [MemberNote.unpack(data) for data in group.gather(note.pack())]
        self._require_same(current, notes, group)
        merged = merge_notes(notes)
        check_loss(merged, unit, current.params)
        seconds = max(note.prepared for note in notes) + time.perf_counter() - formed
        self._current = current if group.rank == 0 else None
        return GroupTrained(merged, seconds, group.exchanged)

    def _train_with_others(
        self, current: CurrentTrial[M], unit: Unit, feed: Feed, steps: Sequence[Step], group: Group
    ) -> Metrics:
        """Train this member's part of a unit."""
        share = ShareFeed(feed, steps)
        with self._guarded(current, unit), self._own_generators(current):
            if group.rank:
                self._draw_otherwise(current, unit, group.rank)
            if current.epoch and unit.epoch > current.epoch:
                self._end_epochs(current.model, unit.epoch - current.epoch)
            self._begin_unit(current.model, training=True)
            metrics = self._run_unit(
                current, None, lambda model, rows, _: self._train_share(model, _watch(rows), steps, group), share, None
            )
            check_loss(metrics, unit, current.params)
        self._check_growth(current, unit, feed)
        current.epoch, current.units = unit.epoch, current.units + 1
        self.steps = "eager"
        return metrics

    def _draw_otherwise(self, current: CurrentTrial[M], unit: Unit, rank: int) -> None:
        """Draw from other generators than rank 0, which follow from the trial's: rows of no two members drop alike."""
        json, arrays = flatten({"drawn": current.generators}, self._wrap_array)
        state = compute_digest(arrays, json)
        self._seed_member(current.model, derive_seed(state, unit.trial, unit.epoch, *unit.partitions, rank))

    def _digest_for_group(self, current: CurrentTrial[M]) -> str:
        """Return a digest of what all members must have learned: all but the generators."""
        arrays, meta = self._contents(current)
        return compute_digest([array for array in arrays if not self._is_drawn(array.name)], meta)

    def _require_same(self, current: CurrentTrial[M], notes: Sequence[MemberNote], group: Group) -> None:
        """Raise GroupRefused, as all other members do, if members differ in what they learned."""
        problem = next((note.problem for note in notes if note.problem), "")
        if problem:
            raise GroupRefused(problem)
        if len({note.digest for note in notes}) > 1:
            arrays, meta = self._contents(current)
            learned = {array.name: compute_digest([array], None) for array in arrays if not self._is_drawn(array.name)}
            place = find_difference(group, {**learned, "numbers": compute_digest([], meta)})
            raise GroupRefused(
                f"its members ended a unit with different states, at {place}: something in the model, the loss or the"
                " optimizer depends on which rows a member has, or on the processor that it runs on"
            )

    # Whether a group can train a trial

    def _require_fit(self, current: CurrentTrial[M], unit: Unit, feed: Feed) -> None:
        """Raise GroupRefused unless a group trains this trial exactly. It is found out once a trial."""
        known = current.trial, self.models.signature_of(current.model)
        if known in self._fit_for_groups:
            return
        reason = "its train_fn takes the steps" if self.hooks.train_fn is not None else None
        reason = reason or self._refuse_in_group(current.model) or self._try_batch(current, unit, feed)
        if reason is not None:
            raise GroupRefused(reason)
        self._fit_for_groups.add(known)

    def _try_batch(self, current: CurrentTrial[M], unit: Unit, feed: Feed) -> str | None:
        """Return why parts of a real batch do not train what the whole batch trains, or None. It changes nothing."""
        rows = feed.order[: max(feed.batch_size, LEAST_ROWS)]
        if len(rows) < 2:
            return None
        batch = next(iter(Feed(feed.arrays, rows, batch_size=len(rows))))
        state = BytesIO()
        write_checkpoint(state, *self._contents(current))

        def attempt(part: Batch, training: bool) -> Probe:
            self._go_back(current, state.getvalue())
            self._restore_generators(current.generators)
            self._begin_unit(current.model, training)
            return self._probe(current.model, part, training)

        with self._guarded(current, unit), self._own_generators(current, keep=False):
            given, reason = self._map_parts(current, batch)
            checked = self._label_checks.check(self._label_rules(current.model), [given])
            reason = reason or find_obstacle(next(iter(checked)), attempt, self._rounding(current.model))
            self._go_back(current, state.getvalue())
        return reason

    def _map_parts(self, current: CurrentTrial[M], batch: Batch) -> tuple[Batch, str | None]:
        """Return what `input_fn` makes of a batch, and why parts of it would not become the same, or None."""
        if self.hooks.input_fn is None:
            return batch, None
        rows = len(next(iter(batch.values())))
        cut = max(1, rows // 3)
        parts = [{name: array[places] for name, array in batch.items()} for places in (slice(cut), slice(cut, rows))]
        before = self._describe_generators()
        whole, *mapped = (next(iter(self._map_feed([one], current.params))) for one in (batch, *parts))
        assert not isinstance(whole, Feed)
        if self._describe_generators() != before:
            return whole, "its input_fn draws random numbers, of which each member would draw its own"
        column = find_mixing(whole, mapped)
        if column is not None:
            return whole, f"its input_fn makes something else of {column!r} in a part of a batch than in the whole"
        return whole, None

    def _describe_generators(self) -> str:
        json, arrays = flatten({"drawn": self._capture_generators()}, self._wrap_array)
        return compute_digest(arrays, json)


def _watch(batches: Feed | Iterable[Batch]) -> Feed | Iterable[Batch]:
    """Look at the batches that an `input_fn` makes: not every batch that is tried shows that it mixes rows."""
    return batches if isinstance(batches, Feed) else _of_one_shape(batches)


def _of_one_shape(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches. Raises GroupRefused if rows of some have another shape: that goes by the other rows of a batch."""
    first: Batch | None = None
    for batch in batches:
        first = first or batch
        column = find_reshaped(first, batch)
        if column is not None:
            raise GroupRefused(
                f"its input_fn makes rows of {column!r} of one shape in some batches and of another one in others, by"
                " what other rows there are, of which each member has others"
            )
        yield batch


@contextmanager
def _naming(trial: TrialId) -> Iterator[None]:
    """Say of a refusal inside the block which trial it is about."""
    try:
        yield
    except GroupRefused as reason:
        raise GroupRefused(f"no group can train trial {trial} exactly: {reason}") from None
