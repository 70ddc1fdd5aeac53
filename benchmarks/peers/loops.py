"""The plain loops: what a user writes who has one process and no system. They measure nothing but losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.models import keras_model, torch_parts
from benchmarks.peers.works import BATCH, Array, Params, Work, read_files


def torch_arrays(folder: Path, part: int = 0, parts: int = 1) -> list[Any]:
    """The four arrays as tensors, or a share of their rows."""
    return as_tensors(read_files(folder, part, parts))


def as_tensors(arrays: list[Array]) -> list[Any]:
    """The same memory as tensors, after PyTorch was told to use one thread."""
    import torch

    torch.set_num_threads(1)
    return [torch.from_numpy(array) for array in arrays]


def train_epoch(module: Any, optimizer: Any, loss_fn: Any, x: Any, y: Any, epoch: int, batch: int = BATCH) -> None:
    """One pass over all rows in an order of this epoch's own."""
    import torch

    module.train()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for start in range(0, len(x), batch):
        rows = order[start : start + batch]
        optimizer.zero_grad()
        loss_fn(module(x[rows]), y[rows]).backward()
        optimizer.step()


def loss_sum(module: Any, loss_fn: Any, x: Any, y: Any) -> float:
    """The loss summed over all rows."""
    import torch

    module.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            total += float(loss_fn(module(x[rows]), y[rows])) * len(y[rows])
    return total


def torch_trial(work: Work, params: Params, arrays: list[Any]) -> Iterator[float]:
    """Train one trial to its end; the validation loss after each epoch."""
    import torch

    x, y, vx, vy = arrays
    torch.manual_seed(0)
    module, optimizer, loss_fn = torch_parts(work.kind, params)
    for epoch in range(work.epochs):
        train_epoch(module, optimizer, loss_fn, x, y, epoch)
        yield loss_sum(module, loss_fn, vx, vy) / len(vy)


def keras_trial(work: Work, params: Params, arrays: list[Array]) -> float:
    """Train one trial with Keras' own `fit`; the last validation loss."""
    import keras

    x, y, vx, vy = arrays
    keras.utils.set_random_seed(0)
    history = keras_model(work.kind, params).fit(
        x, y, batch_size=BATCH, epochs=work.epochs, validation_data=(vx, vy), validation_batch_size=BATCH, verbose=0
    )
    return float(history.history["val_loss"][-1])
