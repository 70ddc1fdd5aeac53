"""Which worker holds which partitions, and what moves when workers come and go. PURE: values in, values out.

It prefers what is there already, then hosts that have a partition's blocks, then an even load; a worker twice as fast
may hold twice as many partitions when there are more partitions than workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro_spark.types import Partition, PartitionId, WorkerId

Holders = dict[PartitionId, tuple[WorkerId, ...]]


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker, as far as placement cares."""

    worker: WorkerId
    host: str = ""
    speed: float = 1.0


def place(
    partitions: Sequence[Partition],
    seats: Sequence[Seat],
    replicas: int = 1,
    current: Mapping[PartitionId, Collection[WorkerId]] | None = None,
) -> Holders:
    """Say who shall hold each partition: `replicas` workers, or all of them where there are fewer.

    `current` is what is held now; it is kept unless a worker holds more than its share and another less. With as many
    copies as workers, or more, every worker gets at least one.

    >>> seats = [Seat("w0"), Seat("w1", speed=2.0)]
    >>> place([Partition(f"p{i}") for i in range(3)], seats)
    {'p0': ('w1',), 'p1': ('w0',), 'p2': ('w1',)}
    """
    if not seats:
        return {partition.id: () for partition in partitions}
    copies = min(replicas, len(seats))
    held = _kept(partitions, seats, copies, current or {})
    quota = shares(copies * len(partitions), [seat.speed for seat in seats], at_most=len(partitions))
    quotas = {seat.worker: share for seat, share in zip(seats, quota, strict=True)}
    _fill(partitions, seats, copies, quotas, held)
    _level(seats, quotas, held)
    return {partition.id: tuple(held[partition.id]) for partition in partitions}


def shares(total: int, speeds: Sequence[float], at_most: int | None = None) -> list[int]:
    """Deal `total` equal pieces of work so that the last worker to finish finishes as early as possible.

    Every worker gets one piece first, while they last: a worker without a partition would be of no use at all.

    >>> shares(8, [1.0, 3.0])
    [2, 6]
    """
    counts = [0] * len(speeds)
    limit = total if at_most is None else at_most
    queue = [(False, 1 / speed, index) for index, speed in enumerate(speeds)] if limit else []
    heapq.heapify(queue)
    for _ in range(min(total, limit * len(speeds))):
        _, _, chosen = heapq.heappop(queue)
        counts[chosen] += 1
        if counts[chosen] < limit:
            heapq.heappush(queue, (True, (counts[chosen] + 1) / speeds[chosen], chosen))
    return counts


def _kept(
    partitions: Sequence[Partition],
    seats: Sequence[Seat],
    copies: int,
    current: Mapping[PartitionId, Collection[WorkerId]],
) -> dict[PartitionId, list[WorkerId]]:
    order = {seat.worker: index for index, seat in enumerate(seats)}
    return {
        partition.id: sorted((w for w in current.get(partition.id, ()) if w in order), key=order.__getitem__)[:copies]
        for partition in partitions
    }


def _fill(
    partitions: Sequence[Partition],
    seats: Sequence[Seat],
    copies: int,
    quotas: Mapping[WorkerId, int],
    held: dict[PartitionId, list[WorkerId]],
) -> None:
    """Find holders for what lacks them: on a host with the blocks wherever shares allow, by augmenting paths."""
    count = _counts(seats, held)
    taken: dict[WorkerId, list[PartitionId]] = {seat.worker: [] for seat in seats}
    locals_of = {p.id: [s.worker for s in seats if s.host and s.host in p.hosts] for p in partitions}

    def seek(partition: PartitionId, tried: set[WorkerId]) -> bool:
        for worker in sorted(locals_of[partition], key=lambda w: count[w] / max(quotas[w], 1)):
            if worker in tried or worker in held[partition]:
                continue
            tried.add(worker)
            if count[worker] < quotas[worker]:
                _put(partition, worker)
                return True
            for other in list(taken[worker]):
                if seek(other, tried):
                    taken[worker].remove(other)
                    held[other].remove(worker)
                    count[worker] -= 1
                    _put(partition, worker)
                    return True
        return False

    def _put(partition: PartitionId, worker: WorkerId) -> None:
        held[partition].append(worker)
        taken[worker].append(partition)
        count[worker] += 1

    for wanted in range(1, copies + 1):
        lacking = [p.id for p in partitions if len(held[p.id]) < wanted]
        if any(locals_of.values()):
            lacking = [p for p in lacking if not seek(p, set())]
        for partition, worker in _deal(lacking, wanted, seats, quotas, count, held):
            _put(partition, worker)


def _deal(
    lacking: Sequence[PartitionId],
    wanted: int,
    seats: Sequence[Seat],
    quotas: Mapping[WorkerId, int],
    count: Mapping[WorkerId, int],
    held: Mapping[PartitionId, Sequence[WorkerId]],
) -> Iterator[tuple[PartitionId, WorkerId]]:
    """Deal partitions to the workers with most room, going around the table one seat further for each further copy."""
    first = (wanted - 1) % len(seats)
    table = [*seats[first:], *seats[:first]]

    def room(index: int) -> tuple[bool, float, int]:
        seat = table[index]
        return count[seat.worker] >= quotas[seat.worker], (count[seat.worker] + 1) / seat.speed, index

    queue = [room(index) for index in range(len(table))]
    heapq.heapify(queue)
    for partition in lacking:
        passed = []
        while queue:
            entry = heapq.heappop(queue)
            worker = table[entry[2]].worker
            if worker not in held[partition]:
                yield partition, worker
                passed.append(room(entry[2]))
                break
            passed.append(entry)
        for entry in passed:
            heapq.heappush(queue, entry)


def _level(seats: Sequence[Seat], quotas: Mapping[WorkerId, int], held: dict[PartitionId, list[WorkerId]]) -> None:
    """Move single copies from workers above their share to workers below it."""
    speed = {seat.worker: seat.speed for seat in seats}
    count = _counts(seats, held)
    while True:
        above = sorted((w for w in count if count[w] > quotas[w]), key=lambda w: -count[w] / speed[w])
        below = sorted((w for w in count if count[w] < quotas[w]), key=lambda w: count[w] / speed[w])
        move = next(
            (
                (p, source, target)
                for source in above
                for target in below
                for p in held
                if _movable(held[p], source, target)
            ),
            None,
        )
        if move is None:
            return
        partition, source, target = move
        held[partition][held[partition].index(source)] = target
        count[source] -= 1
        count[target] += 1


def _movable(holders: Sequence[WorkerId], source: WorkerId, target: WorkerId) -> bool:
    return source in holders and target not in holders


def _counts(seats: Sequence[Seat], held: Mapping[PartitionId, Sequence[WorkerId]]) -> dict[WorkerId, int]:
    count = {seat.worker: 0 for seat in seats}
    for holders in held.values():
        for worker in holders:
            count[worker] += 1
    return count
