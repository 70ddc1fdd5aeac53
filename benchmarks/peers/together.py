"""What data parallelism and model averaging share: two processes on half of the rows each, one trial at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Report
from benchmarks.peers.loops import loss_sum, torch_arrays
from benchmarks.peers.models import torch_parts
from benchmarks.peers.works import WORKS, Work, label, nbytes

PROCESSES = 2
Epochs = Callable[[Work, Any, Any, Any, Any, Any], Iterator[int]]


def half(given: Any, rank: int, epochs: Epochs) -> dict[str, Any]:
    """Train all trials, one after another.

    `epochs(work, module, optimizer, loss, x, y)` trains one; after each epoch it says how many bytes the two sent.
    """
    import torch
    import torch.distributed as dist

    work = WORKS[given.work]
    tensors = torch_arrays(given.folder, rank, PROCESSES)
    x, y, vx, vy = tensors
    _join(given.folder, rank)
    losses, sent = {}, 0
    for params in work.trials:
        torch.manual_seed(0)
        module, optimizer, loss_fn = torch_parts(work.kind, params)
        for moved in epochs(work, module, optimizer, loss_fn, x, y):
            sent += moved
            total = torch.tensor([loss_sum(module, loss_fn, vx, vy), float(len(vy))], dtype=torch.float64)
            dist.all_reduce(total)
            losses[label(params)] = float(total[0] / total[1])
    dist.destroy_process_group()
    return {"losses": losses, "bytes": nbytes([each.numpy() for each in tensors]), "sent": sent}


def report(wall: float, halves: list[dict[str, Any]]) -> Report:
    return Report(
        wall_s=wall,
        losses=halves[0]["losses"],
        hops=0,
        data_bytes=max(each["bytes"] for each in halves),
        bytes_read=sum(each["bytes"] for each in halves),
        bytes_moved=halves[0]["sent"],
        counted={"bytes_read": "counted", "bytes_moved": "formula: 2(p-1) x the parameters' bytes an all-reduce"},
    )


def all_reduce_bytes(module: Any) -> int:
    """What a ring of processes sends, all together, to sum something as large as the parameters."""
    size: int = sum(each.numel() * each.element_size() for each in module.parameters())
    return 2 * (PROCESSES - 1) * size


def _join(folder: Path, rank: int) -> None:
    """Meet the other process through a file beside the data, over gloo."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Both halves have one parent, whose number no other run beside this data has at the same time.
    meeting = folder / f"meeting-{os.getppid()}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES)
