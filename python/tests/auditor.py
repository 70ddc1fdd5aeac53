"""Watches a scheduler from outside, by its events and actions alone, and objects when a rule of the game is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from command_auditor import CommandAuditor

from cerebro_spark.commands import Command
from cerebro_spark.events import (
    AbandonUnit,
    Action,
    AnswerCommand,
    CommandReceived,
    DeleteCheckpoint,
    DropPartition,
    Event,
    GroupGaveUp,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RunUnit,
    Settings,
    TellSearch,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.types import Checkpoint, Unit


@dataclass
class Auditor:
    """The six invariants of the design, and what people said, with books that share nothing with the scheduler's."""

    settings: Settings
    outstanding: dict[int, RunUnit] = field(default_factory=dict)
    finished: dict[Unit, int] = field(default_factory=dict)
    latest: dict[str, Checkpoint | None] = field(default_factory=dict)
    told: set[tuple[str, int]] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    held: dict[str, set[str]] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    deleted: set[Checkpoint] = field(default_factory=set)
    attempts: set[int] = field(default_factory=set)
    until: dict[str, int] = field(default_factory=dict)
    trained_with: dict[Checkpoint, Mapping[str, Any]] = field(default_factory=dict)
    leading: dict[int, int] = field(default_factory=dict)
    loading: Counter[tuple[str, str]] = field(default_factory=Counter)
    widths: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    to_leave: list[tuple[str, int]] = field(default_factory=list)
    never_grouped: set[str] = field(default_factory=set)
    params: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    halted: set[str] = field(default_factory=set)
    taken_over: set[str] = field(default_factory=set)
    idle: bool = False
    over: bool = False
    commands: CommandAuditor = field(init=False)

    def __post_init__(self) -> None:
        self.commands = CommandAuditor(self)

    def before(self, event: Event) -> None:
        """Note a fact just before the scheduler sees it."""
        self.commands.before(event)
        if isinstance(event, WorkAdded) and self.commands.takes(event):
            if event.work.warm_start is not None or event.work.trial not in self.latest:
                self.latest[event.work.trial] = event.work.warm_start
            self.until[event.work.trial] = event.work.until_epoch
            if isinstance(event, WorkCommanded):
                self.halted.discard(event.work.trial)
                self.taken_over.add(event.work.trial)
        elif isinstance(event, WorkerJoined):
            self._gone(event.worker)
            self.live.add(event.worker)
            self.held[event.worker] = set(event.holds)
        elif isinstance(event, WorkerLost):
            self._gone(event.worker)
        elif isinstance(event, (PartitionLoaded, PartitionLost)):
            self.loading[event.worker, event.partition] -= 1
            # What was dropped while it was loaded, and is loaded again, may first be reported as lost.
            if isinstance(event, PartitionLost) and self.loading[event.worker, event.partition] <= 0:
                self.held.get(event.worker, set()).discard(event.partition)
        elif isinstance(event, UnitFinished) and self._current(event):
            self._finish(event)
        elif isinstance(event, (UnitFailed, UnitWithdrawn, GroupGaveUp)) and self._current(event):
            self._give_up(self.outstanding[event.attempt], event.worker)
            if isinstance(event, GroupGaveUp) and event.lasting:
                self.never_grouped.add(_kin(self.params[event.unit.trial]))

    def after(self, actions: list[Action]) -> None:
        """Judge what the scheduler ordered."""
        self.commands.after(actions)
        told = [(action.worker, action.attempt) for action in actions if isinstance(action, AbandonUnit)]
        assert sorted(told) == sorted(self.to_leave), f"{told} are told to leave their groups, not {self.to_leave}"
        self.to_leave = []
        event = self.commands.event
        for action in actions:
            if isinstance(action, AnswerCommand) and action.done:
                assert isinstance(event, CommandReceived)
                self._obeyed(event.command)
                if event.command.verb == "resume_trial" and action.work is None:
                    self.halted.discard(event.command.trial)
        for action in actions:
            if isinstance(action, RunUnit):
                self._together(action)
                for member in action.members:
                    self._ordered(member, action.attempt)
            elif isinstance(action, LoadPartition):
                assert action.worker in self.live, f"{action} goes to a dead worker"
                self.held[action.worker].add(action.partition)
                self.loading[action.worker, action.partition] += 1
            elif isinstance(action, DropPartition):
                self.held[action.worker].discard(action.partition)
            elif isinstance(action, DeleteCheckpoint):
                self._deleted(action.checkpoint)
            elif isinstance(action, TellSearch):
                self._told(action)
            elif isinstance(action, WithdrawUnit):
                assert action.worker in self.outstanding[action.attempt].workers, f"{action} is nobody's"

    def _obeyed(self, command: Command) -> None:
        """From now on what a person said holds."""
        match command.verb:
            case "stop_trial":
                self.halted.add(command.trial)
                self.taken_over.add(command.trial)
            case "pause":
                self.idle = True
            case "unpause":
                self.idle = False
            case "end":
                self.over = True

    def complete(self, trials: dict[str, int]) -> None:
        """After the end: every partition exactly once an epoch, every epoch told."""
        train = [p.id for p in self.settings.partitions if p.split == "train"]
        validation = [p.id for p in self.settings.partitions if p.split == "validation"]
        for trial, epochs in trials.items():
            for epoch in range(1, epochs + 1):
                assert (trial, epoch) in self.told
                assert all(self.finished.get(Unit(trial, epoch, p)) == 1 for p in train)
                assert all(self.finished.get(Unit(trial, epoch, p, "eval")) == 1 for p in validation)

    def _current(self, event: UnitFinished | UnitFailed | UnitWithdrawn | GroupGaveUp) -> bool:
        order = self.outstanding.get(event.attempt)
        if order is None or order.unit != event.unit:
            return False
        return order.worker == event.worker if isinstance(event, UnitFinished) else event.worker in order.workers

    def _give_up(self, order: RunUnit, worker: str) -> None:
        """A unit is not to be done any more: the others of its group, as far as they are there, are told so."""
        del self.outstanding[order.attempt]
        others = [name for name in order.workers if name != worker and order.partners]
        self.to_leave += [(name, order.attempt) for name in others if name in self.live]

    def _finish(self, event: UnitFinished) -> None:
        order = self.outstanding.pop(event.attempt)
        if event.checkpoint is not None:
            self.trained_with[event.checkpoint] = order.params
        for unit in _parts(event.unit):
            self.finished[unit] = self.finished.get(unit, 0) + 1
        if event.unit.kind == "train":
            self.latest[event.unit.trial] = event.checkpoint

    def _gone(self, worker: str) -> None:
        self.live.discard(worker)
        self.held.pop(worker, None)
        self.loading = Counter({key: count for key, count in self.loading.items() if key[0] != worker})
        for order in [order for order in self.outstanding.values() if worker in order.workers]:
            self._give_up(order, worker)

    def _together(self, order: RunUnit) -> None:
        """Those that go together differ in real numbers only; those that train have done the same of their epochs.

        Those that follow scripts go different ways through an epoch.
        """
        members = order.members
        self.widths.append(len(members))
        self._grouped(order)
        assert len(members) <= self.settings.fuse
        assert len({member.unit.trial for member in members}) == len(members)
        assert len({(member.worker, member.unit.partition, member.unit.kind) for member in members}) == 1
        assert not any(member.others for member in order.others)
        assert len({repr(_without_numbers(member.params)) for member in members}) == 1, f"{members} are no kin"
        same = order.unit.kind == "eval" or len({self._done(member) for member in members}) == 1
        assert same or self.settings.script, f"{members} do not keep step"
        if order.unit.kind == "eval" and (self.settings.script or not self.settings.fuse_evaluations):
            assert len(members) == 1

    def _grouped(self, order: RunUnit) -> None:
        """A group trains one trial, each of its workers on a partition of its own."""
        if not order.partners:
            return
        self.groups.append(len(order.workers))
        assert len(order.workers) <= self.settings.group or self.settings.script
        assert len(order.workers) == len(order.unit.partitions)
        assert len(set(order.workers)) == len(order.workers)
        assert len(set(order.unit.partitions)) == len(order.unit.partitions)
        assert order.unit.kind == "train", f"{order.unit} is no training unit, and has a group"
        assert not order.others, f"{order.unit} is in a group and in a bundle"
        if not self.settings.script:
            assert _kin(order.params) not in self.never_grouped, f"{order.unit} cannot be trained by a group"

    def _done(self, order: RunUnit) -> tuple[str, ...]:
        own = [unit for unit in self.finished if unit[:2] == order.unit[:2] and unit.kind == "train"]
        return tuple(sorted(unit.partition for unit in own))

    def _ordered(self, order: RunUnit, leading: int) -> None:
        unit = order.unit
        assert order.attempt not in self.attempts, "attempt numbers are never used twice"
        self.params[unit.trial] = order.params
        under_way = {part for other in self.outstanding.values() for part in _parts(other.unit)}
        for worker, part in zip(order.workers, _parts(unit), strict=True):
            assert worker in self.live, f"{order} goes to a dead worker"
            assert part.partition in self.held[worker], f"locality: {worker} does not hold {part.partition}"
            assert part not in self.finished, f"completeness: {part} runs again"
            assert part not in under_way, f"{part} runs twice at once"
            mine = [attempt for attempt, other in self.outstanding.items() if worker in other.workers]
            queued = {self.leading[attempt] for attempt in mine} - {leading}
            assert len(queued) <= self.settings.queue_ahead, f"exclusiveness: {worker} has {queued}"
        assert order.parent not in self.deleted, f"{unit} starts from a deleted checkpoint"
        if unit.kind == "train":
            running = [o for o in self.outstanding.values() if o.unit.trial == unit.trial and o.unit.kind == "train"]
            assert not running, f"isolation: {unit.trial} trains in {running}"
            assert order.parent == self.latest[unit.trial], f"one chain: {unit} starts from {order.parent}"
            assert unit.epoch <= self.until[unit.trial], f"{unit} was never asked for"
            other = order.parent is not None and self.trained_with[order.parent] != order.params
            assert order.rebased or not other, f"{unit} does not know that its parent had other params"
        assert unit.trial not in self.failed, f"{unit} belongs to a failed trial"
        assert unit.trial not in self.halted, f"{unit} belongs to a trial that a person stopped"
        assert not self.idle, f"{unit} begins although the run is paused"
        assert not self.over, f"{unit} begins although the run is about to end"
        self.attempts.add(order.attempt)
        self.leading[order.attempt] = leading
        self.outstanding[order.attempt] = order

    def _deleted(self, checkpoint: Checkpoint) -> None:
        assert checkpoint not in self.deleted, f"{checkpoint.name} is deleted twice"
        assert all(o.parent != checkpoint for o in self.outstanding.values()), f"{checkpoint.name} is in use"
        self.deleted.add(checkpoint)

    def _told(self, action: TellSearch) -> None:
        report = action.report
        assert action.heard == (report.ended or report.trial not in self.taken_over), f"{action} is for others"
        if report.ended:
            self.taken_over.add(report.trial)
            return
        if report.failed:
            assert report.trial not in self.failed, f"{report.trial} failed twice"
            self.failed.add(report.trial)
            return
        assert (report.trial, report.epoch) not in self.told, f"{report.trial} told epoch {report.epoch} twice"
        assert report.checkpoint not in self.deleted, "the search is told of a checkpoint that is gone"
        self.told.add((report.trial, report.epoch))


def _parts(unit: Unit) -> list[Unit]:
    """A unit of a group, as units of one partition."""
    return [unit._replace(partition=partition, beside=()) for partition in unit.partitions]


def _kin(params: Mapping[str, Any]) -> str:
    return repr(_without_numbers(params))


def _without_numbers(value: Any) -> Any:
    """Params without their real numbers."""
    if isinstance(value, Mapping):
        return sorted((name, _without_numbers(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_without_numbers(item) for item in value]
    return "" if isinstance(value, float) else repr(value)
