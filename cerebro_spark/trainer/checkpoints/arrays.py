"""The arrays of a training state: their names, dtypes and bytes, and NumPy's view of them. It opens no file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from cerebro_spark.errors import CheckpointError

_DTYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "complex64": ("C64", 8), "bool": ("BOOL", 1),
    "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1),
    "uint64": ("U64", 8), "uint32": ("U32", 4), "uint16": ("U16", 2), "uint8": ("U8", 1),
}  # fmt: skip
ITEM_BYTES = dict(_DTYPES.values())
"""The bytes of an item by the dtype tags of safetensors."""
NUMPY_TAGS = {name: tag for name, (tag, _) in _DTYPES.items()}
"""The dtype tags of safetensors by NumPy's names."""
TAG_NAMES = {tag: name for name, tag in NUMPY_TAGS.items()}

_READ_AHEAD_BYTES = 32 << 20


class StateArray(NamedTuple):
    """One array of a training state, to be written to a checkpoint.

    Attributes:
        name: The path of the array in the state, such as "model/parameters/0.weight".
        dtype: The dtype tag of safetensors, such as "F32".
        shape: The shape of the array.
        data: Returns the bytes. It is called when the array is written, so that only one array at a time need be
            copied off a GPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


class StateSource(Protocol):
    """Where a training state is read from: a checkpoint file, or another built model of this process.

    `meta` is the JSON part of the state, `label` names the source in error messages.
    """

    meta: Any
    label: str

    def names(self) -> Sequence[str]:
        """Return the names of all arrays."""

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype tag and the shape of an array. Raises CheckpointError for a name that is not there."""

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fill `buffer`, which must have the size of the array."""


class MemorySource:
    """The state of a built model as a source, so that another built model can take it over."""

    def __init__(self, arrays: Sequence[StateArray], meta: Any) -> None:
        self._arrays = {array.name: array for array in arrays}
        self.meta = meta
        self.label = "the built model"

    def names(self) -> Sequence[str]:
        return list(self._arrays)

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name not in self._arrays:
            raise CheckpointError(f"the model has no array {name!r}: it has another structure")
        return self._arrays[name].dtype, self._arrays[name].shape

    def read_into(self, name: str, buffer: memoryview) -> None:
        if self._arrays[name].nbytes:
            buffer.cast("B")[:] = self._arrays[name].data().cast("B")


def wrap_numpy(name: str, leaf: Any) -> StateArray | None:
    """Return a NumPy array as an array of the state; None for anything else."""
    if not isinstance(leaf, np.ndarray) or str(leaf.dtype) not in NUMPY_TAGS:
        return None
    return StateArray(name, NUMPY_TAGS[str(leaf.dtype)], leaf.shape, lambda: view_bytes(leaf))


def view_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of an array as bytes; a copy only if it is not contiguous."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def read_array(source: StateSource, name: str) -> np.ndarray[Any, Any]:
    """Read an array into NumPy. bfloat16 and float8 need the package ml_dtypes, which Keras installs."""
    tag, shape = source.spec(name)
    dtype = resolve_dtype(TAG_NAMES[tag])
    # NumPy's memory comes in huge pages and is not cleared first: half the time of a bytearray for large arrays.
    raw: Any = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    source.read_into(name, memoryview(raw))
    array: np.ndarray[Any, Any] = raw.view(dtype).reshape(shape)
    return array


def read_arrays(source: StateSource, names: Sequence[str]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield these arrays in order. In a large source, the next array is read while the last one is used.

    Nothing else may read from the source before the last array was yielded.
    """
    size = sum(math.prod(shape) * ITEM_BYTES[tag] for tag, shape in map(source.spec, names))
    if size < _READ_AHEAD_BYTES:
        yield from (read_array(source, name) for name in names)
        return
    with ThreadPoolExecutor(1, "read-ahead") as reading:
        ahead = reading.submit(read_array, source, names[0])
        for name in names[1:]:
            array, ahead = ahead.result(), reading.submit(read_array, source, name)
            yield array
        yield ahead.result()


def resolve_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a name, from ml_dtypes if NumPy itself does not know it."""
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
