"""Everything a scheduler knows, shared by its rules. PURE; it applies no rule of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro_spark.events import Action, DeleteCheckpoint, RunUnit, Settings
from cerebro_spark.scheduling.board import Board
from cerebro_spark.scheduling.costs import CostModel
from cerebro_spark.scheduling.deaths import Deaths
from cerebro_spark.scheduling.evaluations import Evaluations
from cerebro_spark.scheduling.holdings import Holdings
from cerebro_spark.scheduling.records import OrderRecord, TrialRecord, WorkerRecord
from cerebro_spark.scheduling.retention import Retention
from cerebro_spark.types import Checkpoint, PartitionId, TrialId, WorkerId


@dataclass(slots=True)
class State:
    """The whole state. `actions` collects what is ordered while one event is handled.

    `assignments` are the units that workers have to run, by attempt number, and `orders` the orders they are part of;
    `given_up` are the cancelled attempts. `widest` is how many training units of one kin were computed at once, where
    workers did not do as many as they were told.
    `fresh_workers` and `fresh_trials` are the rows that became available since the policy was last asked, and
    `look_at_all` says that more than that has changed. `let_go` counts, by host, the workers that were dismissed for
    their failures. `tells_kin` says that trials are told apart by kin: some may train together, or it was measured
    before the run what those of a kin cost.

    What people told the run (see `steering.py`): of `halted` trials nothing is given out, not even evaluations. No
    search asked for `clones`. The run is paused since `paused_at`, and was so before for `paused_for` seconds. If it is
    `ending`, nothing is given out any more.
    """

    settings: Settings
    board: Board
    columns: dict[PartitionId, int]
    holdings: Holdings
    evaluations: Evaluations
    trials: dict[TrialId, TrialRecord]
    workers: dict[WorkerId, WorkerRecord]
    assignments: dict[int, RunUnit] = field(default_factory=dict)
    orders: dict[int, OrderRecord] = field(default_factory=dict)
    widest: dict[str, int] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)
    now: float = 0.0
    attempts: int = 0
    given_up: set[int] = field(default_factory=set)
    let_go: dict[str, int] = field(default_factory=dict)
    deaths: Deaths = field(default_factory=Deaths)
    search_ended: bool = False
    actions: list[Action] = field(default_factory=list)
    fresh_workers: list[int] = field(default_factory=list)
    fresh_trials: list[int] = field(default_factory=list)
    look_at_all: bool = True
    tells_kin: bool = False
    halted: set[TrialId] = field(default_factory=set)
    clones: set[TrialId] = field(default_factory=set)
    paused_at: float | None = None
    paused_for: float = 0.0
    ending: bool = False

    @property
    def seconds_paused(self) -> float:
        """For how many seconds the run has been paused so far, in all."""
        return self.paused_for + (0.0 if self.paused_at is None else self.now - self.paused_at)

    def delete(self, checkpoints: list[Checkpoint]) -> None:
        """Order these checkpoints to be deleted."""
        self.actions.extend(DeleteCheckpoint(checkpoint) for checkpoint in checkpoints)


def make_state(settings: Settings) -> State:
    """Return the state before anything has happened."""
    train = [partition for partition in settings.partitions if partition.split == "train"]
    columns = {partition.id: column for column, partition in enumerate(train)}
    costs = CostModel(_relative_sizes([partition.rows for partition in train]))
    board = Board(len(train), costs, scripted=bool(settings.script))
    workers: dict[WorkerId, WorkerRecord] = {}
    return State(
        settings,
        board,
        columns,
        Holdings(settings, workers, board, columns),
        Evaluations([partition.id for partition in settings.partitions if partition.split == "validation"]),
        trials={},
        workers=workers,
        tells_kin=settings.fuse > 1 or settings.group > 1,
    )


def _relative_sizes(rows: list[int]) -> list[float]:
    """Sizes of partitions, 1 on average; 1 where the rows are not known."""
    total = sum(rows)
    return [count * len(rows) / total if total and count else 1.0 for count in rows]
