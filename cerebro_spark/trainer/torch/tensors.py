"""Tensors to and from training states and NumPy arrays, without copies where that is possible."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import torch

from cerebro_spark.trainer.checkpoints.arrays import TAG_NAMES, MemorySource, StateArray, StateSource, wrap_numpy
from cerebro_spark.trainer.checkpoints.fit import check_spec
from cerebro_spark.trainer.checkpoints.tree import flatten

TENSOR_TAGS = {getattr(torch, name): tag for tag, name in TAG_NAMES.items() if hasattr(torch, name)}
"""The dtype tags of safetensors by PyTorch's dtypes."""

_HOST = torch.device("cpu")
# Unsigned numbers of which PyTorch cannot do much, and the bits of an int64 that are theirs.
_UNSIGNED = {"uint16": (1 << 16) - 1, "uint32": (1 << 32) - 1, "uint64": -1}


class TensorSource(MemorySource):
    """The state of a built model as a source whose tensors stay on their devices.

    Args:
        state: What the built model returns as its state.
        copy: Whether to copy all arrays, each on its device or all to the host. Default: they are read when wanted.

    >>> before = {"parameters": {"weight": torch.zeros(2)}}
    >>> source = TensorSource(before, copy="device")
    >>> _ = before["parameters"]["weight"].fill_(7.0)
    >>> source.tensors["model/parameters/weight"].tolist(), source.matches(TensorSource(before))
    ([0.0, 0.0], False)
    """

    def __init__(self, state: Any, *, copy: Literal["device", "host"] | None = None) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

        def wrap(name: str, leaf: Any) -> StateArray | None:
            if isinstance(leaf, torch.Tensor):
                leaf = leaf.detach()
                if copy is not None:
                    leaf = leaf.to(_HOST if copy == "host" else leaf.device, copy=True)
                self.tensors[name] = leaf
            elif copy and isinstance(leaf, np.ndarray):
                leaf = leaf.copy()
            return wrap_tensor(name, leaf) or wrap_numpy(name, leaf)

        json, arrays = flatten({"model": state}, wrap)
        super().__init__(arrays, json)

    def matches(self, other: TensorSource) -> bool:
        """Whether two states are equal, bit by bit. It waits for the devices."""
        if repr(self.meta) != repr(other.meta) or self.names() != other.names():
            return False
        return all(self._is_same(other, name) for name in self.names())

    def _is_same(self, other: TensorSource, name: str) -> bool:
        if self.spec(name) != other.spec(name):
            return False
        if name in self.tensors and name in other.tensors:
            return is_same_bits(self.tensors[name], other.tensors[name])
        return self._arrays[name].data() == other._arrays[name].data()


def wrap_tensor(name: str, leaf: Any) -> StateArray | None:
    """Return a tensor as an array of the state; None for anything else. It is copied off its device when written."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in TENSOR_TAGS:
        return None
    return StateArray(name, TENSOR_TAGS[leaf.dtype], tuple(leaf.shape), lambda: tensor_bytes(leaf))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a tensor as bytes: its own if it is contiguous and on the host, else a copy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    return memoryview(data) if flat.numel() else memoryview(b"")


def fill_tensor(source: StateSource, name: str, tensor: torch.Tensor) -> None:
    """Read an array into an existing tensor. Raises CheckpointError if dtype or shape differ."""
    check_spec(source, name, TENSOR_TAGS[tensor.dtype], tensor.shape)
    if isinstance(source, TensorSource) and name in source.tensors:
        tensor.copy_(source.tensors[name])
    elif tensor.device.type == "cpu" and tensor.is_contiguous():
        source.read_into(name, tensor_bytes(tensor))
    else:
        tensor.copy_(read_tensor(source, name))


def read_tensor(source: StateSource, name: str, device: torch.device = _HOST) -> torch.Tensor:
    """Read an array into a new tensor."""
    if isinstance(source, TensorSource) and name in source.tensors:
        return source.tensors[name].to(device, copy=True)
    tag, shape = source.spec(name)
    tensor = torch.empty(shape, dtype=getattr(torch, TAG_NAMES[tag]), device=_HOST)
    source.read_into(name, tensor_bytes(tensor))
    return tensor.to(device)


def reuse_tensor(source: StateSource, name: str, old: Any, device: torch.device) -> torch.Tensor:
    """Read an array into `old` if that is a tensor of its dtype and shape, else into a new tensor."""
    tag, shape = source.spec(name)
    if isinstance(old, torch.Tensor) and (TENSOR_TAGS.get(old.dtype), tuple(old.shape)) == (tag, shape):
        fill_tensor(source, name, old)
        return old
    return read_tensor(source, name, device)


def lay_out_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the memory layout of a parameter of the same shape; any other as it is."""
    if value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)


def is_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal; NaN equals itself."""
    return torch.equal(one, other) or tensor_bytes(one) == tensor_bytes(other)


def from_numpy(array: Any) -> torch.Tensor:
    """Return an array as a tensor, over its memory unless its numbers are of a kind that PyTorch hardly knows.

    It is only read, so the array may be read-only (memory-mapped).
    """
    return widen(over_memory(array), array.dtype)


def over_memory(array: Any) -> torch.Tensor:
    """Return a tensor over the memory of an array, however large. What is selected of it is to be widened.

    Unsigned numbers of more than a byte, of which PyTorch cannot do much, have the same bits as the signed ones there.
    """
    if array.dtype.name in _UNSIGNED:
        array = array.view(f"i{array.dtype.itemsize}")
    if any(stride < 0 for stride in array.strides):
        # PyTorch knows no negative strides, which is how NumPy flips.
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def widen(tensor: torch.Tensor, dtype: np.dtype[Any]) -> torch.Tensor:
    """Return what was selected of a tensor over an array of that dtype, its unsigned numbers as int64.

    >>> widen(over_memory(np.array([1, 65535], "uint16")), np.dtype("uint16")).tolist()
    [1, 65535]
    """
    bits = _UNSIGNED.get(dtype.name)
    return tensor if bits is None else tensor.long() & bits
