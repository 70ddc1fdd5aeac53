"""The vocabulary between engine, scheduler and backend: facts that came back, and orders that go out (`actions.py`).

It must never decide anything: these are values. Every event has a JSON form (see `codec.py`), because the event log is
made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cerebro_spark.actions import (
    AbandonUnit,
    Action,
    AnswerCommand,
    CarryOut,
    DeleteCheckpoint,
    DropPartition,
    FailRun,
    FinishRun,
    LimitOrder,
    LoadPartition,
    RetireWorker,
    RunUnit,
    TellSearch,
    WithdrawUnit,
)
from cerebro_spark.commands import Command
from cerebro_spark.types import (
    Checkpoint,
    DigestName,
    Metrics,
    Objective,
    Partition,
    PartitionId,
    Steps,
    Strategy,
    TrialId,
    Unit,
    Work,
    WorkerId,
)

__all__ = [
    "EVENTS",
    "AbandonUnit",
    "Action",
    "AnswerCommand",
    "Blame",
    "CarryOut",
    "CommandAnswered",
    "CommandReceived",
    "CostEstimated",
    "DeleteCheckpoint",
    "DropPartition",
    "EvaluatedEpoch",
    "Event",
    "FailRun",
    "FinishRun",
    "GatheringBegan",
    "GatheringEnded",
    "GroupGaveUp",
    "KillRule",
    "LimitOrder",
    "LoadPartition",
    "LossExplained",
    "PartitionLoaded",
    "PartitionLost",
    "RetireWorker",
    "RunStarted",
    "RunUnit",
    "SearchEnded",
    "Settings",
    "TellSearch",
    "TrialScript",
    "TrialStopped",
    "UnitFailed",
    "UnitFinished",
    "UnitWithdrawn",
    "WithdrawUnit",
    "WorkAdded",
    "WorkCommanded",
    "WorkerJoined",
    "WorkerLost",
    "WorkerRetiring",
]

Blame = Literal["trial", "worker", "store"]
KillRule = Literal["in a row", "hosts", "chance"]


@dataclass(frozen=True, slots=True)
class EvaluatedEpoch:
    """An epoch that is to be evaluated, and the order of the validation partitions where the values depend on it."""

    epoch: int
    order: tuple[PartitionId, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialScript:
    """What a trial is to do again exactly as it did it before (see `replays.py`).

    `visits` are the partitions of its training units, one after another. Those that a group trained at a time stand by
    the ranks of its members, and `groups` says how many each unit had; without it each had one. `turns` say, for each
    Work of the trial, how many visits are done when it takes effect, however early it is asked for. `rebased` are the
    numbers of the visits whose parent was trained with other params. Only the epochs in `reports` are evaluated. Each
    entry of `sources` is an epoch from which one Work, of any trial, will warm-start: its checkpoint is kept until
    then. After its last visit a trial that `stopped`, or failed with `error`, does so again.
    """

    trial: TrialId
    visits: tuple[PartitionId, ...] = ()
    turns: tuple[int, ...] = ()
    rebased: tuple[int, ...] = ()
    reports: tuple[EvaluatedEpoch, ...] = ()
    sources: tuple[int, ...] = ()
    stopped: bool = False
    error: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a scheduler is made from: a run's fixed facts, the first thing in its log.

    With a `script` every trial follows its TrialScript; without one the scheduler chooses. What is missing in the log
    of an older run means what was done then (for today see `scheduling/settings.py`): `kill_rule` says when a unit
    counts as the cause of its workers' deaths (see `scheduling/deaths.py`). A worker that was dismissed for its
    failures was never replaced; now it is after `quarantine` seconds. A training unit's last batch of fewer rows than
    `smallest_batch` joins the one before it; it used to be kept. A unit or a load may take `unit_timeout` seconds, or,
    if that is None, `least_timeout` and more where more is usual (see `scheduling/time_limits.py`); once there was no
    limit. `digest` is the algorithm of the digests of checkpoints. Up to `fuse` trials train together (see
    `scheduling/bundles.py`, and `scheduling/script_bundles.py` where they follow a script); once every trial trained by
    itself. With `fuse_evaluations` they are evaluated together too (see `scheduling/evaluation_orders.py`); once every
    evaluation went by itself. With `keep_last` a trial that is finished or stopped keeps its last checkpoint until the
    run ends, so that a person can let it go on; once only its best one was kept. Exactly `group` workers train a unit
    together; with `group_auto` at most as many, where that is sooner (see `scheduling/groups.py`). Once every unit had
    one worker. `efficiency` is that of one worker, of two, and so on, if it is known before anything was measured. With
    `group_on_host` no group has workers of several hosts; where a host has too few, a unit has fewer workers.
    """

    partitions: tuple[Partition, ...]
    workers: int
    replicas: int = 1
    policy: str = "hopper"
    seed: int = 0
    queue_ahead: int = 0
    max_kills: int = 2
    max_failures: int = 3
    serial_evaluation: bool = False
    objective: Objective | None = None
    script: tuple[TrialScript, ...] = ()
    smallest_batch: int = 1
    quarantine: float | None = None
    kill_rule: KillRule = "in a row"
    unit_timeout: float | None = None
    least_timeout: float | None = None
    digest: DigestName = "sha256"
    fuse: int = 1
    fuse_evaluations: bool = False
    keep_last: bool = False
    group: int = 1
    group_auto: bool = False
    efficiency: tuple[float, ...] = ()
    group_on_host: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, with the time at which it became known, in seconds of the backend's clock."""

    at: float


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The run exists; nothing has happened yet. `recipe` is the digest of the recipe that lies beside the log."""

    run: str
    settings: Settings
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class WorkAdded(Event):
    """The search asked for work. `cost` is its expected seconds a unit on a worker of speed 1, if known."""

    work: Work
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class WorkCommanded(WorkAdded):
    """A person asked for work, by this `command`: no search knows of it, and none is told what comes of it."""

    command: str = ""


@dataclass(frozen=True, slots=True)
class CostEstimated(Event):
    """A few batches of a trial were tried before the run: a unit of its kin may take about as many `seconds`."""

    trial: TrialId
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialStopped(Event):
    """A trial is to train no further: its running unit ends, nothing new starts."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class SearchEnded(Event):
    """No more work will be asked for."""


