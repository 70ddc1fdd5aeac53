"""Evaluation units: which wait where, and what they measured. PURE; the scheduler decides when one starts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping

from cerebro_spark.events import UnitFinished
from cerebro_spark.scheduling.board import Bools
from cerebro_spark.scheduling.records import Evaluation, Merging, TrialRecord, WorkerRecord
from cerebro_spark.types import Checkpoint, Metrics, PartitionId, TrialId


def infer_merging(metrics: Metrics) -> Merging:
    """How metrics of several units become those of an epoch.

    >>> infer_merging(Metrics({"loss": 1.0}, {"loss": 2.0}))
    'plain'
    """
    return "carried" if metrics.carries else "states" if metrics.states else "plain"


class Evaluations:
    """Waiting evaluations by validation partition, oldest first.

    They go before training: they are short, and the search waits for them.
    """

    def __init__(self, partitions: list[PartitionId]) -> None:
        self._partitions = partitions
        self._waiting: dict[PartitionId, OrderedDict[tuple[TrialId, int], Evaluation]] = {
            partition: OrderedDict() for partition in partitions
        }
        self._merging: dict[TrialId, Merging] = {}

    def begin(
        self,
        trial: TrialRecord,
        checkpoint: Checkpoint,
        values: Mapping[str, float] | None,
        order: tuple[PartitionId, ...],
        kin: str = "",
    ) -> Evaluation:
        """The trial has trained its epoch: queue what must be measured of it, in this order if there is one."""
        todo, params, trained = list(order or self._partitions), trial.running_params, trial.trained
        begun = Evaluation(
            trial.epoch, checkpoint, todo, params, order, trained=trained, trained_values=values, kin=kin
        )
        for partition in todo:
            self._waiting[partition][trial.id, trial.epoch] = begun
        return begun

    def cancel(self, trial: TrialId, evaluation: Evaluation) -> None:
        for partition in evaluation.todo:
            self._waiting[partition].pop((trial, evaluation.epoch), None)

    def put_back(self, trial: TrialId, evaluation: Evaluation, partition: PartitionId) -> None:
        """An evaluation unit did not happen; it goes first next time."""
        evaluation.running -= 1
        evaluation.todo.append(partition)
        if evaluation.order:
            evaluation.todo.sort(key=evaluation.order.index)
        self._waiting[partition][trial, evaluation.epoch] = evaluation
        self._waiting[partition].move_to_end((trial, evaluation.epoch), last=False)

    @property
    def waiting(self) -> bool:
        """Whether any evaluation waits for a worker."""
        return any(self._waiting.values())

    def takers(self, workers: Mapping[str, WorkerRecord], able: Bools) -> list[WorkerRecord]:
        """The workers, of those that are able, that hold a partition for which something waits."""
        wanted = {partition for partition, waiting in self._waiting.items() if waiting}
        if not wanted:
            return []
        return [worker for worker in workers.values() if able[worker.row] and not wanted.isdisjoint(worker.holds)]

    def oldest(
        self, held: Collection[PartitionId], serial: bool, excluded: Collection[TrialId] = ()
    ) -> tuple[TrialId, Evaluation, PartitionId] | None:
        """The oldest evaluation that can run on one of these partitions, of a trial that is not excluded."""
        for partition in self._partitions:
            if partition in held:
                for trial, evaluation in self.ready(partition, serial, excluded):
                    return trial, evaluation, partition
        return None

    def ready(
        self, partition: PartitionId, serial: bool, excluded: Collection[TrialId] = ()
    ) -> Iterator[tuple[TrialId, Evaluation]]:
        """The evaluations that can run on this partition, oldest first. In series, one at a time for an epoch."""
        for (trial, _), evaluation in self._waiting[partition].items():
            waits = evaluation.running and (serial or self._must_wait(trial, evaluation))
            if not waits and trial not in excluded and not self._out_of_turn(trial, evaluation, partition):
                yield trial, evaluation

    def take(self, trial: TrialId, evaluation: Evaluation, partition: PartitionId) -> None:
        """An evaluation unit, which was ready, is under way from now on."""
        del self._waiting[partition][trial, evaluation.epoch]
        evaluation.todo.remove(partition)
        evaluation.running += 1

    def _must_wait(self, trial: TrialId, evaluation: Evaluation) -> bool:
        """Whether a unit must wait for those that run.

        Metrics that can only be updated go from partition to partition. Those that add up need the last unit to wait
        for all others, so that its worker can turn the sum into a value. Plain averages need nothing. Which it is shows
        with a trial's first unit, which therefore runs alone.
        """
        merging = self._merging.get(trial, "carried")
        return merging == "carried" or (merging == "states" and len(evaluation.todo) == 1)

    def _out_of_turn(self, trial: TrialId, evaluation: Evaluation, partition: PartitionId) -> bool:
        """Whether a script wants another partition first. Plain averages are the same in any order."""
        return bool(evaluation.order) and self._merging.get(trial) != "plain" and evaluation.todo[0] != partition

    def carry(self, trial: TrialId, evaluation: Evaluation, last: bool) -> Metrics | None:
        """What the units before have measured, where the next one needs it: added up always in the same order.

        States that add up are for the last one alone, which makes values of them.
        """
        merging = self._merging.get(trial)
        if not evaluation.measured or merging == "plain" or (merging == "states" and not last):
            return None
        order = list(evaluation.measured) if merging == "carried" else sorted(evaluation.measured)
        return Metrics.merge(evaluation.measured[partition] for partition in order)

    def record(self, trial: TrialId, evaluation: Evaluation, event: UnitFinished) -> bool:
        """A unit ended; whether that was the last of its epoch."""
        evaluation.running -= 1
        evaluation.measured[event.unit.partition] = event.metrics
        evaluation.measured_values = event.values
        self._merging[trial] = infer_merging(event.metrics)
        return not evaluation.todo and not evaluation.running

    def compute_values(self, evaluation: Evaluation) -> dict[str, float]:
        """All metrics of an epoch, added up in the order of partitions so that the sums are always the same."""
        trained = _add_up(evaluation.trained) if evaluation.trained_values is None else evaluation.trained_values
        measured = _add_up(evaluation.measured) if evaluation.measured_values is None else evaluation.measured_values
        return {**trained, **{f"val_{name}": value for name, value in measured.items()}}


def _add_up(parts: Mapping[PartitionId, Metrics]) -> Mapping[str, float]:
    return Metrics.merge(parts[partition] for partition in sorted(parts)).values()
