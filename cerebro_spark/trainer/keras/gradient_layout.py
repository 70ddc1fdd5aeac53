"""How gradients of a model travel between members: in one piece a dtype, or as rows. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.trainer.feed import Array


class Rows(NamedTuple):
    """A gradient that is zero but for some rows.

    Attributes:
        values: The rows. One may be there several times: then their sum is meant.
        places: Which rows these are.
    """

    values: Array
    places: Array

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any, places: str) -> Rows:
        """Return no rows.

        Args:
            shape: The shape of the whole gradient.
            dtype: Its dtype, as NumPy takes it.
            places: The dtype of places.
        """
        return cls(np.zeros((0, *shape[1:]), dtype), np.zeros(0, places))

    @staticmethod
    def pack(gradients: Sequence[Rows]) -> bytes:
        """Return several gradients as bytes."""
        counts = np.array([len(each.places) for each in gradients], np.int64)
        return b"".join([counts.tobytes(), *(part.tobytes() for each in gradients for part in each)])


@dataclass(frozen=True)
class GradientLayout:
    """Which gradients are dense, which are rows, and which are none.

    Attributes:
        shapes: By variable, its shape.
        dtypes: By variable, the dtype of its gradient, as NumPy takes it.
        dense: By the dtype in which they are added up, the numbers of the variables with a dense gradient. Those below
            float32 are added up in float32, so that nothing is lost that a single process would keep.
        sparse: The numbers of the variables whose gradients are rows.
        places: By such a variable, the dtype of its places.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    dense: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sparse: tuple[int, ...] = ()
    places: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, gradients: Sequence[Any], variables: Sequence[Any]) -> GradientLayout:
        """Return the layout of these gradients of TensorFlow, one for each variable; those of `sparse` have rows."""
        dense: dict[str, tuple[int, ...]] = {}
        sparse: dict[int, str] = {}
        for index, gradient in enumerate(gradients):
            if hasattr(gradient, "indices"):
                sparse[index] = str(np.dtype(gradient.indices.dtype.as_numpy_dtype))
            elif gradient is not None:
                kind = "float64" if gradient.dtype.name == "float64" else "float32"
                dense[kind] = (*dense.get(kind, ()), index)
        # A model without weights to train has no gradients.
        trained = variables if gradients else ()
        shapes = tuple(tuple(variable.shape) for variable in trained)
        dtypes = tuple(None if gradient is None else np.dtype(gradient.dtype.as_numpy_dtype) for gradient in gradients)
        return cls(shapes, dtypes, dense, tuple(sparse), sparse)

    @property
    def trains(self) -> bool:
        """Whether there is anything to train."""
        return bool(self.shapes)

    def describe(self, index: int) -> tuple[tuple[int, ...], Any, str]:
        """Return, of a gradient that is rows, the shape, the dtype, and the dtype of places."""
        return self.shapes[index], self.dtypes[index], self.places[index]

    def sizes_of(self, kind: str) -> list[int]:
        """Return the sizes of the dense gradients that are added up in this dtype.

        >>> layout = GradientLayout(((2, 3), (3,)), (np.float32, np.float32), {"float32": (0, 1)})
        >>> layout.sizes_of("float32"), layout.size_of("float32")
        ([6, 3], 9)
        """
        return [math.prod(self.shapes[index]) for index in self.dense[kind]]

    def size_of(self, kind: str) -> int:
        """Return the size of all of them."""
        return sum(self.sizes_of(kind))

    def unpack(self, data: bytes) -> list[Rows]:
        """Return the gradients that `Rows.pack` made bytes of.

        >>> layout = GradientLayout(((4, 2),), (np.dtype("float32"),), sparse=(0,), places={0: "int64"})
        >>> given = Rows(np.ones((1, 2), "float32"), np.array([3]))
        >>> layout.unpack(Rows.pack([given]))
        [Rows(values=array([[1., 1.]], dtype=float32), places=array([3]))]
        """
        counts = np.frombuffer(data, np.int64, len(self.sparse))
        start, found = counts.nbytes, list[Rows]()
        for count, index in zip(counts.tolist(), self.sparse, strict=True):
            shape, dtype, places = self.describe(index)
            values = np.frombuffer(data, dtype, count * math.prod(shape[1:]), start).reshape(count, *shape[1:])
            where = np.frombuffer(data, places, count, start + values.nbytes)
            start += values.nbytes + where.nbytes
            found.append(Rows(values, where))
        return found

    def join_rows(self, members: Sequence[Sequence[Rows]]) -> list[Rows]:
        """Return, for each gradient that is rows, those of all members, by rank: as if of one batch."""
        return [Rows(*map(np.concatenate, zip(*parts, strict=True))) for parts in zip(*members, strict=True)]
