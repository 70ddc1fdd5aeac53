"""A worker at work: it takes orders, and carries them out one after another. It decides nothing.

While a unit trains, the checkpoint of the next one is fetched already.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    LoadStarted,
    MeetingAnswer,
    RehearseTrial,
    Stop,
    ToWorker,
    TrialRehearsed,
)
from cerebro_spark.backend.worker.group_units import GroupRunner
from cerebro_spark.backend.worker.output import mark_trials
from cerebro_spark.backend.worker.rehearsal import estimate_seconds, rehearse
from cerebro_spark.backend.worker.units import UNKNOWN_TIME, Parent, UnitRunner
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.errors import CerebroError
from cerebro_spark.events import (
    AbandonUnit,
    DropPartition,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitWithdrawn,
    WithdrawUnit,
)
from cerebro_spark.types import PartitionId, WorkerId


class Worker:
    """Carries out orders one after another, and reports what came of them.

    Args:
        name: The worker's name.
        job: What it works on.
        report: Sends a message to the driver; called from several threads.
        leaves_cache: Leave its partitions in the cache when it ends, for the workers of a next run.
        address: Its address, at which workers that train a unit with it reach it. Default: that of this machine alone.
    """

    def __init__(
        self,
        name: WorkerId,
        job: Job,
        report: Callable[[FromWorker], None],
        *,
        leaves_cache: bool = False,
        address: str = "127.0.0.1",
    ) -> None:
        self._name = name
        self._job = job
        self._report = report
        self._leaves_cache = leaves_cache
        self._cache = Cache(**job.cache)
        self._orders: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._parents: dict[int, Future[Parent]] = {}
        self._waiting: dict[int, RunUnit] = {}
        """The units that were ordered and have not begun, by attempt. `_begin` guards what is in it."""
        self._begin = threading.Lock()
        self._fetching = ThreadPoolExecutor(1, "fetch")
        self._abandoned = threading.Event()
        self._units = UnitRunner(name, job, self._cache, report, self._abandoned)
        self._groups = GroupRunner(name, job, self._units, report, address)

    def take(self, order: ToWorker) -> None:
        """Take an order; called by the listener. Fetching the checkpoint that a unit starts from begins at once."""
        match order:
            case WithdrawUnit():
                self._withdraw(order.attempt)
            case AbandonUnit():
                self._leave_group(order.attempt)
            case MeetingAnswer():
                self._groups.answer(order)
            case _:
                self._queue(order)

    def _queue(self, order: ToWorker) -> None:
        """Keep an order until its turn has come."""
        if isinstance(order, Stop):
            self._groups.close()  # others may have stopped already, and would be waited for
        for unit in order.members if isinstance(order, RunUnit) else ():
            if unit.parent is not None:
                self._parents[unit.attempt] = self._fetching.submit(self._units.fetch, unit.parent)
            with self._begin:
                self._waiting[unit.attempt] = unit
        self._orders.put(order)

    def _withdraw(self, attempt: int) -> None:
        """Give back a unit, unless it has begun or is over: then it is reported as ever."""
        with self._begin:
            unit = self._waiting.pop(attempt, None)
        if unit is not None:
            self._report(UnitWithdrawn(UNKNOWN_TIME, self._name, unit.unit, attempt))

    def _leave_group(self, attempt: int) -> None:
        """Do not begin the unit of a group, or leave it if it has begun; nobody wants to hear of it any more."""
        with self._begin:
            if self._waiting.pop(attempt, None) is None:
                self._groups.leave(attempt)

    def abandon(self) -> None:
        """Begin no other unit, and keep nothing: the driver is gone. Called by the listener."""
        self._abandoned.set()
        self._queue(Stop())

    def warm_up(self) -> None:
        """Load the framework while other workers are still coming; if that fails, the first unit will fail as well."""
        try:
            self._units.trainer().warm_up()
        except Exception as error:
            print(f"the trainer is not ready: {type(error).__name__}: {error}", file=sys.stderr)

    def work(self) -> None:
        """Do what is ordered until told to stop."""
        while not isinstance(order := self._orders.get(), Stop | RetireWorker) and not self._abandoned.is_set():
            self._carry_out(order)
        self._units.close()
        self._fetching.shutdown(wait=False, cancel_futures=True)
        self._cache.close(tidy=not self._leaves_cache)

    def _carry_out(self, order: ToWorker) -> None:
        match order:
            case LoadPartition():
                self._load(order.partition)
            case DropPartition():
                self._drop(order.partition)
            case RunUnit():
                self._run(order)
            case RehearseTrial():
                self._rehearse(order)

    def _rehearse(self, order: RehearseTrial) -> None:
        if order.timed:
            error, seconds = None, estimate_seconds(order.params, self._job, self._units.trainer)
        else:
            error, seconds = rehearse(order.params, self._job, self._cache, self._units.trainer), None
        if order.number is not None:
            self._report(TrialRehearsed(order.number, error, seconds))

    def _run(self, whole: RunUnit) -> None:
        with self._begin:
            left = [unit for unit in whole.members if self._waiting.pop(unit.attempt, None) is not None]
            if left and whole.partners:
                self._groups.enter(whole)
        kept = {unit.attempt for unit in left}
        for gone in whole.members:
            if gone.attempt not in kept and gone.parent is not None:
                self._parents.pop(gone.attempt).cancel()
        if left:
            self._run_all(replace(left[0], others=tuple(left[1:])))

    def _run_all(self, order: RunUnit) -> None:
        mark_trials(*(unit.unit.trial for unit in order.members))
        parents = {unit.attempt: self._parents.pop(unit.attempt) for unit in order.members if unit.parent is not None}
        if order.partners:
            self._groups.run(order, parents.get(order.attempt))
        elif order.others:
            self._units.run_together(order, parents)
        else:
            self._units.run(order, parents.get(order.attempt))
        mark_trials()

    def _load(self, partition: PartitionId) -> None:
        dataset = self._job.dataset
        self._report(LoadStarted(partition))
        try:
            self._cache.load(dataset, dataset.partition(partition))
        except Exception as error:
            # Whatever it is, the driver must hear of it: a worker that only died would be replaced, and die again.
            known = isinstance(error, (CerebroError, OSError))
            reason = f"{type(error).__name__}: {error}" if known else traceback.format_exc()
            self._report(PartitionLost(UNKNOWN_TIME, self._name, partition, reason))
            return
        self._report(PartitionLoaded(UNKNOWN_TIME, self._name, partition))

    def _drop(self, partition: PartitionId) -> None:
        dataset = self._job.dataset
        self._cache.release(dataset, dataset.partition(partition))
        self._units.forget(partition)
