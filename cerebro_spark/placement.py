"""Which worker holds which partitions, and what moves when workers come and go. PURE: values in, values out.

It keeps the load even (a worker twice as fast may hold twice as many partitions), then each partition near its blocks,
then what is held where it is: as few loads as that takes, and none if no worker came or went.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro_spark.types import Partition, PartitionId, WorkerId

Holders = dict[PartitionId, tuple[WorkerId, ...]]
_Step = tuple[WorkerId, PartitionId]  # to which worker, and what
_Move = tuple[PartitionId, WorkerId, WorkerId]  # what, from which worker, to which; "" for nothing and for none


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """What placement knows of a worker. `speed` is relative to other workers."""

    worker: WorkerId
    host: str = ""
    speed: float = 1.0


def place(
    partitions: Sequence[Partition],
    profiles: Sequence[WorkerProfile],
    replicas: int = 1,
    current: Mapping[PartitionId, Collection[WorkerId]] | None = None,
) -> Holders:
    """Return which workers are to hold each partition: `replicas` of them, or all where there are fewer.

    `current` is what is held now; it is kept unless a worker holds more than its share and another less, or a partition
    that lacks a holder can be near its blocks only if another one near its own makes room. With as many copies as
    workers, or more, every worker gets at least one.

    >>> profiles = [WorkerProfile("w0"), WorkerProfile("w1", speed=2.0)]
    >>> place([Partition(f"p{i}") for i in range(3)], profiles)
    {'p0': ('w1',), 'p1': ('w0',), 'p2': ('w1',)}
    """
    if not profiles:
        return {partition.id: () for partition in partitions}
    copies = min(replicas, len(profiles))
    held = _kept(partitions, profiles, copies, current or {})
    quota = share_out(copies * len(partitions), [profile.speed for profile in profiles], at_most=len(partitions))
    quotas = {profile.worker: share for profile, share in zip(profiles, quota, strict=True)}
    nearness = _fill(partitions, profiles, copies, quotas, held)
    _level(partitions, profiles, nearness.quotas(), nearness.count, held)
    return {partition.id: tuple(held[partition.id]) for partition in partitions}


def share_out(total: int, speeds: Sequence[float], at_most: int | None = None) -> list[int]:
    """Return how many of `total` equal pieces of work each worker gets, so that all are done as early as possible.

    Every worker gets one piece first, while they last: a worker without a partition would be of no use.

    >>> share_out(8, [1.0, 3.0])
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
    profiles: Sequence[WorkerProfile],
    copies: int,
    current: Mapping[PartitionId, Collection[WorkerId]],
) -> dict[PartitionId, list[WorkerId]]:
    order = {profile.worker: index for index, profile in enumerate(profiles)}
    return {
        partition.id: sorted((w for w in current.get(partition.id, ()) if w in order), key=order.__getitem__)[:copies]
        for partition in partitions
    }


def _fill(
    partitions: Sequence[Partition],
    profiles: Sequence[WorkerProfile],
    copies: int,
    quotas: Mapping[WorkerId, int],
    held: dict[PartitionId, list[WorkerId]],
) -> _Nearness:
    """Find holders for what lacks them, on a host with the blocks wherever shares allow; return what is where now."""
    nearness = _Nearness(partitions, profiles, quotas, held)
    for wanted in range(1, copies + 1):
        lacking = [p.id for p in partitions if len(held[p.id]) < wanted]
        if nearness.known:
            lacking = [partition for partition in lacking if not nearness.seek(partition)]
        for partition, worker in _deal(lacking, wanted, profiles, nearness.quotas(), nearness.count, held):
            nearness.put(partition, worker)
    return nearness


