"""What Hyperopt and Ray share: a task has all rows and trains one trial to its end. It knows neither of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Report, here_is_a_worker
from benchmarks.peers.loops import as_tensors, torch_trial
from benchmarks.peers.works import Array, Params, Work, label, nbytes, read_files


def epochs(work: Work, params: Params, rows: Path | list[Array]) -> Iterator[dict[str, Any]]:
    """Be a task, on rows that it loads from their folder or is given: after each epoch, what `report` wants to know."""
    here_is_a_worker()
    began = time.perf_counter()
    arrays = read_files(rows) if isinstance(rows, Path) else rows
    tensors = as_tensors(arrays)
    held, loading = nbytes(arrays), time.perf_counter() - began
    began, training = time.perf_counter(), 0.0
    for loss in torch_trial(work, params, tensors):
        training += time.perf_counter() - began
        yield {"loss": loss, "label": label(params), "bytes": held, "loading_s": loading, "training_s": training}
        began = time.perf_counter()


def report(tasks: Sequence[Any], wall: float, start: float, bytes_read: int | None = None) -> Report:
    """What the tasks told; they read all they had, unless it was read once for all of them."""
    return Report(
        wall_s=wall,
        start_s=start,
        losses={each["label"]: each["loss"] for each in tasks},
        hops=0,
        data_bytes=max(each["bytes"] for each in tasks),
        bytes_read=sum(each["bytes"] for each in tasks) if bytes_read is None else bytes_read,
        bytes_moved=0,
        counted={"bytes_read": "counted", "bytes_moved": "no model comes back"},
        # In a new process PyTorch's import counts as loading, and what its first optimizer imports as training.
        more={name: sum(each[name] for each in tasks) for name in ("loading_s", "training_s")},
    )
