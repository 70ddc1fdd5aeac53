"""Gives waiting evaluations to workers, those of kin together. PURE.

Every idle worker that can evaluate something gets something before any of them gets more, so that as many work as if
each evaluation went by itself. Then kin that wait for the same partition go along. They need not be of one bundle, nor
of one epoch: an evaluation changes nothing of a trial.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cerebro_spark.events import RunUnit
from cerebro_spark.scheduling.board import Bools
from cerebro_spark.scheduling.evaluation_widths import EvaluationWidths
from cerebro_spark.scheduling.records import Evaluation, OrderRecord, WorkerRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.scheduling.workers import WorkerRules
from cerebro_spark.types import PartitionId, TrialId, Unit


@dataclass(slots=True)
class _Draft:
    """An order that is being put together: evaluations of trials of one `kin` on one partition, `most` at most."""

    worker: WorkerRecord
    partition: PartitionId
    kin: str
    most: int
    units: list[RunUnit]

    @property
    def trials(self) -> set[TrialId]:
        return {unit.unit.trial for unit in self.units}


class EvaluationOrders:
    """Decides which evaluations go to which worker, and which of them together."""

    def __init__(self, state: State, workers: WorkerRules) -> None:
        settings = state.settings
        self._state = state
        self._workers = workers
        self._serial = settings.serial_evaluation
        self._on = settings.fuse > 1 and settings.fuse_evaluations and not settings.script
        self._widths = EvaluationWidths(settings.fuse)
        self._rows = {partition.id: max(partition.rows, 1) for partition in settings.partitions}

    def give_out(self, room: Bools | None) -> None:
        """Give out what waits: to idle workers first, then to those that are told of their next order beforehand.

        Args:
            room: By row of the board, the busy workers that may be told of one more order; None for none of them.
        """
        state, excluded = self._state, self._incomplete() | self._state.halted
        takers = state.evaluations.takers(state.workers, state.board.idle)
        busy = [] if room is None else state.evaluations.takers(state.workers, room)
        self._order(takers, excluded)
        for worker in busy:  # they are busy anyway: one of them may take all
            self._order([worker], excluded)

    def learn(self, order: OrderRecord, worker: WorkerRecord, partition: PartitionId) -> None:
        """An evaluation ended well: learn from its order if that is over."""
        if self._on and not order.open:
            slowness = float(self._state.board.costs.slowness[worker.row])
            self._widths.learn(order, slowness * self._rows[partition])

    def _incomplete(self) -> set[TrialId]:
        """Return the trials that were computed together with others whose reports are still to come.

        They are reported at once. Without this the first ones would be evaluated by themselves.
        """
        if not self._on:
            return set()
        orders, names = self._state.orders.values(), self._state.board.trial_ids
        results = [result for order in orders if order.partly_reported for result in order.results]
        return {names[row] for row, _, width in results if width > 1}

    def _order(self, takers: Sequence[WorkerRecord], excluded: Collection[TrialId]) -> None:
        """Order what these workers are to evaluate: one unit each if there are as many, then as many as fit."""
        drafts = [draft for worker in takers if (draft := self._begin(worker, excluded)) is not None]
        growing = drafts if self._on else []
        while growing:
            growing = [draft for draft in growing if self._grow(draft, excluded)]
        for draft in drafts:
            self._workers.assign(draft.worker, draft.units, draft.kin)
            self._state.board.occupy(draft.worker.row, self._state.now)

    def _begin(self, worker: WorkerRecord, excluded: Collection[TrialId]) -> _Draft | None:
        found = self._state.evaluations.oldest(worker.holds, self._serial, excluded)
        if found is None:
            return None
        trial, evaluation, partition = found
        most = 1 if evaluation.alone else self._widths.most(evaluation.kin)
        draft = _Draft(worker, partition, evaluation.kin, most, [])
        self._add(draft, trial, evaluation)
        return draft

    def _grow(self, draft: _Draft, excluded: Collection[TrialId]) -> bool:
        """Add one evaluation of kin; return whether there was one."""
        if len(draft.units) >= draft.most:
            return False
        others = self._state.evaluations.ready(draft.partition, self._serial, {*excluded, *draft.trials})
        found = next(((t, e) for t, e in others if e.kin == draft.kin and not e.alone), None)
        if found is not None:
            self._add(draft, *found)
        return found is not None

    def _add(self, draft: _Draft, trial: TrialId, evaluation: Evaluation) -> None:
        evaluations = self._state.evaluations
        evaluations.take(trial, evaluation, draft.partition)
        last = not evaluation.todo and evaluation.running == 1
        carry = evaluations.carry(trial, evaluation, last)
        final = last and (carry is not None or not evaluation.measured)
        unit = Unit(trial, evaluation.epoch, draft.partition, "eval")
        parent, params = evaluation.checkpoint, evaluation.params
        draft.units.append(RunUnit(draft.worker.id, unit, 0, params, parent, carry=carry, final=final))
