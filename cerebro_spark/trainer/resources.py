"""What a worker computes with: threads, device, precision, memory. It checks the values and claims nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from cerebro_spark.errors import ConfigurationError

_STRATEGIES = ("auto", "plain", "recompute", "offload", "offload+recompute", "shard")
# What fields meant before they were known.
_ONCE = {"compile": False, "strategy": "plain"}
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker computes with.

    Args:
        threads: Threads of one worker process, at least 1. They are set once a process. None, the default, keeps the
            backend's choice, or the framework's own if the backend makes none.
        device: "auto", "cpu", "cuda" or one GPU by its number, such as "cuda:0". "auto", the default, takes a GPU if
            the framework finds one.
        precision: "bfloat16" or "float16" for mixed precision. None, the default, computes in float32.
        model_memory: Bytes of built models that a worker keeps between units. Defaults to `4 << 30`, 4 GiB.
        data_memory: Bytes of training data that a worker keeps as tensors between units. None, the default, means half
            of the free memory of a GPU (8 GiB with Keras on TensorFlow, which does not report it), and 0 on a CPU,
            where making a tensor of the cached array costs nothing.
        compile: Whether training steps of PyTorch models may be repeated without running the Python code of the model
            each time. On a GPU they may be recorded as CUDA graphs, which launch all kernels of a step at once. "auto",
            the default, records the steps of a model where that is exact, as tried with real batches, and faster; True
            wherever it is exact; False never. Steps that are not recorded leave the
            same bits as those that are: Adam, AdamW and SGD then use PyTorch's fused kernels, others their
            implementation for graphs, and convolutions have their channels last in memory where the model can compute
            so. With False all is as `model_fn` made it; the bits differ by rounding. On a CPU the kernels of a step may
            be traced, and called by a program without modules and autograd, which leaves the very bits of eager steps:
            with "auto" where a structure has trained for some thousand steps and real batches show that it is exact and
            at least a tenth faster; with True wherever it is exact. It means nothing to Keras, for a `train_fn`, and
            for a `precision` on a CPU.
        strategy: How a PyTorch model lies on its device while it trains. What it learns is the same, with "shard" but
            for rounding. "plain": as it is. "recompute": what its blocks compute on the way to the loss is not kept,
            but computed again for the gradients. "offload": the state of the optimizer is kept in the host's memory,
            and comes to the GPU piece by piece for each step. "offload+recompute": both. "auto", the default, takes the
            first of these that fits, as tried with real batches; on a CPU it is "plain". On a CPU "offload" changes
            nothing. With the middle three, chosen or given, steps are not recorded, and a trial has one worker at a
            time and goes into no bundle. "shard": the workers of one trial, on one host, have a part of its parameters,
            gradients and optimizer state each (FSDP2). It needs `workers_per_trial` of 2 or more, PyTorch 2.8 or later,
            and no `fuse`; a unit for which there is only one worker is trained as by "auto".

    Raises:
        ConfigurationError: If a value is none of those above.

    Examples:
        >>> Resources(threads=2, device="cuda:1", precision="bfloat16").device
        'cuda:1'
    """

    threads: int | None = None
    device: str = "auto"
    precision: Literal["bfloat16", "float16"] | None = None
    model_memory: int = 4 << 30
    data_memory: int | None = None
    compile: Literal["auto"] | bool = "auto"
    strategy: Literal["auto", "plain", "recompute", "offload", "offload+recompute", "shard"] = "auto"

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take on the pickled fields. An older pickle lacks the last ones, and means what was done then."""
        for index, own in enumerate(fields(self)):
            object.__setattr__(self, own.name, state[index] if index < len(state) else _ONCE[own.name])

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
        if self.compile not in ("auto", True, False):
            raise ConfigurationError(
                f"compile is {self.compile!r}, but must be 'auto', True or False: leave it out for 'auto'"
            )
        if self.strategy not in _STRATEGIES:
            raise ConfigurationError(
                f"strategy is {self.strategy!r}, but must be {', '.join(map(repr, _STRATEGIES[:-1]))} or"
                f" {_STRATEGIES[-1]!r}: leave it out for 'auto'"
            )
        for name, size in (("model_memory", self.model_memory), ("data_memory", self.data_memory)):
            if size is not None and not _whole(size, least=0):
                raise ConfigurationError(f"{name} is {size!r}, but must be a number of bytes: use 4 << 30 for 4 GiB")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
