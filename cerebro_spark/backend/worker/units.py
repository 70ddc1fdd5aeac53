"""Runs units on a worker: loads the model and the data, trains or evaluates, saves, reports. It decides nothing.

A checkpoint is written while the next unit already runs; only when it is in the store is the unit reported.
"""

from __future__ import annotations

import os
import resource
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.metric_states import load_states, store_large_states
from cerebro_spark.backend.wire.messages import FromWorker, MemoryUsed, UnitStarted
from cerebro_spark.backend.worker.spare_buffer import SpareBuffer
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.errors import (
    CerebroError,
    CheckpointError,
    CheckpointUnreadable,
    ConfigurationError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
    TrialFailed,
)
from cerebro_spark.events import Blame, RunUnit, UnitFailed, UnitFinished
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import EvaluatedMember, Member, TrainedMember, Trainer
from cerebro_spark.trainer.feed import Array, Feed, batch_size_of
from cerebro_spark.types import Checkpoint, Metrics, PartitionId, Unit, WorkerId

Parent = Path | bytes
Outcome = TrainedMember | EvaluatedMember | Exception
# Events get their time from the driver's clock, when it receives them.
UNKNOWN_TIME = 0.0


class UnitRunner:
    """Runs the units of one worker, one at a time.

    Args:
        name: The worker's name.
        job: What it works on.
        cache: Its partitions.
        report: Sends a message to the driver; called from several threads.
        abandoned: Set when the driver is gone, and nothing is to be kept any more.
    """

    def __init__(
        self, name: WorkerId, job: Job, cache: Cache, report: Callable[[FromWorker], None], abandoned: threading.Event
    ) -> None:
        self._name = name
        self._job = job
        self._cache = cache
        self._report = report
        self._abandoned = abandoned
        self._saving = ThreadPoolExecutor(1, "save")
        self._spare = SpareBuffer()
        self._trainer: Trainer | None = None
        self._computed = 0.0  # when the last unit had been computed; 0 before the first
        self.waited = 0.0
        """The seconds for which nothing was computed before the unit that runs."""

    def trainer(self) -> Trainer:
        """Return the trainer, made on the first call."""
        if self._trainer is None:
            self._trainer = self._job.trainer.make_trainer(self._job.columns)
        return self._trainer

    def forget(self, partition: PartitionId) -> None:
        """Give up what the trainer keeps of a partition."""
        if self._trainer is not None:
            self._trainer.forget(partition)

    def fetch(self, parent: Checkpoint) -> Parent:
        """Return a checkpoint, as a file if the store has one here, else as bytes."""
        name = paths.checkpoint(self._job.run, parent)
        return self._job.store.local_path(name) or self._job.store.read(name)

    def close(self) -> None:
        """Wait until all is saved and reported."""
        self._saving.shutdown(wait=True)

    def note_begun(self) -> None:
        """Take notice that a unit has all that it waited for."""
        self.waited = time.perf_counter() - self._computed if self._computed else 0.0

    def note_computed(self) -> None:
        """Take notice that a unit has been computed, and is left to be saved."""
        self._computed = time.perf_counter()

    def run(self, order: RunUnit, parent: Future[Parent] | None) -> None:
        """Run a unit and report it; `parent` is the checkpoint that it starts from."""
        unit, attempt = order.unit, order.attempt
        self._report(UnitStarted(attempt))
        try:
            began = time.perf_counter()
            metrics, values = self._perform(order, parent)
            self.note_computed()
            seconds = self._computed - began
            metrics = store_large_states(metrics, self._job, unit.trial, attempt, final=order.final)
            report = UnitFinished(
                UNKNOWN_TIME,
                self._name,
                unit,
                attempt,
                seconds,
                metrics=metrics,
                values=values,
                waited=self.waited,
                steps=self.trainer().steps if unit.kind == "train" else "",
                strategy=self.trainer().strategy if unit.kind == "train" else "",
            )
            self.finish(order, report)
        except Exception as error:
            self.blame(order, error)

    def run_together(self, order: RunUnit, parents: Mapping[int, Future[Parent]]) -> None:
        """Run the units of an order with several trials at once, as far as possible, and report each.

        Args:
            order: The order.
            parents: The checkpoints that the units start from, by attempt.
        """
        self._report(UnitStarted(order.attempt))
        members: dict[int, Member] = {}
        permutations = self._draw_row_orders(order)
        for unit in order.members:
            try:
                permutation = permutations.get(unit.attempt)
                members[unit.attempt] = self._make_member(unit, parents.get(unit.attempt), permutation)
            except Exception as error:
                self.blame(unit, error)
        self.note_begun()
        outcomes = self._compute_together(order, list(members.values()))
        self.note_computed()
        self._report_memory()
        computed = [unit for unit in order.members if unit.attempt in members]
        results = list(zip(computed, outcomes, strict=True))
        if order.unit.kind == "eval":
            self._report_together(results, self.waited)
        else:
            self._saving.submit(self._report_together, results, self.waited)

    def _compute_together(self, order: RunUnit, members: Sequence[Member]) -> Sequence[Outcome]:
        """Return what came of each member; an error of all of them is each one's."""
        try:
            trainer = self.trainer()
            if order.unit.kind == "eval":
                return trainer.evaluate_together(members)
            return trainer.train_together(members, self._job.digest)
        except Exception as error:
            return [error] * len(members)

    def _draw_row_orders(self, order: RunUnit) -> dict[int, Array]:
        """Draw the orders of rows of all training units of an order, by the threads that train; by attempt.

        What fails here fails again where a unit makes its feed, and is blamed on that unit.
        """
        if order.unit.kind == "eval":
            return {}
        try:
            rows = self._job.dataset.partition(order.unit.partition).rows
            threads = self._job.trainer.resources.threads or len(os.sched_getaffinity(0))
            with ThreadPoolExecutor(min(threads, len(order.members)), "shuffle") as drawing:
                drawn = drawing.map(lambda unit: self._draw_row_order(unit.unit, rows), order.members)
                return {unit.attempt: permutation for unit, permutation in zip(order.members, drawn, strict=True)}
        except Exception:
            return {}

    def _draw_row_order(self, unit: Unit, rows: int) -> Array:
        return row_order(rows, self._job.trainer.seed, unit.trial, unit.epoch, unit.partition)

    def _make_member(self, order: RunUnit, parent: Future[Parent] | None, permutation: Array | None) -> Member:
        source, digest = None, ""
        if parent is not None and order.parent is not None:
            source, digest = parent.result(), order.parent.digest
        carry = load_states(order.carry, self._job.store)
        feed = self.make_feed(order, permutation)
        return Member(order.unit, order.params, feed, source, digest, order.rebased, carry, order.final)

    def _report_together(self, results: Sequence[tuple[RunUnit, Outcome]], waited: float) -> None:
        """Store what is left of units that were ordered together, then report all: they become one turn of the run."""
        ready: list[UnitFinished] = []
        for order, outcome in results:
            if self._abandoned.is_set():
                return
            if isinstance(outcome, Exception):
                self.blame(order, outcome)
                continue
            try:
                ready.append(self._store_member(order, outcome, 0.0 if ready else waited))
            except Exception as error:
                self._blame_saving(order, error)
        for report in ready:
            self._report(report)

    def _store_member(self, order: RunUnit, done: TrainedMember | EvaluatedMember, waited: float) -> UnitFinished:
        """Store large states of metrics, and the checkpoint of a training unit; return the report."""
        unit, attempt, checkpoint = order.unit, order.attempt, None
        metrics = store_large_states(done.metrics, self._job, unit.trial, attempt, final=order.final)
        if isinstance(done, TrainedMember):
            saved = done.saved
            checkpoint = Checkpoint(unit.trial, unit.epoch, order.step, attempt, saved.bytes, saved.digest)
            self._job.store.write(paths.checkpoint(self._job.run, checkpoint), done.checkpoint.getbuffer())
        return UnitFinished(
            UNKNOWN_TIME,
            self._name,
            unit,
            attempt,
            done.seconds,
            checkpoint,
            metrics,
            done.values,
            waited,
            done.steps if isinstance(done, TrainedMember) else "",
            done.width,
            strategy=done.strategy if isinstance(done, TrainedMember) else "",
        )

    def _perform(self, order: RunUnit, parent: Future[Parent] | None) -> tuple[Metrics, dict[str, float] | None]:
        unit, trainer = order.unit, self.trainer()
        self.make_current(trainer, order, parent)
        feed = self.make_feed(order)
        carry = load_states(order.carry, self._job.store)
        self.note_begun()
        run = trainer.train if unit.kind == "train" else trainer.evaluate
        metrics = run(unit, feed, carry)
        if not order.final:
            return metrics, None
        return metrics, trainer.finish(Metrics.merge([part for part in (carry, metrics) if part is not None]))

    def make_feed(self, order: RunUnit, permutation: Array | None = None) -> Feed:
        """Return the rows of a unit's partition, in the order in which the unit takes them: as drawn, or drawn now."""
        unit, dataset = order.unit, self._job.dataset
        arrays = self._cache.load(dataset, dataset.partition(unit.partition))
        size, key, most = batch_size_of(order.params), unit.partition, self._most_rows(order)
        if most is not None:
            arrays, key = {name: array[:most] for name, array in arrays.items()}, f"{key}[:{most}]"
        if unit.kind == "eval":
            return Feed(arrays, batch_size=size, key=key)
        rows = len(next(iter(arrays.values())))
        if permutation is None or len(permutation) != rows:
            permutation = self._draw_row_order(unit, rows)
        return Feed(arrays, permutation, batch_size=size, key=key, smallest=self._job.smallest_batch)

    def count_rows(self, order: RunUnit, partition: PartitionId) -> int:
        """Return how many rows of a partition the unit of an order takes."""
        rows, most = self._job.dataset.partition(partition).rows, self._most_rows(order)
        return rows if most is None else min(rows, most)

    def _most_rows(self, order: RunUnit) -> int | None:
        """Return how many rows of a partition a unit takes at most; None for all."""
        batches = self._job.batches
        return batch_size_of(order.params) * batches[(order.unit.epoch - 1) % len(batches)] if batches else None

    def make_current(self, trainer: Trainer, order: RunUnit, parent: Future[Parent] | None) -> None:
        if parent is None or order.parent is None:
            trainer.build(order.unit.trial, order.params)
            return
        trainer.load(
            order.unit.trial, order.params, parent.result(), digest=order.parent.digest, warm_start=order.rebased
        )

    def _report_memory(self) -> None:
        """Let the driver of a pilot know how much memory this process has had."""
        if self._job.batches:
            # Linux counts in kilobytes.
            self._report(MemoryUsed(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    def finish(self, order: RunUnit, report: UnitFinished) -> None:
        """Report an evaluation; of a training unit copy the state out of the trainer, and have it stored meanwhile."""
        if order.unit.kind == "eval":
            self._report_memory()
            self._report(report)
            return
        buffer = self._spare.take()
        saved = self.trainer().save(buffer, self._job.digest)
        unit = order.unit
        checkpoint = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt, saved.bytes, saved.digest)
        self._saving.submit(self._store, order, replace(report, checkpoint=checkpoint), buffer)

    def _store(self, order: RunUnit, report: UnitFinished, buffer: BytesIO) -> None:
        if self._abandoned.is_set() or report.checkpoint is None:
            return  # the driver has given this unit to another worker, and would never know of the file
        try:
            with buffer.getbuffer() as whole, whole[: report.checkpoint.bytes] as written:
                self._job.store.write(paths.checkpoint(self._job.run, report.checkpoint), written)
            self._spare.give_back(buffer)
            # Storing takes memory too, and of some stores much.
            self._report_memory()
            self._report(report)
        except Exception as error:
            # This thread has no caller that would see it: whatever it is, the driver must hear of it.
            self._blame_saving(order, error)

    def blame(self, order: RunUnit, error: Exception) -> None:
        """Report that a unit failed."""
        blame = blame_for(error)
        known = f"{type(error).__name__}: {error}"
        self._fail(order, "".join(traceback.format_exception(error)) if blame is None else known, blame or "trial")

    def _blame_saving(self, order: RunUnit, error: Exception) -> None:
        """Report that the checkpoint of a unit could not be stored."""
        refused = isinstance(error, (StoreUnavailable, StoreForbidden, StoreFull))
        blame: Blame | None = "store" if refused else blame_for(error)
        self._fail(order, f"{type(error).__name__}: {error}", blame or "worker")

    def _fail(self, order: RunUnit, error: str, blame: Blame) -> None:
        self._report(UnitFailed(UNKNOWN_TIME, self._name, order.unit, order.attempt, error, blame))


def blame_for(error: Exception) -> Blame | None:
    """Return what is at fault for the failure of a unit; None for an error that is not known here.

    >>> blame_for(OSError("no space left"))
    'worker'
    """
    match error:
        case CheckpointUnreadable():
            return "worker"  # the file, or the way to it: elsewhere, or later, it may be whole
        case TrialFailed() | ConfigurationError() | CheckpointError() | MemoryError():
            return "trial"
        case StoreUnavailable():
            return "store"
        case CerebroError() | OSError():
            return "worker"
        case _:
            return None
