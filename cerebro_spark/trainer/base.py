"""The contract of a trainer: it runs units of many trials, one by one. It knows no store, scheduler or data format."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.checkpoints.writing import SavedCheckpoint as SavedCheckpoint
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.group import GroupRefused, GroupTrained, Seat
from cerebro_spark.trainer.members import EvaluatedMember as EvaluatedMember
from cerebro_spark.trainer.members import Member as Member
from cerebro_spark.trainer.members import TrainedMember as TrainedMember
from cerebro_spark.trainer.metric_rule import MetricRule
from cerebro_spark.trainer.resources import Resources as Resources
from cerebro_spark.trainer.sharing.hooks import Hooks as Hooks
from cerebro_spark.trainer.sharing.hooks import Params as Params
from cerebro_spark.types import DigestName, Metrics, Steps, Strategy, TrialId, Unit


class Trainer(ABC):
    """Trains and evaluates trials of one search in one process, and keeps the models it has built.

    **Who calls it.** The worker (`backend/worker/`), and `result/` to predict, from one thread: no method is safe to
    call from two. One trial at a time is current. `build` and `load` make it so, the other methods work on it.

    **What it guarantees.** train(A), save, load in another process, train(B) leaves the same bits as train(A),
    train(B), on CPUs of one type with the same versions and thread count; whatever other trials did here in between,
    and whatever was evaluated. What a unit changes is saved with the checkpoint, or the unit fails and says what it
    was; the built model is then closed, before another trial can take it over.

    **What it must never do.** Draw randomness from generators that the checkpoint does not have, or leave those of
    the process changed; read or write the store; choose the order of rows; keep a model or function that a failed
    unit left changed.

    **What it may raise.** TrialFailed for what only this trial is to blame for: its functions raise, its loss is not
    finite, it changed what no checkpoint saves. ConfigurationError for user functions that return something else than
    they must. CheckpointError for a checkpoint of another architecture, CheckpointUnreadable for a damaged file.
    After any of them no trial is current, and other trials are not affected.

    Args:
        hooks: The user's functions.
        columns: The inputs, labels and the sample weight of a batch.
        seed: The seed of the run. The initial state of a trial follows from it and from the trial's name.
        resources: Threads, device, precision and memory; those of `Resources()` by default.
    """

    framework: str
    """The name of the framework, as checkpoints have it."""
    steps: Steps = ""
    """How the steps of the last training unit were taken, where the trainer has a choice."""
    strategy: Strategy = ""
    """How the model lay on its device in the last training unit, where the trainer has a choice."""
    strategies: Mapping[TrialId, Strategy] = MappingProxyType({})
    """The strategies of trials that are known before they train, as those of a run that is replayed."""
    metric_rule: MetricRule = "rows"
    """What tells classification metrics that outputs are logits; set before the first unit."""

    on_gpu: bool = False
    """Whether it computes on a GPU."""

    @abstractmethod
    def __init__(
        self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None
    ) -> None: ...

    def warm_up(self) -> None:  # noqa: B027 (not every framework defers work)
        """Load what the framework defers to its first use. The worker calls it while it waits for its first order."""

    @abstractmethod
    def build(self, trial: TrialId, params: Params) -> None:
        """Make `trial` current in its initial state, the same on every worker for one (seed, trial, params)."""

    @abstractmethod
    def load(
        self,
        trial: TrialId,
        params: Params,
        source: Path | BinaryIO | bytes,
        *,
        digest: str = "",
        warm_start: bool = False,
    ) -> None:
        """Make `trial` current in the state of a checkpoint.

        Args:
            trial: The name of the trial.
            params: The params of the trial.
            source: The checkpoint: a path, a seekable binary file, or its bytes.
            digest: The digest of the checkpoint, which is checked; "" if it is not known.
            warm_start: Whether the checkpoint may be another trial's. Weights, optimizer state, counters and generators
                are then taken from it, learning rates and other numbers from `params`.
        """

    @abstractmethod
    def save(self, target: Path | BinaryIO, digest: DigestName = DIGEST) -> SavedCheckpoint:
        """Write the whole training state of the current trial; return its size and its digest by this algorithm."""

    @abstractmethod
    def holds(self, trial: TrialId, digest: str) -> bool:
        """Return whether the current state is this checkpoint of this trial, so that loading it changes nothing."""

    @abstractmethod
    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        """Train the current trial on one partition.

        Args:
            unit: The unit; its trial is the current one.
            feed: The rows of the partition, in the order in which they are trained on.
            carried: The metrics of the unit before this one in the same epoch. Only metrics that cannot be merged
                use them.

        Returns:
            The metrics of this partition alone.
        """

    def train_together(self, members: Sequence[Member], digest: DigestName = DIGEST) -> list[TrainedMember | Exception]:
        """Train several trials on one partition, each as `build` or `load`, `train`, `save` and `finish` would.

        Who else is in the bundle changes nothing of a member: not a bit of its checkpoint on a CPU, and nothing of its
        metrics. A member that fails does not touch the others. Afterwards one of them is current, or no trial is.

        This implementation trains them one after another.

        Args:
            members: The trials.
            digest: The algorithm of their checkpoints' digests. Defaults to that of runs that begin now.

        Returns:
            For each member, in order, what came of it, or the error that failed it.
        """
        return [self._train_member(member, digest) for member in members]

    def _train_member(self, member: Member, digest: DigestName) -> TrainedMember | Exception:
        """Train one member alone."""
        began, file = time.perf_counter(), BytesIO()
        try:
            self._make_current(member)
            metrics = self.train(member.unit, member.feed, member.carried)
            saved = self.save(file, digest)
            values = self._finish_member(member, metrics)
        except Exception as error:
            return error
        seconds = time.perf_counter() - began
        return TrainedMember(metrics, values, file, saved, 1, seconds, self.steps, self.strategy)

    def evaluate_together(self, members: Sequence[Member]) -> list[EvaluatedMember | Exception]:
        """Evaluate several trials on one partition, each as `build` or `load`, `evaluate` and `finish` would.

        Who else is in the bundle changes nothing of what is found of a member, not a bit. A member that fails does not
        touch the others. Afterwards one of them is current, or no trial is.

        This implementation evaluates them one after another.

        Args:
            members: The trials.

        Returns:
            For each member, in order, what was found, or the error that failed it.
        """
        return [self._evaluate_member(member) for member in members]

    def _evaluate_member(self, member: Member) -> EvaluatedMember | Exception:
        """Evaluate one member alone."""
        began = time.perf_counter()
        try:
            self._make_current(member)
            metrics = self.evaluate(member.unit, member.feed, member.carried)
            values = self._finish_member(member, metrics)
        except Exception as error:
            return error
        return EvaluatedMember(metrics, values, 1, time.perf_counter() - began)

    def _make_current(self, member: Member) -> None:
        trial, params = member.unit.trial, member.params
        if member.source is None:
            self.build(trial, params)
        else:
            self.load(trial, params, member.source, digest=member.digest, warm_start=member.warm_start)

    def _finish_member(self, member: Member, metrics: Metrics) -> dict[str, float] | None:
        """Return the values of its metrics if it was final; it is the current trial."""
        if not member.final:
            return None
        return self.finish(Metrics.merge([part for part in (member.carried, metrics) if part is not None]))

    def train_in_group(self, unit: Unit, feed: Feed, seat: Seat) -> GroupTrained:
        """Train the current trial on several partitions at once, as one of several trainers in processes of their own.

        Each has made the same state of the trial current, and trains on its own partition, step by step with the
        others. The batches are those of one trainer with the rows of all partitions, mixed evenly (`shares.py`): the
        gradients of each are summed over all members before they are clipped and used. So all members end with the
        same state, which is that of one trainer but for rounding, and for what is drawn at random: rank 0 draws from
        the generators of the trial, the others from generators that follow from these.

        Afterwards the trial is current at rank 0, and no trial at the others. `steps` is "eager".

        This implementation refuses all trials.

        Args:
            unit: The unit, with the partitions of all members.
            feed: The rows of this member's partition, in the order in which they are trained on, with the batch size
                and the smallest batch of all rows.
            seat: This member's place in the group.

        Returns:
            The metrics of all partitions, the time that it took, and what the members told each other.

        Raises:
            GroupRefused: No group can train the trial exactly. That is said before anything is trained, and before the
                others are waited for, except for what only training shows.
            GroupBroken: Another member is gone or does not answer, or this one is to leave.
        """
        raise GroupRefused(f"{type(self).__name__} trains no trial in a group")

    @abstractmethod
    def evaluate(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        """Measure the current trial on one partition; its state does not change. Arguments as of `train`.

        Statistics and generators are put back. If a user's function has changed anything else of the state, the
        trainer no longer `holds` the checkpoint, and `train` and `save` refuse to go on: load it again.
        """

    @abstractmethod
    def predict(self, feed: Feed | Iterable[Batch]) -> dict[str, Array]:
        """Return the outputs for every row, in the order of the feed, by output name ("prediction" if only one)."""

    @abstractmethod
    def finish(self, metrics: Metrics) -> dict[str, float]:
        """Return the values of merged metrics. States become numbers by the metric objects of the current trial."""

    def forget(self, key: str) -> None:  # noqa: B027 (not every framework keeps arrays)
        """Free the arrays of a partition that are kept on a device; `key` is that of its feeds."""

    @abstractmethod
    def model(self) -> Any:
        """Return the live model of the current trial: a compiled Keras model, or the TorchModel."""
