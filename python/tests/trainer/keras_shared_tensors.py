"""What the process of TensorFlow says about tensors on the memory of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebro_spark.trainer.keras.shared_tensors import share

Array = np.ndarray[Any, Any]


def place(values: Array, offset: int) -> Array:
    """Return a copy of an array that begins so many bytes after an address that TensorFlow likes."""
    room = np.zeros(values.nbytes + 128, "uint8")
    begin = -room.ctypes.data % 64 + offset
    placed: Array = room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    placed[...] = values
    return placed


def describe(array: Array) -> dict[str, bool]:
    """Say whether the tensor of an array has its memory, and whether it is what TensorFlow would make of it."""
    tensor, copied = share(array), tf.convert_to_tensor(array)
    return {
        # Not `numpy()`, which copies.
        "shared": bool(array.size) and np.shares_memory(np.asarray(memoryview(tensor)), array),
        "same": tensor.dtype == copied.dtype and bool(tf.reduce_all(tensor == copied)),
    }


def of_dtype(dtype: str) -> dict[str, bool]:
    return describe(place(np.arange(12).reshape(4, 3).astype(dtype), 0))


def of_place(kind: str, folder: str) -> dict[str, bool]:
    values = np.arange(12, dtype="float32").reshape(4, 3)
    path = Path(folder) / "values.npy"
    np.save(path, values)
    made: dict[str, Callable[[], Array]] = {
        "mapped": lambda: np.load(path, mmap_mode="r"),
        "elsewhere": lambda: place(values, 4),
        "every second": lambda: place(np.arange(24, dtype="float32").reshape(8, 3), 0)[::2],
        "empty": lambda: place(values, 0)[:0],
    }
    return describe(made[kind]())


def outlives(folder: str) -> list[float]:
    """What a tensor is once nothing else knows of its array, and others have asked for memory."""
    path = Path(folder) / "values.npy"
    np.save(path, np.arange(3, dtype="float32"))
    tensor = share(np.load(path, mmap_mode="r"))
    path.unlink()
    others = [np.full(1 << 16, 7.0, "float32") for _ in range(20)]
    found: list[float] = (tensor + others[0][:3] * 0).numpy().tolist()
    return found
