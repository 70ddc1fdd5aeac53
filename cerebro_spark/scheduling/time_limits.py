"""How long a unit or a load may take before its worker counts as stuck. PURE: it learns from events alone.

A limit is generous, because it must never hit what is only slow: ten times what is usual, and more where little is
known. Before anything was measured there is none; orders given until then get their limit as soon as there is one.
"""

from __future__ import annotations

from dataclasses import replace

from cerebro_spark.events import (
    Action,
    Event,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduling.state import State
from cerebro_spark.types import PartitionId, TrialId, WorkerId

# Times what is usual for the same trial and worker.
_USUAL = 10.0
# For a trial or a worker that was never measured: what is usual is not known.
_UNKNOWN = 100.0


class TimeLimits:
    """Sets the limits of orders: what the settings say, or what was learnt."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._settings = state.settings
        self._on = state.settings.unit_timeout is not None or state.settings.least_timeout is not None
        self._longest = 0.0
        self._longest_load = 0.0
        self._evaluated: dict[TrialId, float] = {}
        self._ordered: dict[tuple[WorkerId, PartitionId], float] = {}
        self._units: dict[int, RunUnit] = {}
        self._loads: dict[tuple[WorkerId, PartitionId], LoadPartition] = {}

    def observe(self, event: Event) -> None:
        """Learn from what succeeded, and forget orders that are over."""
        if isinstance(event, (UnitFinished, UnitFailed, UnitWithdrawn)):
            order = self._state.orders.get(event.attempt)
            if order is not None and order.open == [event.attempt]:
                self._units.pop(order.number, None)
        elif isinstance(event, (PartitionLoaded, PartitionLost)):
            self._loads.pop((event.worker, event.partition), None)
        elif isinstance(event, (WorkerLost, WorkerJoined)):
            self._units = {number: order for number, order in self._units.items() if order.worker != event.worker}
            self._loads = {key: order for key, order in self._loads.items() if order.worker != event.worker}
        self._learn(event)

    def _learn(self, event: Event) -> None:
        if isinstance(event, UnitFinished):
            self._longest = max(self._longest, event.seconds * event.width)
            if event.unit.kind == "eval":
                trial = event.unit.trial
                # Alone it takes no longer than together with others.
                longest = event.seconds * event.width
                self._evaluated[trial] = max(self._evaluated.get(trial, 0.0), longest)
        elif isinstance(event, PartitionLoaded):
            ordered = self._ordered.pop((event.worker, event.partition), event.at)
            self._longest_load = max(self._longest_load, event.at - ordered)

    def apply(self, actions: list[Action]) -> list[Action]:
        """Return the same orders with their limits, and limits for earlier orders that have none."""
        return [*map(self._limited, actions), *self._late()] if self._on else actions

    def _late(self) -> list[Action]:
        """TimeLimits for what was ordered before anything was known."""
        late: list[Action] = []
        if self._longest:
            late += [LimitOrder(o.worker, self._of(self._expected(o)) or 0.0, o.attempt) for o in self._units.values()]
            self._units = {}
        if self._longest_load:
            limit = self._of(_USUAL * self._longest_load) or 0.0
            late += [LimitOrder(order.worker, limit, partition=order.partition) for order in self._loads.values()]
            self._loads = {}
        return late

    def _limited(self, action: Action) -> Action:
        if isinstance(action, LoadPartition):
            self._ordered[action.worker, action.partition] = self._state.now
            action = replace(action, limit=self._of(_USUAL * self._longest_load))
            if action.limit is None:
                self._loads[action.worker, action.partition] = action
        elif isinstance(action, RunUnit):
            action = replace(action, limit=self._of(self._expected(action)))
            if action.limit is None:
                self._units[action.attempt] = action
        return action

    def _of(self, learnt: float) -> float | None:
        if self._settings.unit_timeout is not None:
            return self._settings.unit_timeout
        return max(learnt, self._settings.least_timeout or 0.0) if learnt else None

    def _expected(self, order: RunUnit) -> float:
        """The seconds after which a unit is taken for stuck; 0 where nothing is known at all."""
        unit, state = order.unit, self._state
        if unit.kind == "eval":
            known = [self._evaluated.get(member.unit.trial) for member in order.members]
            # Those that are to be computed together may turn out to have to run one after another.
            whole = sum(seconds for seconds in known if seconds is not None)
            return _UNKNOWN * self._longest if None in known else _USUAL * whole
        if order.partners:
            return self._expected_of_group(order)
        trials = [state.trials[member.unit.trial].row for member in order.members]
        worker, costs = state.workers[order.worker].row, state.board.costs
        if not all(map(costs.measured_alone, trials)) or not costs.speed_is_sure(worker, 1):
            return _UNKNOWN * self._longest
        column = state.columns[unit.partition]
        if len(trials) == 1:
            return _USUAL * costs.seconds(trials[0], worker, column)
        # Those that are to be computed together may turn out to have to run one after another.
        return _USUAL * sum(costs.seconds_alone(trial, worker, column) for trial in trials)

    def _expected_of_group(self, order: RunUnit) -> float:
        """The same for a group: together they may turn out to be slower than one by himself would be with all of it."""
        state, costs = self._state, self._state.board.costs
        trial = state.trials[order.unit.trial].row
        if costs.is_new(trial):
            return _UNKNOWN * self._longest
        pairs = zip(order.workers, order.unit.partitions, strict=True)
        each = [costs.seconds_alone(trial, state.workers[name].row, state.columns[part]) for name, part in pairs]
        return _USUAL * sum(each)
