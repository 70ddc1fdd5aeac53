"""The rules for workers: how they join, what they have to do, how they leave. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cerebro_spark.events import AbandonUnit, DropPartition, RetireWorker, RunUnit, WorkerJoined, WorkerLost
from cerebro_spark.scheduling.bundles import BundleRules
from cerebro_spark.scheduling.deaths import died_with_host, has_host_failed
from cerebro_spark.scheduling.records import OrderRecord, TrialRecord, WorkerRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.scheduling.trials import TrialRules
from cerebro_spark.types import PartitionId, Unit, WorkerId

# A host on which workers keep failing is tried less and less often, but about once an hour at least.
_MOST_DOUBLINGS = 6


class WorkerRules:
    """Changes the state of workers as facts come in.

    Those `in_doubt` are set aside until it shows whether they are at fault (see `blame.py`).
    """

    def __init__(self, state: State, trials: TrialRules, bundles: BundleRules) -> None:
        self._state = state
        self._bundles = bundles
        self._trials = trials
        self.in_doubt: list[WorkerRecord] = []

    # -- coming and going

    def join(self, event: WorkerJoined) -> None:
        """A worker is there. If one of its name was there before, that one is lost."""
        state = self._state
        worker = state.workers.get(event.worker)
        if worker is not None and worker.live:
            self._lose(worker, WorkerLost(event.at, event.worker, "it restarted"))
        if worker is None:
            worker = WorkerRecord(event.worker, state.board.add_worker(event.worker))
            state.workers[event.worker] = worker
        worker.host, worker.live, worker.retiring = event.host, True, False
        worker.failures, worker.failed_loads, worker.unwanted, worker.at_fault = [], 0, [], False
        state.board.join(worker.row, state.now)
        state.board.costs.add_worker(worker.row, event.speed)
        state.actions += state.holdings.add_worker(worker, event.holds)
        state.look_at_all = True

    def lose(self, event: WorkerLost) -> None:
        """A worker is taken for dead: others get what it held."""
        worker = self._state.workers.get(event.worker)
        if worker is not None and worker.live:
            self._lose(worker, event)
            self._state.actions += self._state.holdings.settle()
            self._state.look_at_all = True

    def retire(self, worker_id: WorkerId) -> None:
        """Give a worker nothing new, and dismiss it when its queue is empty."""
        state = self._state
        worker = state.workers.get(worker_id)
        if worker is None or not worker.live:
            return
        self.no_longer_in_doubt(worker)
        worker.at_fault = False
        if not worker.retiring:
            self._withdraw(worker)
        self.dismiss(worker)

    def set_aside(self, worker: WorkerRecord) -> None:
        """Let a worker retire for its failures: at once, or when it is known that no trial is at fault for them."""
        worker.doubters, worker.at_fault = set(worker.failures), True
        if worker.doubters:
            self.in_doubt.append(worker)
            worker.unwanted += sorted(worker.loading)
            # It stays for now, and others, perhaps on its host, need the memory.
            self._state.actions += [
                DropPartition(worker.id, partition) for partition in sorted(worker.holds | worker.loading)
            ]
        self._withdraw(worker)
        self.dismiss(worker)

    def reinstate(self, worker: WorkerRecord) -> None:
        """Take back a worker that was set aside: it is not at fault, or it is needed all the same."""
        state = self._state
        self.no_longer_in_doubt(worker)
        worker.retiring, worker.failures, worker.failed_loads, worker.at_fault = False, [], 0, False
        if not worker.queue:
            state.board.set_idle(worker.row, state.now)
        state.actions += state.holdings.settle()
        state.look_at_all = True

    def no_longer_in_doubt(self, worker: WorkerRecord) -> None:
        """Whether the worker is at fault is decided, or does not matter any more."""
        worker.doubters = set()
        if worker in self.in_doubt:
            self.in_doubt.remove(worker)

    def _withdraw(self, worker: WorkerRecord) -> None:
        """Give a worker nothing new, and what it holds to others."""
        state = self._state
        worker.retiring = True
        state.board.withdraw(worker.row)
        state.holdings.release_all(worker)
        state.actions += state.holdings.settle()
        state.look_at_all = True

    def dismiss(self, worker: WorkerRecord) -> None:
        """Dismiss a retiring worker that has nothing left to do."""
        if worker.retiring and worker.live and not worker.queue and not worker.doubters:
            worker.live = False
            self._state.board.leave(worker.row)
            self._state.actions.append(RetireWorker(worker.id, self._quarantine(worker)))

    def _quarantine(self, worker: WorkerRecord) -> float | None:
        """Return the seconds after which a dismissed worker is replaced: what failed there may be mended by then.

        They double with every worker that is dismissed on the same host. None for one that is not to be replaced.
        """
        seconds = self._state.settings.quarantine
        if seconds is None or not worker.at_fault:
            return None
        self._trials.absolve(worker.id)
        before = self._state.let_go.get(worker.host, 0)
        self._state.let_go[worker.host] = before + 1
        return seconds * 2.0 ** min(before, _MOST_DOUBLINGS)

    def _lose(self, worker: WorkerRecord, event: WorkerLost) -> None:
        """Cancel what a dead worker had to do. Only the unit that it ran can have killed it."""
        running = self._running(worker, event)
        suspect = self._suspect(worker, running) if event.blames_unit else None
        worker.live, worker.lost_at = False, self._state.now
        self.no_longer_in_doubt(worker)
        self._state.board.leave(worker.row)
        for attempt in list(worker.queue):
            trial = self._state.trials[self._state.assignments[attempt].unit.trial]
            is_suspect = self._state.orders[attempt] is suspect
            assignment = self.cancel_assignment(attempt, worker)
            if assignment.partners:
                if event.blames_unit:  # if it kills its workers, that shows when it runs by itself
                    self._trials.lose_group(trial, assignment.unit, event.reason)
                for member in map(self._state.workers.__getitem__, assignment.workers):
                    self.dismiss(member)
            elif is_suspect and suspect is not None and suspect.width > 1:
                trial.isolate(assignment.unit)  # if one of them kills its workers, it will show which
            elif event.blames_unit and attempt == running:
                self._trials.record_kill(assignment, worker, event.reason)
        self._state.holdings.release_all(worker)
        if has_host_failed(worker.host, self._state.workers.values(), self._state.now):
            self._trials.explain(lambda kill: died_with_host(kill, worker.host, self._state.now))

    def _running(self, worker: WorkerRecord, event: WorkerLost) -> int | None:
        """Return the attempt that a lost worker ran. None if it names one that it does not have any more."""
        if event.running in worker.queue:
            return event.running
        told = event.running is not None and self._state.settings.kill_rule != "in a row"
        return None if told else next(iter(worker.queue), None)

    def _suspect(self, worker: WorkerRecord, running: int | None) -> OrderRecord | None:
        """Return the order at which a lost worker was."""
        attempt = next(iter(worker.queue), None) if running is None else running
        return None if attempt is None else self._state.orders[attempt]

    # -- partitions

    def record_load(self, worker_id: WorkerId, partition: PartitionId) -> None:
        """A worker has a partition, unless it was told meanwhile to drop it."""
        worker = self._state.workers.get(worker_id)
        if worker is not None and partition in worker.unwanted:
            worker.unwanted.remove(partition)
        elif worker is not None and worker.live and not worker.retiring:
            worker.failures, worker.failed_loads = [], 0
            self._state.actions += self._state.holdings.record_load(worker, partition)
            self._state.look_at_all = True

    # -- assignments

    def assign(self, worker: WorkerRecord, units: Sequence[RunUnit], kin: str) -> None:
        """Give units of kin to a worker in one order, each under a number of its own by which its result is known.

        A unit of a group is given to its partners, too.
        """
        state = self._state
        first = state.attempts + 1
        state.attempts += len(units)
        orders = [replace(unit, attempt=first + place) for place, unit in enumerate(units)]
        attempts = [order.attempt for order in orders]
        record = OrderRecord(first, attempts, kin, len(orders))
        for order in orders:
            state.assignments[order.attempt] = order
            state.orders[order.attempt] = record
            state.retention.hold(order.parent)
            for name in order.workers:
                state.workers[name].queue.append(order.attempt)
            if order.unit.kind == "train":
                state.trials[order.unit.trial].attempt = order.attempt
        state.actions.append(replace(orders[0], others=tuple(orders[1:])) if orders[1:] else orders[0])

    def end_assignment(self, attempt: int) -> RunUnit:
        """An assignment is over, with success or without."""
        state = self._state
        assignment = state.assignments.pop(attempt)
        for worker in map(state.workers.__getitem__, assignment.workers):
            worker.queue.remove(attempt)
            if worker.live and not worker.retiring and not worker.queue:
                state.board.set_idle(worker.row, state.now)
                state.fresh_workers.append(worker.row)
        state.orders.pop(attempt).open.remove(attempt)
        if assignment.unit.kind == "train":
            state.trials[assignment.unit.trial].attempt = None
        state.delete(state.retention.release(assignment.parent))
        return assignment

    def cancel_assignment(self, attempt: int, told_by: WorkerRecord) -> RunUnit:
        """Cancel an assignment: its unit is open again, from the checkpoint with which it started.

        Args:
            attempt: The number of the assignment.
            told_by: The worker that is gone, or says that it does not go on. Others of its group are told to leave.

        Returns:
            The assignment.
        """
        state = self._state
        assignment = self.end_assignment(attempt)
        unit = assignment.unit
        state.given_up.add(attempt)
        others = [name for name in assignment.workers if name != told_by.id and assignment.partners]
        state.actions += [AbandonUnit(name, attempt) for name in others if state.workers[name].live]
        trial = state.trials[unit.trial]
        if unit.kind == "train":
            self._take_back(trial, unit)
        elif unit.epoch in trial.evaluations:
            state.evaluations.put_back(trial.id, trial.evaluations[unit.epoch], unit.partition)
        return assignment

    def _take_back(self, trial: TrialRecord, unit: Unit) -> None:
        """A training unit is open again: for those of its bundle that have done it, or still are at it, it is not."""
        state = self._state
        mates = self._bundles.mates(trial)
        if mates:
            self._bundles.leave(trial)
        else:
            state.board.take_back(trial.row, [state.columns[partition] for partition in unit.partitions])
        if trial.status in ("stopped", "failed"):
            self._trials.rest(trial)
        else:
            state.fresh_trials.append(trial.row)
        if mates:
            self._bundles.settle(mates[0])
