"""The works: their rows, their trials, and the files they lie in. It knows no framework; NumPy is all it loads.

The arrays of a work are made from a fixed seed, a fifth of the rows is for validation, and all trials are trained for
the same epochs in batches of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 256
PARTS = ("x_train", "y_train", "x_validation", "y_validation")

Array = NDArray[Any]
Params = Mapping[str, Any]


def table_rows(rows: int) -> tuple[Array, Array]:
    """Rows of 64 numbers; the sign of a noisy sum of the first eight is to be found."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 64)).astype("float32")
    return x, (x[:, :8].sum(axis=1) + rng.normal(size=rows) > 0).astype("float32")


def image_rows(rows: int) -> tuple[Array, Array]:
    """Pictures of 3 x 32 x 32: one of ten patterns, shifted sideways and around by any amount, under much noise."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(10, 3, 8, 8)).astype("float32")
    patterns = coarse.repeat(4, axis=2).repeat(4, axis=3)
    y = rng.integers(0, 10, size=rows)
    x = rng.standard_normal(size=(rows, 3, 32, 32), dtype="float32")
    for row, (down, right) in enumerate(rng.integers(0, 32, size=(rows, 2))):
        x[row] += np.roll(patterns[y[row]], (down, right), axis=(1, 2))
    return x, y


@dataclass(frozen=True)
class Work:
    """What everybody is to do.

    >>> WORKS["reference"].trials[0]
    {'size': 128, 'lr': 0.0003}
    """

    name: str
    title: str
    kind: str
    rows: int
    make: Callable[[int], tuple[Array, Array]]
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    epochs: int = 2

    @property
    def trials(self) -> list[dict[str, Any]]:
        return [{"size": size, "lr": rate} for size in self.sizes for rate in self.rates]


_RATES = (3e-4, 1e-3, 3e-3, 1e-2)


def rates(count: int) -> tuple[float, ...]:
    """So many learning rates, evenly from the lowest to the highest."""
    return tuple(float(rate) for rate in np.geomspace(_RATES[0], _RATES[-1], count))


WORKS = {
    work.name: work
    for work in (
        Work("reference", "MLP 64-{128, 256}-64-1 on a table", "mlp", 100_000, table_rows, (128, 256), _RATES),
        Work("fifth", "the same MLPs on a fifth of the table", "mlp", 20_000, table_rows, (128, 256), _RATES),
        Work("reference-32", "the MLPs with 16 rates each", "mlp", 100_000, table_rows, (128, 256), rates(16)),
        Work("reference-128", "the MLPs with 64 rates each", "mlp", 100_000, table_rows, (128, 256), rates(64)),
        Work("cnn", "CNNs of two sizes on pictures of 3 x 32 x 32", "cnn", 16_000, image_rows, (8, 16), _RATES),
    )
}


def label(params: Params) -> str:
    """The name of a trial in reports.

    >>> label({"size": 128, "lr": 3e-4, "batch_size": 256})
    '128/0.0003'
    """
    return f"{params['size']}/{params['lr']:g}"


def held_out(rows: int) -> Array:
    """Which rows are for validation: every fifth."""
    held: Array = np.arange(rows) % 5 == 0
    return held


def make_files(work: Work, folder: Path, scale: float = 1.0) -> None:
    """Write the arrays of a work, or of a share of its rows."""
    x, y = work.make(max(20, int(work.rows * scale)))
    aside = held_out(len(x))
    for name, rows in (("train", ~aside), ("validation", aside)):
        np.save(folder / f"x_{name}.npy", x[rows])
        np.save(folder / f"y_{name}.npy", y[rows])


def read_files(folder: Path, part: int = 0, parts: int = 1) -> list[Array]:
    """The four arrays of PARTS: whole, or one of `parts` equal shares of their rows, of which only it is read."""
    return [_read(folder / f"{name}.npy", part, parts) for name in PARTS]


def _read(file: Path, part: int, parts: int) -> Array:
    # The map tells where the rows begin; they are read, not mapped, so that they count once in a process's memory.
    there = np.load(file, mmap_mode="r")
    rows, width = len(there) // parts, int(np.prod(there.shape[1:], dtype=int))
    start = there.offset + part * rows * width * there.itemsize
    return np.fromfile(file, there.dtype, rows * width, offset=start).reshape(rows, *there.shape[1:])


def nbytes(arrays: list[Array]) -> int:
    return sum(array.nbytes for array in arrays)