class _Nearness:
    """Puts partitions on workers of hosts with their blocks, by augmenting paths: what is in the way moves on.

    What is held already moves too, if it finds another host with its blocks: two loads from a near disk instead of one
    over the network, and all units near their blocks afterwards. Among workers of one speed it does not matter which
    of them has one partition more: it is one near the blocks.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        profiles: Sequence[WorkerProfile],
        quotas: Mapping[WorkerId, int],
        held: dict[PartitionId, list[WorkerId]],
    ) -> None:
        self._held = held
        at: dict[str, list[WorkerId]] = defaultdict(list)
        by_speed: dict[float, list[WorkerId]] = defaultdict(list)
        for profile in profiles:
            at[profile.host].append(profile.worker)
            by_speed[profile.speed].append(profile.worker)
        self._near = {p.id: [worker for host in p.hosts if host for worker in at[host]] for p in partitions}
        self._peers = {profile.worker: by_speed[profile.speed] for profile in profiles}
        ranges = {speed: [quotas[peer] for peer in peers] for speed, peers in by_speed.items()}
        self._least = {profile.worker: min(ranges[profile.speed]) for profile in profiles}
        self._most = {profile.worker: max(ranges[profile.speed]) for profile in profiles}
        # By the first of a kind: how many of it may have one more than the others, and how many more may still get it.
        self._extras = {p[0]: sum(quotas[w] > self._least[w] for w in p) for p in by_speed.values()}
        self._extra = dict(self._extras)
        self._on: dict[WorkerId, list[PartitionId]] = {profile.worker: [] for profile in profiles}
        self.count = {profile.worker: 0 for profile in profiles}
        for partition, holders in held.items():
            for worker in holders:
                self._note(partition, worker)

    @property
    def known(self) -> bool:
        """Whether any worker is near any blocks."""
        return any(self._near.values())

    def quotas(self) -> dict[WorkerId, int]:
        """Each worker's share, where those that have one more than others already are those that may."""
        shares = dict(self._least)
        for first, extra in self._extras.items():
            peers = self._peers[first]
            for worker in sorted(peers, key=lambda w: self.count[w] <= self._least[w])[:extra]:
                shares[worker] = self._most[worker]
        return shares

    def seek(self, partition: PartitionId) -> bool:
        """Give the partition to a worker near its blocks, if room can be made there: along the shortest path."""
        starts = [(worker, partition) for worker in self._others_near(partition)]
        chain = _shortest_chain(starts, self._steps_from, self._has_room)
        for moved, source, worker in reversed(chain):
            if moved:
                self.put(moved, worker)
                if source:
                    self._take(moved, source)
        return bool(chain)

    def _steps_from(self, worker: WorkerId) -> Iterator[_Step]:
        """What could leave a worker without room, and to where."""
        for held in self._on[worker]:
            yield from ((other, held) for other in self._others_near(held))
        # Room can also come from one of its kind that gives up having one more, and gets nothing for it.
        yield from ((rival, "") for rival in self._rivals(worker))

    def put(self, partition: PartitionId, worker: WorkerId) -> None:
        self._held[partition].append(worker)
        self._note(partition, worker)

    def _note(self, partition: PartitionId, worker: WorkerId) -> None:
        self._on[worker].append(partition)
        self.count[worker] += 1
        self._extra[self._peers[worker][0]] -= self.count[worker] == self._least[worker] + 1

    def _take(self, partition: PartitionId, worker: WorkerId) -> None:
        self._held[partition].remove(worker)
        self._on[worker].remove(partition)
        self.count[worker] -= 1
        self._extra[self._peers[worker][0]] += self.count[worker] == self._least[worker]

    def _others_near(self, partition: PartitionId) -> list[WorkerId]:
        """Workers near the blocks that do not hold the partition, those with most room first."""
        near = [worker for worker in self._near[partition] if worker not in self._held[partition]]
        return sorted(near, key=lambda worker: self.count[worker] / max(self._most[worker], 1))

    def _has_room(self, worker: WorkerId) -> bool:
        if self.count[worker] < self._least[worker]:
            return True
        return self.count[worker] < self._most[worker] and self._extra[self._peers[worker][0]] > 0

    def _rivals(self, worker: WorkerId) -> list[WorkerId]:
        if self.count[worker] >= self._most[worker]:
            return []
        return [peer for peer in self._peers[worker] if self.count[peer] == self._most[peer]]


def _deal(
    lacking: Sequence[PartitionId],
    wanted: int,
    profiles: Sequence[WorkerProfile],
    quotas: Mapping[WorkerId, int],
    count: Mapping[WorkerId, int],
    held: Mapping[PartitionId, Sequence[WorkerId]],
) -> Iterator[tuple[PartitionId, WorkerId]]:
    """Yield holders for partitions, workers with most room first; each further copy begins one worker further on."""
    first = (wanted - 1) % len(profiles)
    table = [*profiles[first:], *profiles[:first]]

    def room(index: int) -> tuple[bool, float, int]:
        profile = table[index]
        return count[profile.worker] >= quotas[profile.worker], (count[profile.worker] + 1) / profile.speed, index

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


def _level(
    partitions: Sequence[Partition],
    profiles: Sequence[WorkerProfile],
    quotas: Mapping[WorkerId, int],
    count: dict[WorkerId, int],
    held: dict[PartitionId, list[WorkerId]],
) -> None:
    """Move single copies from workers above their share to workers below it, towards their blocks if possible."""
    speed = {profile.worker: profile.speed for profile in profiles}
    host = {profile.worker: profile.host for profile in profiles}
    hosts = {partition.id: partition.hosts for partition in partitions}

    def gain(move: _Move) -> int:
        partition, source, target = move
        return (host[target] in hosts[partition]) - (host[source] in hosts[partition])

    def near_steps(source: WorkerId) -> Iterator[_Step]:
        for partition, holders in held.items():
            near = (worker for worker in host if host[worker] in hosts[partition])
            yield from ((target, partition) for target in near if _movable(holders, source, target))

    while True:
        above = sorted((w for w in count if count[w] > quotas[w]), key=lambda w: -count[w] / speed[w])
        below = sorted((w for w in count if count[w] < quotas[w]), key=lambda w: count[w] / speed[w])
        moves = (
            (p, source, target)
            for source in above
            for target in below
            for p in held
            if _movable(held[p], source, target)
        )
        best = max(moves, key=gain, default=None) if any(hosts.values()) else next(moves, None)
        if best is None:
            return
        # Where a single move would go away from the blocks, workers in between may hand one on for the one they get.
        chain = [] if gain(best) >= 0 else _shortest_chain([(w, "") for w in above], near_steps, below.__contains__)
        chain = chain[1:] or [best]
        for partition, source, target in chain:
            held[partition][held[partition].index(source)] = target
        count[chain[-1][2]] += 1
        count[chain[0][1]] -= 1


def _shortest_chain(
    starts: Iterable[_Step], steps_from: Callable[[WorkerId], Iterable[_Step]], is_end: Callable[[WorkerId], bool]
) -> list[_Move]:
    """The fewest moves, beginning with one of `starts`, that end at such a worker: breadth first. Empty if none do."""
    came: dict[WorkerId, _Move] = {}
    queue: deque[WorkerId] = deque()

    def reach(steps: Iterable[_Step], source: WorkerId) -> None:
        for worker, moved in steps:
            if worker not in came:
                came[worker] = (moved, source, worker)
                queue.append(worker)

    reach(starts, "")
    while queue:
        worker = queue.popleft()
        if is_end(worker):
            chain = [came[worker]]
            while chain[0][1]:
                chain.insert(0, came[chain[0][1]])
            return chain
        reach(steps_from(worker), worker)
    return []


def _movable(holders: Sequence[WorkerId], source: WorkerId, target: WorkerId) -> bool:
    return source in holders and target not in holders
