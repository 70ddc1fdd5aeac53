"""TensorFlow's tensors on the memory of arrays. They are read only: whoever has one keeps others from writing."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from cerebro_spark.trainer.feed import Array

# As TensorFlow's kernels want it: they end the process for memory that begins elsewhere.
_ALIGNED = 64
# Booleans, whole numbers, floats and complex ones: what DLPack knows.
_KINDS = "biufc"


class _Lent:
    """An array as one that may be written to. DLPack has no other ones, and a mapped file is none."""

    def __init__(self, array: Array) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def share(array: Array) -> Any:
    """Return an array as a tensor on the host, without a copy of it where that is possible.

    A file that is mapped is then read batch by batch, so that it may be larger than the memory.

    Args:
        array: The array, which nobody writes to as long as the tensor is there.
    """
    begins_well = array.__array_interface__["data"][0] % _ALIGNED == 0
    if not (begins_well and array.size and array.flags.c_contiguous and array.dtype.kind in _KINDS):
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(np.asarray(_Lent(array)).__dlpack__())
