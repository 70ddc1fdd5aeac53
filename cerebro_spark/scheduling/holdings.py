"""Orders workers to load and drop partitions until they hold what `placement` says. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from cerebro_spark.events import Action, DropPartition, LoadPartition, Settings
from cerebro_spark.placement import Holders, WorkerProfile, place
from cerebro_spark.scheduling.board import Board
from cerebro_spark.scheduling.records import WorkerRecord, merge_failures
from cerebro_spark.types import PartitionId, WorkerId

# How many units a worker must have been measured on before partitions move because of its speed.
_MEASUREMENTS = 8
# Speeds that differ less than this are noise, and not worth moving data for.
_NOTICEABLE = 1.25


class Holdings:
    """Which workers hold which partitions, and which ones are to hold them (`target`).

    Nothing is placed before the expected number of workers has joined, or the waiting has ended, so that the first
    worker is not told to load everything. A surplus copy is dropped only when all target holders have the partition.
    """

    def __init__(
        self, settings: Settings, workers: dict[WorkerId, WorkerRecord], board: Board, columns: dict[PartitionId, int]
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._board = board
        self._columns = columns
        self._gathered = False
        self._expected = settings.workers
        self._failed_loads: dict[PartitionId, list[WorkerId]] = {}
        self._speeds: dict[WorkerId, float] = {}
        # How many workers hold each partition, so that a surplus is seen without a look at every worker.
        self._copies: Counter[PartitionId] = Counter()
        self._further: dict[PartitionId, list[WorkerId]] = {}
        self.target: Holders = {}

    def add_worker(self, worker: WorkerRecord, holds: Iterable[PartitionId]) -> list[Action]:
        for partition in holds:
            self._set_held(worker, partition, True)
        if not self._gathered and len(self.available()) < self._expected:
            return []
        return self.gather()

    def await_workers(self, expected: int) -> None:
        """All workers are about to be replaced: place nothing until `expected` new ones have joined."""
        self._gathered, self._expected = False, expected
        self._failed_loads, self._speeds = {}, {}

    def gather(self) -> list[Action]:
        """Place partitions on the workers that are there, from now on."""
        self._gathered = True
        return self.follow_speeds() or self.settle()

    def record_load(self, worker: WorkerRecord, partition: PartitionId) -> list[Action]:
        self._failed_loads.pop(partition, None)
        self._set_held(worker, partition, True)
        return self._drop_surplus(partition)

    def record_failed_load(self, worker: WorkerRecord, partition: PartitionId) -> list[WorkerId]:
        """A worker could not load a partition or lost it; return the workers that did so in a row."""
        self._set_held(worker, partition, False)
        failures = self._failed_loads.setdefault(partition, [])
        failures.append(worker.id)
        return failures

    def forgive(self, worker: WorkerId, neighbours: Collection[WorkerId]) -> None:
        """Let the failed loads of these neighbours count as one for each partition, of this worker."""
        for partition, failures in self._failed_loads.items():
            self._failed_loads[partition] = merge_failures(failures, worker, neighbours)

    def release_all(self, worker: WorkerRecord) -> None:
        """The worker holds nothing any more."""
        for partition in list(worker.holds | worker.loading):
            self._set_held(worker, partition, False)

    def settle(self) -> list[Action]:
        """Place all partitions anew, and order the loads and drops that this takes."""
        if not self._gathered:
            return []
        profiles = [WorkerProfile(w.id, w.host, self._speeds.get(w.id, 1.0)) for w in self.available()]
        self.target = {}
        for split in ("train", "validation"):
            partitions = [p for p in self._settings.partitions if p.split == split]
            self.target |= place(partitions, profiles, self._settings.replicas, self._current())
        self._add_further({profile.worker for profile in profiles})
        surplus = [action for partition in self.target for action in self._drop_surplus(partition)]
        return self._load_missing() + surplus

    def add_holder(self, worker: WorkerRecord, partition: PartitionId) -> list[Action]:
        """A worker is to hold a partition too, beyond what placement says, for as long as it is there."""
        self._further.setdefault(partition, []).append(worker.id)
        return self.settle()

    def _add_further(self, there: Collection[WorkerId]) -> None:
        for partition, workers in self._further.items():
            more = [name for name in workers if name in there and name not in self.target[partition]]
            self.target[partition] = (*self.target[partition], *more)

    def follow_speeds(self) -> list[Action]:
        """Move partitions to faster workers, if there are partitions to spare and speeds are known well enough."""
        seated = self.available()
        if len(self._columns) * self._settings.replicas <= len(seated) or not self._gathered:
            return []
        if not all(self._board.costs.speed_is_sure(worker.row, _MEASUREMENTS) for worker in seated):
            return []
        speeds = {worker.id: self._board.costs.speed(worker.row) for worker in seated}
        pairs = [(speed, self._speeds.get(name, 1.0)) for name, speed in speeds.items()]
        if all(max(pair) / min(pair) < _NOTICEABLE for pair in pairs):
            return []
        self._speeds = speeds
        return self.settle()

    def available(self) -> list[WorkerRecord]:
        """Return the workers that can be given partitions and units."""
        return [worker for worker in self._workers.values() if worker.live and not worker.retiring]

    def _current(self) -> dict[PartitionId, list[WorkerId]]:
        current: dict[PartitionId, list[WorkerId]] = {}
        for worker in self.available():
            for partition in worker.holds | worker.loading:
                current.setdefault(partition, []).append(worker.id)
        return current

    def _load_missing(self) -> list[Action]:
        actions: list[Action] = []
        for partition, holders in self.target.items():
            for name in holders:
                worker = self._workers[name]
                if partition not in worker.holds and partition not in worker.loading:
                    worker.loading.add(partition)
                    actions.append(LoadPartition(name, partition))
        return actions

    def _drop_surplus(self, partition: PartitionId) -> list[Action]:
        """Drop the copies of a partition beyond its target holders, once these all hold it."""
        holders = self.target.get(partition, ())
        if self._copies[partition] <= len(holders):
            return []
        if not all(partition in self._workers[name].holds for name in holders):
            return []
        surplus = [w for w in self.available() if partition in w.holds and w.id not in holders]
        for worker in surplus:
            self._set_held(worker, partition, False)
        return [DropPartition(worker.id, partition) for worker in surplus]

    def _set_held(self, worker: WorkerRecord, partition: PartitionId, held: bool) -> None:
        worker.loading.discard(partition)
        if held != (partition in worker.holds):
            worker.holds ^= {partition}
            self._copies[partition] += 1 if held else -1
            if partition in self._columns:
                self._board.hold(worker.row, self._columns[partition], held)
