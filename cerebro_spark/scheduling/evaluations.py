"""Evaluation units: which wait where, and what they measured. PURE; the scheduler decides when one starts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from cerebro_spark.scheduling.board import Bools
from cerebro_spark.scheduling.roster import Evaluation, WorkerRecord
from cerebro_spark.types import Checkpoint, Metrics, PartitionId, TrialId


class Evaluations:
    """Waiting evaluations by validation partition, oldest first.

    They go before training: they are short, and the search waits for them.
    """

    def __init__(self, partitions: list[PartitionId]) -> None:
        self._partitions = partitions
        self._waiting: dict[PartitionId, OrderedDict[tuple[TrialId, int], Evaluation]] = {
            partition: OrderedDict() for partition in partitions
        }

    def begin(self, epoch: int, checkpoint: Checkpoint, trained: dict[PartitionId, Metrics]) -> Evaluation:
        """An epoch was trained; this is what must be measured of it."""
        return Evaluation(epoch, checkpoint, list(self._partitions), trained=trained)

    def queue(self, trial: TrialId, evaluation: Evaluation) -> None:
        for partition in evaluation.todo:
            self._waiting[partition][trial, evaluation.epoch] = evaluation

    def cancel(self, trial: TrialId, evaluation: Evaluation) -> None:
        for partition in evaluation.todo:
            self._waiting[partition].pop((trial, evaluation.epoch), None)

    def put_back(self, trial: TrialId, evaluation: Evaluation, partition: PartitionId) -> None:
        """An evaluation unit did not happen; it goes first next time."""
        evaluation.running -= 1
        evaluation.todo.append(partition)
        self._waiting[partition][trial, evaluation.epoch] = evaluation
        self._waiting[partition].move_to_end((trial, evaluation.epoch), last=False)

    def takers(self, workers: Mapping[str, WorkerRecord], idle: Bools) -> list[WorkerRecord]:
        """The idle workers that hold a partition for which something waits."""
        wanted = {partition for partition, waiting in self._waiting.items() if waiting}
        if not wanted:
            return []
        return [worker for worker in workers.values() if idle[worker.row] and not wanted.isdisjoint(worker.holds)]

    def take(self, held: Collection[PartitionId], serial: bool) -> tuple[TrialId, Evaluation, PartitionId] | None:
        """The oldest evaluation that can run on one of these partitions. In series, one at a time for an epoch."""
        for partition in self._partitions:
            if partition in held:
                for (trial, _), evaluation in self._waiting[partition].items():
                    if not (serial and evaluation.running):
                        del self._waiting[partition][trial, evaluation.epoch]
                        evaluation.todo.remove(partition)
                        evaluation.running += 1
                        return trial, evaluation, partition
        return None

    def measured(self, evaluation: Evaluation, partition: PartitionId, metrics: Metrics) -> bool:
        """A unit ended; whether that was the last of its epoch."""
        evaluation.running -= 1
        evaluation.measured[partition] = metrics
        return not evaluation.todo and not evaluation.running

    def values(self, evaluation: Evaluation) -> dict[str, float]:
        """All metrics of an epoch, added up in the order of partitions so that the sums are always the same."""
        trained = Metrics.merge(evaluation.trained[p] for p in sorted(evaluation.trained))
        measured = Metrics.merge(evaluation.measured[p] for p in sorted(evaluation.measured))
        return {**trained.values(), **measured.values("val_")}

    def snapshot(self) -> dict[str, Any]:
        """What waits, for comparing two schedulers."""
        return {partition: list(waiting) for partition, waiting in self._waiting.items()}
