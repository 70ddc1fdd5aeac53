"""Batches of tensors on a device. Nothing here waits for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.torch.strategies.memory import free_bytes
from cerebro_spark.trainer.torch.tensors import from_numpy, over_memory, widen

Tensors = dict[str, torch.Tensor]
Conversion = Callable[[torch.Tensor], torch.Tensor]


class TensorBatches:
    """Turns feeds into batches of tensors on a device. Whole partitions are kept on a GPU while they fit.

    Args:
        columns: The columns of a batch.
        device: Where the model is.
        budget: The bytes of GPU memory for partitions; None for half of what is free.
    """

    def __init__(self, columns: Columns, device: torch.device, budget: int | None) -> None:
        self._columns = columns
        self._device = device
        self._budget = budget
        self._kept: dict[str, tuple[Any, Tensors]] = {}

    def load(self, feed: Feed | Iterable[Batch]) -> Iterator[Tensors]:
        """Yield the batches of a feed; batches without rows are left out."""
        if isinstance(feed, Feed):
            yield from self._gather(feed)
            return
        for batch in feed:
            tensors = self.load_batch(batch)
            if len(next(iter(tensors.values()))):
                yield tensors

    def load_batch(self, batch: Batch) -> Tensors:
        """Return one batch."""
        return {name: self._to_tensor(name, batch[name]).to(self._device) for name in self._columns.names}

    def load_together(self, feeds: Sequence[Feed], count: int) -> Iterator[Tensors]:
        """Yield the first batches of several feeds, which have the same size, each column with a row a feed."""
        names, size = self._columns.names, feeds[0].batch_size
        orders = torch.stack([torch.from_numpy(feed.order[: count * size]) for feed in feeds])
        arrays = [{name: over_memory(feed.arrays[name]) for name in names} for feed in feeds]
        shared = all(feed.arrays[name] is feeds[0].arrays[name] for feed in feeds for name in names)
        convert = self._find_conversions(feeds[0])
        for rows in orders.split(size, dim=1) if count else ():
            if shared:
                flat = rows.reshape(-1)
                gathered = {name: array.index_select(0, flat) for name, array in arrays[0].items()}
                yield {name: convert[name](part.view(*rows.shape, *part.shape[1:])) for name, part in gathered.items()}
            else:
                pairs = list(zip(arrays, rows, strict=True))
                parts = {name: torch.stack([own[name].index_select(0, row) for own, row in pairs]) for name in names}
                yield {name: convert[name](part) for name, part in parts.items()}

    def load_on_device(self, feeds: Sequence[Feed]) -> Iterator[Tensors] | None:
        """Return the batches of feeds of one partition, each column with a row a feed; None if it is not on the GPU."""
        first = feeds[0]
        if any(feed.arrays is not first.arrays or feed.sizes != first.sizes for feed in feeds):
            return None
        kept = self._keep(first)
        return None if kept is None else self._gather_together(feeds, kept)

    def _gather_together(self, feeds: Sequence[Feed], arrays: Tensors) -> Iterator[Tensors]:
        orders, sizes = np.stack([feed.order for feed in feeds]), feeds[0].sizes
        size = feeds[0].batch_size
        whole = sum(each == size for each in sizes)
        # The rows of one batch of all feeds lie together, so that nothing is copied for each batch.
        batches = orders[:, : whole * size].reshape(len(feeds), whole, size).swapaxes(0, 1)
        parts = [*self._send(batches), *self._send(orders[None, :, whole * size :])[: len(sizes) - whole]]
        for rows in parts:
            gathered = {name: array.index_select(0, rows) for name, array in arrays.items()}
            yield {name: part.view(len(feeds), -1, *part.shape[1:]) for name, part in gathered.items()}

    def _send(self, rows: Array) -> Sequence[torch.Tensor]:
        """Return the numbers of the rows of several batches, each in one piece, on the device."""
        flat = np.ascontiguousarray(rows).reshape(len(rows), rows.shape[1] * rows.shape[2])
        return torch.from_numpy(flat).to(self._device).unbind()

    def load_inputs(self, batch: Batch) -> Tensors:
        """Return the inputs of a batch."""
        return {name: from_numpy(batch[name]).to(self._device) for name in self._columns.inputs}

    def forget(self, key: str) -> None:
        """Free the partition of that key on the GPU."""
        self._kept.pop(key, None)

    @property
    def nbytes(self) -> int:
        """The bytes of all partitions on the GPU."""
        return sum(tensor.nbytes for _, kept in self._kept.values() for tensor in kept.values())

    def keep_none(self) -> None:
        """Free all partitions on the GPU, and keep none there from now on."""
        self._kept.clear()
        self._budget = 0

    def _gather(self, feed: Feed) -> Iterator[Tensors]:
        """Select the rows of each batch, on the GPU if the partition is there.

        Elsewhere no more of it than a batch is ever copied: it may be larger than the memory.
        """
        kept = self._keep(feed)
        arrays = kept or {name: over_memory(feed.arrays[name]) for name in self._columns.names}
        convert = self._find_conversions(feed)
        order = torch.from_numpy(feed.order)
        if kept is not None:
            order = order.to(self._device)
        # An empty tensor splits into one empty part, whose mean loss would be NaN.
        for rows in torch.split(order, feed.sizes) if len(order) else ():
            batch = {name: array.index_select(0, rows) for name, array in arrays.items()}
            if kept is None:
                batch = {name: convert[name](part) for name, part in batch.items()}
            if kept is None and self._device.type == "cuda":
                batch = {n: t.pin_memory().to(self._device, non_blocking=True) for n, t in batch.items()}
            yield batch

    def _to_tensor(self, name: str, array: Array) -> torch.Tensor:
        return self._find_conversion(name, array.dtype)(over_memory(array))

    def _find_conversions(self, feed: Feed) -> dict[str, Conversion]:
        return {name: self._find_conversion(name, feed.arrays[name].dtype) for name in self._columns.names}

    def _find_conversion(self, name: str, dtype: np.dtype[Any]) -> Conversion:
        """Return what makes of rows over the memory of a column what a model is given.

        Labels that are whole numbers become int64, as PyTorch's losses want them.
        """
        whole = dtype.kind in "iu" and name in self._columns.labels
        return lambda rows: widen(rows, dtype).long() if whole else widen(rows, dtype)

    def _keep(self, feed: Feed) -> Tensors | None:
        """Return the partition on the GPU, kept between units; None on a CPU, or if it does not fit."""
        if self._device.type != "cuda":
            return None
        arrays, tensors = self._kept.get(feed.key, (None, {}))
        if feed.key and arrays is feed.arrays:
            return tensors
        if not self._fits(feed.nbytes):
            return None
        tensors = {name: self._to_tensor(name, feed.arrays[name]).to(self._device) for name in self._columns.names}
        if feed.key:
            self._kept[feed.key] = (feed.arrays, tensors)
        return tensors

    def _fits(self, size: int) -> bool:
        if self._budget is None:
            return size <= free_bytes(self._device) // 2
        return self.nbytes + size <= self._budget
