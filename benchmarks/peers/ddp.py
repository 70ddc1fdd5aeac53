"""Data parallelism: PyTorch DDP over gloo, one trial at a time, gradients summed at every step. The global batch stays.

Each process keeps the half of the rows that it drew once: `DistributedSampler` would deal them anew every epoch, for
which each process needs all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import pair, together
from benchmarks.peers.loops import train_epoch
from benchmarks.peers.works import BATCH, Work


def epochs(work: Work, module: Any, optimizer: Any, loss_fn: Any, x: Any, y: Any) -> Iterator[int]:
    from torch.nn.parallel import DistributedDataParallel

    share = BATCH // together.PROCESSES
    wrapped = DistributedDataParallel(module)
    steps = -(-len(x) // share)
    for epoch in range(work.epochs):
        train_epoch(wrapped, optimizer, loss_fn, x, y, epoch, batch=share)
        yield steps * together.all_reduce_bytes(module)


if __name__ == "__main__":
    pair.main("benchmarks.peers.ddp", lambda given, rank: together.half(given, rank, epochs), together.report)
