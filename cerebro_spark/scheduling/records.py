"""What a scheduler records of each trial, worker and assignment. PURE values; the rules are in the files beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro_spark.types import Checkpoint, Metrics, PartitionId, TrialId, Unit, UnitKind, Work, WorkerId

# A part of a trial: its training in an epoch, or the evaluation of one.
Part = tuple[TrialId, UnitKind, int]
# How metrics of several units become those of an epoch.
Merging = Literal["plain", "states", "carried"]

Status = Literal["training", "paused", "stopped", "failed"]


@dataclass(slots=True)
class Kill:
    """A worker that died in the middle of a unit; `explained` if something else than the unit was the cause."""

    worker: WorkerId
    host: str
    at: float
    explained: bool = False


@dataclass(slots=True)
class Setbacks:
    """What went wrong in a row: `kills` are the deaths of workers in a unit, `failures` the workers on which it failed.

    Failures for which the trial itself is at fault do not count: it ends with the first of them.
    """

    kills: list[Kill] = field(default_factory=list)
    failures: list[WorkerId] = field(default_factory=list)


@dataclass(slots=True)
class Evaluation:
    """A trained epoch that is being evaluated: which partitions are left, and what was measured so far.

    `params` are those that it was trained with. `order` is the order of partitions that a script demands, if any. It
    may be evaluated together with others of equal `kin`, unless it is to be evaluated `alone`.
    """

    epoch: int
    checkpoint: Checkpoint
    todo: list[PartitionId]
    params: Mapping[str, Any]
    order: tuple[PartitionId, ...] = ()
    running: int = 0
    trained: dict[PartitionId, Metrics] = field(default_factory=dict)
    measured: dict[PartitionId, Metrics] = field(default_factory=dict)
    trained_values: Mapping[str, float] | None = None
    measured_values: Mapping[str, float] | None = None
    setbacks: dict[PartitionId, Setbacks] = field(default_factory=dict)
    kin: str = ""
    alone: bool = False


@dataclass(slots=True)
class OrderRecord:
    """An order to a worker: a unit of one trial, or one of each of several trials, which are `kin`.

    `number` is the attempt of its first unit, `width` the number of its units. `open` are the attempts that are not
    over, `results` the (row of the trial, seconds, width) of units that succeeded.
    """

    number: int
    open: list[int]
    kin: str
    width: int = 1
    results: list[tuple[int, float, int]] = field(default_factory=list)

    @property
    def partly_reported(self) -> bool:
        """Whether some of its units are over, and others are not."""
        return len(self.open) < self.width


@dataclass(slots=True)
class TrialRecord:
    """A trial: `epoch` is the one that it trains, or would train next; it was asked for `until`.

    `row` is its row on the board, which says whether it runs a unit and which units of the epoch are open. `trained`
    has the metrics of the epoch's finished units. `setbacks` are those of its training units; each evaluation has its
    own. `finished` counts its units that succeeded. `works` counts the Works that have taken effect; those `waiting`
    wait for their turn in a script. `running_params` are those of its running or last unit; `rebased` says that its
    latest checkpoint has others, `given_up` that a latest one was not kept. `attempt` is that of its training unit that
    is under way. Of a `personal` trial a person decides how far it goes, and the search hears nothing more.

    Trials may share a bundle if `kin` is equal. A follower knows its `leader`, whose row on the board stands for all; a
    leader knows its `followers`. A trial that is to be `alone` joins no bundle before its epoch ends. `lost_groups`
    counts its units that groups gave up since a unit ended well.
    """

    id: TrialId
    row: int
    params: Mapping[str, Any]
    until: int
    epoch: int = 1
    status: Status = "training"
    latest: Checkpoint | None = None
    given_up: bool = False
    reported: Checkpoint | None = None
    best: Checkpoint | None = None
    best_value: float = float("nan")
    works: int = 0
    waiting: list[Work] = field(default_factory=list)
    finished: int = 0
    setbacks: Setbacks = field(default_factory=Setbacks)
    merging: Merging = "plain"
    rebased: bool = False
    running_params: Mapping[str, Any] = field(default_factory=dict)
    trained: dict[PartitionId, Metrics] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    error: str | None = None
    attempt: int | None = None
    personal: bool = False
    kin: str = ""
    leader: TrialId | None = None
    followers: list[TrialId] = field(default_factory=list)
    alone: bool = False
    lost_groups: int = 0

    @property
    def step(self) -> int:
        """The number of units of the current epoch that are done."""
        return len(self.trained)

    def setbacks_of(self, unit: Unit) -> Setbacks:
        """Return what went wrong with this unit; with any training unit, if it is one."""
        if unit.kind == "train":
            return self.setbacks
        return self.evaluations[unit.epoch].setbacks.setdefault(unit.partition, Setbacks())

    def isolate(self, unit: Unit) -> None:
        """Let what this unit is part of, the training of an epoch or its evaluation, go on without other trials."""
        if unit.kind == "train":
            self.alone = True
        elif unit.epoch in self.evaluations:
            self.evaluations[unit.epoch].alone = True

    def all_setbacks(self) -> list[Setbacks]:
        """Return what went wrong with training units, and with each evaluation unit."""
        return [self.setbacks, *(each for e in self.evaluations.values() for each in e.setbacks.values())]


@dataclass(slots=True)
class WorkerRecord:
    """A worker: the first attempt in `queue` is the unit it runs, the others wait behind it or run together with it.

    `failures` are the parts of trials that failed on it since its last success, `failed_loads` the number of loads that
    did. A worker that was set aside for its failures is in doubt as long as it has `doubters`: failures of which is not
    known yet whether they happen elsewhere too. `at_fault` says that it retires for its failures, and not on request.
    `unwanted` are the partitions that it was loading when it was told to drop them.
    """

    id: WorkerId
    row: int
    host: str = ""
    live: bool = True
    lost_at: float = float("-inf")
    retiring: bool = False
    holds: set[PartitionId] = field(default_factory=set)
    loading: set[PartitionId] = field(default_factory=set)
    unwanted: list[PartitionId] = field(default_factory=list)
    queue: deque[int] = field(default_factory=deque)
    failures: list[Part] = field(default_factory=list)
    failed_loads: int = 0
    at_fault: bool = False
    doubters: set[Part] = field(default_factory=set)


def merge_failures(failures: Sequence[WorkerId], worker: WorkerId, neighbours: Collection[WorkerId]) -> list[WorkerId]:
    """Return failures by worker in which those of the neighbours have become one of this worker.

    >>> merge_failures(["w0", "w1", "w2", "w1"], "w1", {"w1", "w2"})
    ['w0', 'w1']
    """
    left = [name for name in failures if name not in neighbours]
    return [*left, worker] if len(left) < len(failures) else left
