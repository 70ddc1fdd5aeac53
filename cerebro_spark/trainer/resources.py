"""What of its machine a worker owns, checked as it is said. It claims nothing itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cerebro_spark.errors import ConfigurationError

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Resources:
    """What of its machine a worker owns.

    `threads` is set once a process (None leaves the framework's own choice); `device` is "auto", "cpu" or a GPU such as
    "cuda:0"; `precision` asks for mixed precision; `model_memory` bounds the built models that are kept, `data_memory`
    the arrays kept as tensors between units. None means on a GPU half of what is free there (with Keras on TensorFlow,
    which does not say, 8 GiB), and on a CPU nothing: there a tensor is as near as the array it is made from.

    >>> Resources(threads=2, device="cuda:1", precision="bfloat16").device
    'cuda:1'
    """

    threads: int | None = None
    device: str = "auto"
    precision: Literal["bfloat16", "float16"] | None = None
    model_memory: int = 4 << 30
    data_memory: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not _whole(self.threads, least=1):
            raise ConfigurationError(
                f"threads is {self.threads!r}, but must be a whole number of at least 1: leave it out for the"
                " framework's own choice"
            )
        if not isinstance(self.device, str) or not _DEVICE.fullmatch(self.device):
            raise ConfigurationError(
                f"device is {self.device!r}, but must be 'auto', 'cpu', 'cuda' or one GPU by its number: use 'cuda:0'"
                " for the first"
            )
        if self.precision not in (None, "bfloat16", "float16"):
            raise ConfigurationError(
                f"precision is {self.precision!r}, but must be 'bfloat16' or 'float16': leave it out for float32"
            )
        for name, size in (("model_memory", self.model_memory), ("data_memory", self.data_memory)):
            if size is not None and not _whole(size, least=0):
                raise ConfigurationError(f"{name} is {size!r}, but must be a number of bytes: use 4 << 30 for 4 GiB")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
