"""The batches of a unit: whole arrays, an order of their rows, a batch size. It reads no file and draws no order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.errors import ConfigurationError, DataError

Array = np.ndarray[Any, Any]
Batch = dict[str, Array]

BATCH_SIZE = 32
"""The rows of a batch if `params` has no "batch_size", as in Keras."""


SMALLEST_BATCH = 2
"""A training unit's last batch of fewer rows joins the one before it: BatchNorm cannot learn from a single row."""


class ColumnSpec(NamedTuple):
    """The dtype of a column and the shape of one row of it."""

    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a batch are inputs, labels and the sample weight, with what one row of each looks like.

    >>> Columns({"features": ColumnSpec("float32", (64,))}, {"churned": ColumnSpec("int64")}).names
    ('features', 'churned')
    """

    inputs: Mapping[str, ColumnSpec]
    labels: Mapping[str, ColumnSpec]
    weight: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.inputs, *self.labels, *([self.weight] if self.weight else []))

    def zeros(self, rows: int) -> Batch:
        """A batch of zeros that looks like the data, to build models with."""
        specs = {**self.inputs, **self.labels, **({self.weight: ColumnSpec("float32")} if self.weight else {})}
        return {name: np.zeros((rows, *spec.shape), dtype=spec.dtype) for name, spec in specs.items()}


def batch_size_of(params: Mapping[str, Any]) -> int:
    """The batch size that a trial's params ask for; ConfigurationError unless it is a whole number of at least 1.

    A float that is whole is one: hyperopt's quniform gives no other.

    >>> batch_size_of({"lr": 0.1, "batch_size": 256}), batch_size_of({"batch_size": 64.0}), batch_size_of({"lr": 0.1})
    (256, 64, 32)
    """
    size = params.get("batch_size", BATCH_SIZE)
    whole = isinstance(size, Integral) or (isinstance(size, float | np.floating) and float(size).is_integer())
    if not whole or isinstance(size, bool) or size < 1:
        raise ConfigurationError(
            f"batch_size is {size!r}, but must be a whole number of at least 1: use one such as {BATCH_SIZE}, and"
            " randint or choice rather than uniform to draw it"
        )
    return int(size)


def batch_sizes(rows: int, size: int, smallest: int = 1) -> list[int]:
    """The rows of each batch: `size`, and what is left at the end, which joins the one before it if below `smallest`.

    >>> batch_sizes(9, 4), batch_sizes(9, 4, smallest=2), batch_sizes(1, 4, smallest=2), batch_sizes(3, 1, smallest=2)
    ([4, 4, 1], [4, 5], [1], [1, 1, 1])
    """
    whole, left = divmod(rows, size)
    if not left:
        return [size] * whole
    joins = whole > 0 and left < smallest
    return [size] * (whole - 1) + [size + left] if joins else [size] * whole + [left]


class Feed:
    """One pass over a partition in batches, the same ones each time it is iterated. Every batch is a copy.

    The last batch may be short; below `smallest` rows it joins the one before it. A trainer that can gather batches
    itself (on a GPU, inside a graph) takes `arrays`, `order` and `sizes` instead.

    Args:
        arrays: Arrays of equal length, a row an element of their first axis.
        order: Numbers of the rows, in the order in which they come. Default: as they are stored.
        batch_size: Rows in a batch. Default: 32.
        key: Feeds with the same key have the same arrays, which a trainer may keep on its device. Default: not kept.
        smallest: The fewest rows of the last batch, if there is one before it. Default: 1.

    Raises:
        ConfigurationError: `batch_size` is no whole number of at least 1.
        DataError: The arrays differ in length, or `order` has numbers that are no rows.

    >>> feed = Feed({"x": np.arange(5)}, order=np.array([4, 3, 2, 1, 0]), batch_size=2)
    >>> [batch["x"].tolist() for batch in feed]
    [[4, 3], [2, 1], [0]]
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        order: Array | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        key: str = "",
        smallest: int = 1,
    ) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays of a partition must have as many rows as each other, not {lengths}")
        self.arrays = arrays
        self.rows = next(iter(lengths.values()))
        self.order = np.arange(self.rows) if order is None else np.asarray(order, dtype=np.int64)
        if len(self.order) and not 0 <= self.order.min() <= self.order.max() < self.rows:
            low, high = self.order.min(), self.order.max()
            raise DataError(f"the order has rows from {low} to {high}, but there are {self.rows}, counted from 0")
        self.batch_size = batch_size_of({"batch_size": batch_size})
        self.key = key
        self.smallest = smallest

    @property
    def sizes(self) -> list[int]:
        """The rows of each batch."""
        return batch_sizes(len(self.order), self.batch_size, self.smallest)

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def __iter__(self) -> Iterator[Batch]:
        start = 0
        for size in self.sizes:
            rows = self.order[start : start + size]
            start += size
            # All rows were checked at once: with mode="raise" NumPy would check each of them again, for each array.
            yield {name: np.take(array, rows, axis=0, mode="clip") for name, array in self.arrays.items()}
