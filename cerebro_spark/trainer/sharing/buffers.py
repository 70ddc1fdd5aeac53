"""Buffers of Python's own that can be written to: they are compared, and put back, by their bytes."""

from __future__ import annotations

import array
import ctypes
from typing import Any

_C_VALUES: Any = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_BUFFERS = (bytearray, array.array, memoryview, *_C_VALUES)


def is_buffer(value: Any) -> bool:
    """Whether a value is a buffer of Python's own, or of a subclass."""
    return isinstance(value, _BUFFERS)


def read_buffer(buffer: Any) -> bytes:
    """Return a copy of what a buffer holds.

    >>> read_buffer(array.array("b", [1, 2]))
    b'\\x01\\x02'
    """
    return memoryview(buffer).tobytes()


def write_buffer(buffer: Any, contents: bytes) -> None:
    """Put back what a buffer held. One that is read-only has not changed."""
    if isinstance(buffer, bytearray):
        buffer[:] = contents
    elif isinstance(buffer, array.array):
        buffer[:] = array.array(buffer.typecode, contents)
    elif isinstance(buffer, _C_VALUES):
        ctypes.memmove(ctypes.addressof(buffer), contents, len(contents))
    elif not buffer.readonly and buffer.contiguous:
        buffer.cast("B")[:] = contents
