"""Which worker holds which partitions, and what moves when workers come and go. PURE: values in, values out.

It keeps the load even (a worker twice as fast may hold twice as many partitions), then each partition near its blocks,
then what is held where it is: as few loads as that takes, and none if no worker came or went.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro_spark.types import Partition, PartitionId, WorkerId

Holders = dict[PartitionId, tuple[WorkerId, ...]]
_Move = tuple[PartitionId, WorkerId, WorkerId]  # what, from which worker, to which


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
        came: dict[WorkerId, tuple[WorkerId | None, PartitionId | None]] = {}
        queue: deque[WorkerId] = deque()

        def reach(workers: Iterable[WorkerId], source: WorkerId | None, moved: PartitionId | None) -> None:
            for worker in workers:
                if worker not in came:
                    came[worker] = (source, moved)
                    queue.append(worker)

        reach(self._others_near(partition), None, partition)
        while queue:
            worker = queue.popleft()
            if self._has_room(worker):
                self._shift(worker, came)
                return True
            for held in self._on[worker]:
                reach(self._others_near(held), worker, held)
            # Room can also come from one of its kind that gives up having one more, and gets nothing for it.
            reach(self._rivals(worker), worker, None)
        return False

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

    def _shift(self, end: WorkerId, came: Mapping[WorkerId, tuple[WorkerId | None, PartitionId | None]]) -> None:
        """Move every partition on the path that ends here by one worker."""
        worker: WorkerId | None = end
        while worker is not None:
            source, moved = came[worker]
            if moved is not None:
                self.put(moved, worker)
                if source is not None:
                    self._take(moved, source)
            worker = source

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
        chain = [best] if gain(best) >= 0 else _near_chain(above, below, held, hosts, host) or [best]
        for partition, source, target in chain:
            held[partition][held[partition].index(source)] = target
        count[chain[-1][2]] += 1
        count[chain[0][1]] -= 1


def _near_chain(
    above: Sequence[WorkerId],
    below: Collection[WorkerId],
    held: Mapping[PartitionId, Sequence[WorkerId]],
    hosts: Mapping[PartitionId, Sequence[str]],
    host: Mapping[WorkerId, str],
) -> list[_Move]:
    """The fewest moves that take one copy from a worker above its share to one below it, each to a host with its
    blocks: workers in between hand one on for the one they get. Empty if there is no such way.
    """
    came: dict[WorkerId, _Move | None] = dict.fromkeys(above)
    queue = deque(above)
    while queue:
        source = queue.popleft()
        if source in below:
            chain: list[_Move] = []
            while (move := came[source]) is not None:
                chain.insert(0, move)
                source = move[1]
            return chain
        for partition, holders in held.items():
            for target in host:
                if target not in came and host[target] in hosts[partition] and _movable(holders, source, target):
                    came[target] = (partition, source, target)
                    queue.append(target)
    return []


def _movable(holders: Sequence[WorkerId], source: WorkerId, target: WorkerId) -> bool:
    return source in holders and target not in holders
