"""A made-up schedule of hopping trials, for pages to show: what ran where and when. It trains nothing."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MadeUnit:
    """A unit of a made-up run; those with the same worker, start and `width` above 1 ran together."""

    trial: int
    epoch: int
    partition: int
    start: float
    end: float
    train: bool = True
    width: int = 1

    @property
    def worker(self) -> int:
        return self.partition


@dataclass(slots=True)
class _Bundle:
    """Trials that hop together, and where they have not been yet in this epoch."""

    trials: tuple[int, ...]
    epoch: int = 1
    open: set[int] = field(default_factory=set)
    free_at: float = 0.0


def schedule(trials: int, epochs: int, workers: int, seed: int, fused: int = 0) -> list[MadeUnit]:
    """Return the units of a whole run, in the order of their ends. Worker n holds partition n.

    Args:
        trials: How many there are.
        epochs: How many each trains.
        workers: How many there are, and so partitions.
        seed: Of the lengths of units.
        fused: The first so many trials hop together.
    """
    chance = random.Random(seed)
    bundles = [_Bundle(tuple(range(fused)))] if fused else []
    bundles += [_Bundle((trial,)) for trial in range(fused, trials)]
    for bundle in bundles:
        bundle.open = set(range(workers))
    free = [(0.0, worker) for worker in range(workers)]
    units: list[MadeUnit] = []
    while free:
        now, worker = heapq.heappop(free)
        ready = [one for one in bundles if worker in one.open and one.epoch <= epochs]
        if not ready:
            if any(one.epoch <= epochs for one in bundles):
                waits = min(one.free_at for one in bundles if one.epoch <= epochs)
                heapq.heappush(free, (max(now, waits) + 0.05, worker))
            continue
        bundle = min(ready, key=lambda one: (max(one.free_at, now), one.epoch, one.trials))
        start = max(now, bundle.free_at) + 0.02
        end = start + chance.uniform(0.8, 1.6) * (1 + 0.3 * (len(bundle.trials) - 1))
        units += _ran(bundle, worker, start, end)
        bundle.open.discard(worker)
        bundle.free_at = end
        heapq.heappush(free, (end, worker))
        if not bundle.open:
            bundle.epoch += 1
            bundle.open = set(range(workers))
    return sorted(units, key=lambda unit: unit.end)


def _ran(bundle: _Bundle, worker: int, start: float, end: float) -> Iterator[MadeUnit]:
    last = len(bundle.open) == 1
    for trial in bundle.trials:
        yield MadeUnit(trial, bundle.epoch, worker, start, end, width=len(bundle.trials))
        if last and len(bundle.trials) == 1:
            yield MadeUnit(trial, bundle.epoch, worker, end, end + 0.15, train=False)


def rotation(trials: int, epochs: int, workers: int) -> list[MadeUnit]:
    """Return the units of a large run in which all trials go round: quick to make, a second each."""
    apart = max(1, trials // workers)
    return [
        MadeUnit((step + worker * apart) % trials, epoch, worker, start, start + 0.95)
        for epoch in range(1, epochs + 1)
        for step in range(trials)
        for start in [float((epoch - 1) * trials + step)]
        for worker in range(workers)
    ]
