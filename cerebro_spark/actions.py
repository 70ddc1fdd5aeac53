"""The orders that a scheduler gives: to workers, to their backend, to the engine.

It must never decide anything: these are values. They are derived from events, and never stored. Those to workers have a
JSON form (see `codec.py`), in which they travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cerebro_spark.commands import Command
from cerebro_spark.types import Checkpoint, Metrics, PartitionId, Report, Unit, Work, WorkerId


@dataclass(frozen=True, slots=True)
class Action:
    """An order."""


@dataclass(frozen=True, slots=True)
class LoadPartition(Action):
    """Worker: make this partition ready to train on, then say PartitionLoaded or PartitionLost.

    Backend: a worker that takes longer than `limit` seconds is stuck: say PartitionLost and WorkerLost, and replace it.
    """

    worker: WorkerId
    partition: PartitionId
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class DropPartition(Action):
    """Worker: forget this partition once no unit of yours uses it."""

    worker: WorkerId
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class RunUnit(Action):
    """Worker: run this unit after those you were given before, starting from `parent` (None: a fresh model).

    `step` is the number of training units of this epoch that the result will contain. `carry` is what the units of this
    epoch before this one measured, where it matters; a `final` unit turns it, with what it measures itself, into the
    values of the epoch, for which it takes the model's own metric objects. `rebased` says that the parent was trained
    with other params, by another trial or this one: weights and state come from it, numbers from `params`. `others` are
    units of other trials on the same partition, to be run together with this one if that is possible: each has its own
    attempt and ends with its own UnitFinished or UnitFailed. They have no `others` and no limit: that of this order is
    for all of them.
    With `partners` it is the order of a group, for all of its workers: `worker` has rank 0 and the unit's own
    partition, each partner the next rank and the next of the partitions `beside`. Rank 0 alone reports that the unit
    finished; any of them that it failed, or that the group gave up. Such an order has no `others`.
    Backend: give it to all of them. Who takes longer than `limit` seconds is stuck: say WorkerLost, and replace it.
    """

    worker: WorkerId
    unit: Unit
    attempt: int
    params: Mapping[str, Any]
    parent: Checkpoint | None = None
    step: int = 0
    carry: Metrics | None = None
    final: bool = False
    rebased: bool = False
    limit: float | None = None
    others: tuple[RunUnit, ...] = ()
    partners: tuple[WorkerId, ...] = ()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that run it, by rank."""
        return (self.worker, *self.partners)

    @property
    def members(self) -> tuple[RunUnit, ...]:
        """The orders of all its units, this one first."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class WithdrawUnit(Action):
    """Worker: if the unit with this attempt has not begun, do not begin it, and say UnitWithdrawn; else go on with it.

    Of units that were ordered together the others stay. Whatever the worker says then counts: until it has said
    something, the unit is under way.
    """

    worker: WorkerId
    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonUnit(Action):
    """Worker: leave the group that runs the unit with this attempt, or do not join it; keep and report nothing of it.

    The unit was given up, because another worker of the group is gone or could not go on. Whoever is not at it any more
    does nothing.
    """

    worker: WorkerId
    attempt: int


@dataclass(frozen=True, slots=True)
class LimitOrder(Action):
    """Backend: `limit` seconds are the limit of an order that was given without one, when nothing was known yet.

    The order is that of a unit, by its `attempt`, or of a load, by its `partition`.
    """

    worker: WorkerId
    limit: float
    attempt: int | None = None
    partition: PartitionId | None = None


@dataclass(frozen=True, slots=True)
class RetireWorker(Action):
    """Worker: stop. Backend: start another one in its place `back_after` seconds later; None for never."""

    worker: WorkerId
    back_after: float | None = None


@dataclass(frozen=True, slots=True)
class TellSearch(Action):
    """Engine: this is news for the search; if it is not `heard`, then only for those who watch the run."""

    report: Report
    heard: bool = True


@dataclass(frozen=True, slots=True)
class AnswerCommand(Action):
    """Engine: this became of a command. First comes the `work` that it makes, if any."""

    command: str
    done: bool
    reason: str = ""
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class CarryOut(Action):
    """Engine: have the backend do this, and answer with what became of it. Or stop at once, if that is the command."""

    command: Command


@dataclass(frozen=True, slots=True)
class DeleteCheckpoint(Action):
    """Engine: this checkpoint cannot be needed any more."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class FinishRun(Action):
    """Engine: all that was asked for is done, and no more will be."""


@dataclass(frozen=True, slots=True)
class FailRun(Action):
    """Engine: the run cannot go on, for this reason."""

    reason: str
