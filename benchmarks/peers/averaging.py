"""Model averaging: each process trains on its half of the rows, and once an epoch the weights are averaged over gloo.

Adam's own state stays where it is, as is usual with this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers import pair, together
from benchmarks.peers.loops import train_epoch
from benchmarks.peers.works import Work


def epochs(work: Work, module: Any, optimizer: Any, loss_fn: Any, x: Any, y: Any) -> Iterator[int]:
    import torch.distributed as dist
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    for epoch in range(work.epochs):
        train_epoch(module, optimizer, loss_fn, x, y, epoch)
        weights = parameters_to_vector(module.parameters()).detach()
        dist.all_reduce(weights)
        vector_to_parameters(weights / together.PROCESSES, module.parameters())
        yield together.all_reduce_bytes(module)


if __name__ == "__main__":
    pair.main("benchmarks.peers.averaging", lambda given, rank: together.half(given, rank, epochs), together.report)
