"""The rows of a partition in batches, in an order that a seed decides. It copies a row once and never again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.partitioning.deal import generator
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.trainer.feed import batch_sizes


class Batches:
    """Iterates over arrays of equal length in batches. Every iteration is the same.

    The last batch may be short; below `smallest` rows it joins the one before it, as in training units.

    The order is that of (seed, trial, epoch, partition), on every machine and in every process. With `shuffle=False`
    rows come as they are stored, and batches are views.

    >>> batches = Batches({"x": np.arange(5)}, 2, seed=0, trial="t1", epoch=1, partition="train-00000")
    >>> len(batches), sorted(int(v) for batch in batches for v in batch["x"])
    (3, [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        batch_size: int,
        *,
        seed: int = 0,
        trial: str = "",
        epoch: int = 0,
        partition: str = "",
        shuffle: bool = True,
        smallest: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size is {batch_size}, but must be at least 1")
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays of a partition must have as many rows as each other, not {lengths}")
        self.arrays = dict(arrays)
        self.batch_size = batch_size
        self.rows = next(iter(lengths.values()))
        self.shuffle = shuffle
        self.smallest = smallest
        self._key = (seed, trial, epoch, partition)

    def __len__(self) -> int:
        return len(self._sizes())

    def order(self) -> NDArray[np.int64]:
        """The order in which the rows come."""
        return row_order(self.rows, *self._key) if self.shuffle else np.arange(self.rows)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        order = self.order() if self.shuffle else None
        start = 0
        for size in self._sizes():
            here, start = slice(start, start + size), start + size
            if order is None:
                yield {name: array[here] for name, array in self.arrays.items()}
                continue
            rows = order[here]
            # With mode="raise" NumPy would check every index; ours are a permutation.
            yield {name: array.take(rows, axis=0, mode="clip") for name, array in self.arrays.items()}

    def _sizes(self) -> list[int]:
        return batch_sizes(self.rows, self.batch_size, self.smallest)


def row_order(rows: int, seed: int, trial: str, epoch: int, partition: str) -> NDArray[np.int64]:
    """The order of the rows of one training unit.

    >>> row_order(4, seed=0, trial="t1", epoch=1, partition="train-00000").tolist() == list(range(4))
    False
    """
    return generator("rows", seed, trial, epoch, partition).permutation(rows)
