"""Counts whole numbers that float32 rounds. PURE."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT = 1 << 24
"""float32 has all whole numbers up to this one."""


def count_rows(flags: NDArray[np.bool_]) -> int:
    """Count the rows with any flag set.

    >>> count_rows(np.array([[True, True], [False, False]]))
    1
    """
    return int(flags.any(axis=tuple(range(1, flags.ndim))).sum())


def count_rounded(values: NDArray[Any]) -> int:
    """Count the rows with a whole number that float32 cannot hold.

    >>> count_rounded(np.array([1 << 24, (1 << 24) + 1, -(1 << 24) - 1, 1 << 40]))
    2
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or not values.size:
        return 0
    if int(values.min()) >= -EXACT and int(values.max()) <= EXACT:
        return 0
    bits = values.astype(np.uint64)
    size = np.where(values < 0, ~bits + np.uint64(1), bits)
    # float32 holds a number if no more than 24 bits lie between its first and its last bit that is set.
    last = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
    return count_rows(size // last >= np.uint64(EXACT))