@dataclass(frozen=True, slots=True)
class WorkerJoined(Event):
    """A worker is there, with nothing loaded but what `holds` says. A second join of one name is a restart.

    `threads` is how many it computes with, which results may depend on to the last bit; 0 if not known.
    """

    worker: WorkerId
    host: str = ""
    speed: float | None = None
    holds: tuple[PartitionId, ...] = ()
    threads: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLost(Event):
    """A worker is given up for dead. It may not know, and still report: that comes too late.

    `running` is the attempt it was at, if that is known; else it is taken for the first it was given. `blames_unit` is
    False where that cannot be the cause, as when the driver died; where that shows later, LossExplained says it.
    """

    worker: WorkerId
    reason: str = ""
    blames_unit: bool = True
    running: int | None = None


@dataclass(frozen=True, slots=True)
class LossExplained(Event):
    """A worker that was lost died of something else than its unit: its machine was taken away."""

    worker: WorkerId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRetiring(Event):
    """A worker is to leave once its running unit has ended."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class GatheringBegan(Event):
    """The run goes on with other workers: `workers` are expected, and nothing is placed before they are there."""

    workers: int


@dataclass(frozen=True, slots=True)
class GatheringEnded(Event):
    """Start with the workers that are there, although fewer came than expected."""


@dataclass(frozen=True, slots=True)
class PartitionLoaded(Event):
    """A worker can now train on a partition."""

    worker: WorkerId
    partition: PartitionId


@dataclass(frozen=True, slots=True)
class PartitionLost(Event):
    """A worker could not load a partition, or has it no more."""

    worker: WorkerId
    partition: PartitionId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitFinished(Event):
    """A unit ran to its end. A training unit left `checkpoint`; `seconds` is what it took the worker.

    `metrics` are those of this unit alone; `values`, of a unit that was `final`, are those of the whole epoch. `waited`
    is how long the worker computed nothing before it, since the end of its unit before: saving that one's state,
    waiting for this order and its checkpoint, loading it. The last of these is part of `seconds` too. `steps` says how
    its steps were taken. `width` is how many units were computed at once, each for another trial; then `seconds` is
    this one's share of the time. Of a group `worker` had rank 0, and the `partners` the ranks after it; `metrics` are
    those of all its partitions, and `exchanged` the bytes that all members sent each other. `strategy` says how the
    model of a training unit lay on its device.
    """

    worker: WorkerId
    unit: Unit
    attempt: int
    seconds: float
    checkpoint: Checkpoint | None = None
    metrics: Metrics = field(default_factory=Metrics)
    values: Mapping[str, float] | None = None
    waited: float = 0.0
    steps: Steps = ""
    width: int = 1
    partners: tuple[WorkerId, ...] = ()
    strategy: Strategy = ""
    exchanged: int = 0

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that ran it, by rank."""
        return (self.worker, *self.partners)


@dataclass(frozen=True, slots=True)
class UnitFailed(Event):
    """A unit raised. `blame` says what is at fault: trial (its code, its numbers), worker (disk, network) or store."""

    worker: WorkerId
    unit: Unit
    attempt: int
    error: str
    blame: Blame = "trial"


@dataclass(frozen=True, slots=True)
class UnitWithdrawn(Event):
    """A worker gave back a unit that it had not begun, as it was told by WithdrawUnit."""

    worker: WorkerId
    unit: Unit
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupGaveUp(Event):
    """A group does not train this unit: `worker`, one of its members, found why, and nobody is to blame.

    If it is `lasting`, no group can ever train the trial: its loss is no mean over rows, for example. Else a member did
    not answer, and the unit is to be run again.
    """

    worker: WorkerId
    unit: Unit
    attempt: int
    reason: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class CommandReceived(Event):
    """A person told the run to do something. It is logged before anything is done about it."""

    command: Command


@dataclass(frozen=True, slots=True)
class CommandAnswered(Event):
    """What became of a command: it was carried out, or refused for a `reason` that says what would work.

    Of a command that was carried out the `reason` says in words what was done.
    """

    command: str
    done: bool
    reason: str = ""


EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        RunStarted,
        WorkAdded,
        WorkCommanded,
        CostEstimated,
        TrialStopped,
        SearchEnded,
        WorkerJoined,
        WorkerLost,
        LossExplained,
        WorkerRetiring,
        GatheringBegan,
        GatheringEnded,
        PartitionLoaded,
        PartitionLost,
        UnitFinished,
        UnitFailed,
        UnitWithdrawn,
        GroupGaveUp,
        CommandReceived,
        CommandAnswered,
    )
}
