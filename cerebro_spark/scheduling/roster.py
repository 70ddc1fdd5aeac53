"""What a scheduler remembers of each trial, worker and assignment. PURE records; the rules are in scheduler.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro_spark.types import Checkpoint, Metrics, PartitionId, TrialId, Unit, UnitKind, Work, WorkerId

# What of a trial failed: its training in an epoch, or the evaluation of one.
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
class Evaluation:
    """One trained epoch on its way to the search: what is still to evaluate, and what was measured so far.

    `params` are those it was trained with, whatever was asked for since. `order` is that of a script, if there is one.
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
    failures: dict[PartitionId, list[WorkerId]] = field(default_factory=dict)
    kills: dict[PartitionId, list[Kill]] = field(default_factory=dict)


@dataclass(slots=True)
class TrialRecord:
    """A trial: `epoch` is the one it trains, or would train next; `step` of its units are done.

    `failures` are the workers at which its training units failed in a row, though not through its own fault.
    `kills` are the deaths of its workers in training units in a row, `finished` its units that went well.
    `works` counts the Works that have taken effect; those `waiting` were asked for before their turn in a script.
    """

    id: TrialId
    row: int
    params: Mapping[str, Any]
    until: int
    epoch: int = 1
    status: Status = "training"
    latest: Checkpoint | None = None
    reported: Checkpoint | None = None
    best: Checkpoint | None = None
    best_value: float = float("nan")
    works: int = 0
    waiting: list[Work] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    finished: int = 0
    failures: list[WorkerId] = field(default_factory=list)
    merging: Merging = "plain"
    rebased: bool = False
    running_params: Mapping[str, Any] = field(default_factory=dict)
    trained: dict[PartitionId, Metrics] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    error: str | None = None

    @property
    def step(self) -> int:
        """The number of units of the current epoch that are done."""
        return len(self.trained)


@dataclass(slots=True)
class WorkerRecord:
    """A worker: the first attempt in `queue` is the unit it runs, the others wait behind it.

    `failures` are the parts of trials that failed at it since it last did anything well, `failed_loads` as many
    partitions. One that was set aside for that is in doubt as long as it has `doubters`: those of its failures that
    have not yet shown whether they happen elsewhere too; `at_fault` says that it retires for them, and not because
    somebody wants it to. `unwanted` are the partitions that were on their way when it was told to drop them.
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """A unit given to a worker, known by its attempt number."""

    unit: Unit
    worker: WorkerId
    parent: Checkpoint | None


def forgiven(failures: Sequence[WorkerId], worker: WorkerId, neighbours: Collection[WorkerId]) -> list[WorkerId]:
    """Failures by worker, of which those at the neighbours have come to count as one of this worker.

    >>> forgiven(["w0", "w1", "w2", "w1"], "w1", {"w1", "w2"})
    ['w0', 'w1']
    """
    left = [name for name in failures if name not in neighbours]
    return [*left, worker] if len(left) < len(failures) else left
