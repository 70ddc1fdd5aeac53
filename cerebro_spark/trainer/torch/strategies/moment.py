"""What a forward pass may read or change besides its inputs: generators, buffers and modes, as they were at a moment.

It compares no values: that would wait for a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from cerebro_spark.trainer.torch.strategies.refusal import StrategyRefused

_SMALL = 1 << 16
"""The most elements of a buffer that is copied before each forward pass, in case it changes."""


class DrawStates:
    """Reads and sets all generators of the process that a forward pass may draw from.

    Args:
        device: The device of the model.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def capture(self) -> Any:
        """Return their states."""
        own = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return random.getstate(), np.random.get_state(legacy=True), torch.get_rng_state(), own

    def restore(self, states: Any) -> None:
        """Set their states."""
        python, numpy_, host, own = states
        random.setstate(python)
        np.random.set_state(numpy_)
        torch.set_rng_state(host)
        if own is not None:
            torch.cuda.set_rng_state(own, self._device)


class HeldBuffer(NamedTuple):
    """A buffer at a moment.

    Attributes:
        module: Whose it is.
        name: Its name there.
        tensor: The buffer itself.
        version: How often it had been written to.
        values: A copy of its values; None of a large one.
    """

    module: torch.nn.Module
    name: str
    tensor: torch.Tensor
    version: int
    values: torch.Tensor | None

    @property
    def has_moved(self) -> bool:
        """Whether it may be another by now. Kernels of normalization layers write without saying so."""
        now = self.module._buffers.get(self.name)
        return now is not self.tensor or now._version != self.version or isinstance(self.module, _NormBase)


class SeenParameter(NamedTuple):
    """A parameter at a moment, which is not copied.

    Attributes:
        module: Whose it is.
        name: Its name there.
        tensor: The parameter itself.
        version: How often it had been written to.
    """

    module: torch.nn.Module
    name: str
    tensor: torch.Tensor
    version: int

    @property
    def has_moved(self) -> bool:
        """Whether it is another by now."""
        now = self.module._parameters.get(self.name)
        return now is not self.tensor or now._version != self.version


def hold_buffers(modules: Iterable[torch.nn.Module]) -> list[HeldBuffer]:
    """Return the buffers of some modules, with copies of those that a forward pass is likely to change."""
    return [
        HeldBuffer(module, name, buffer, buffer._version, _copy_likely(module, buffer))
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _copy_likely(module: torch.nn.Module, buffer: torch.Tensor) -> torch.Tensor | None:
    is_likely = buffer.numel() <= _SMALL or isinstance(module, _NormBase)
    return buffer.detach().clone() if is_likely else None


class Moment:
    """The time before a forward pass, to which generators, buffers and modes can be taken back for a while.

    Args:
        draws: The generators.
        modules: The modules that take part in the pass.
    """

    def __init__(self, draws: DrawStates, modules: Sequence[torch.nn.Module]) -> None:
        self._draws = draws
        self._drawn = draws.capture()
        self._held = hold_buffers(modules)
        self._modes = [(module, module.training) for module in modules]
        self._kept: list[HeldBuffer | SeenParameter] = [
            SeenParameter(module, name, parameter, parameter._version)
            for module in modules
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        """What stays as it is until the pass is computed again."""

    def end(self) -> None:
        """The pass is over: copies of what it has not changed go. Raises StrategyRefused for what was not copied."""
        self._kept += [held._replace(values=None) for held in self._held if not held.has_moved]
        self._held = [held for held in self._held if held.has_moved]
        for held in self._held:
            if held.values is None:
                raise StrategyRefused(
                    f"its {type(held.module).__name__} changes its buffer {held.name!r} of"
                    f" {held.tensor.numel()} elements while it computes, which is too large to be copied each time"
                )
        self._require_kept()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Have all as it was then, for a block; afterwards as it was before the block.

        Raises StrategyRefused if something has changed since that cannot be taken back.
        """
        self._require_kept()
        drawn = self._draws.capture()
        now = [_hold_again(held) for held in self._held]
        modes = [(module, module.training) for module, _ in self._modes]
        self._draws.restore(self._drawn)
        _put_back(self._held)
        _set_modes(self._modes)
        try:
            yield
        finally:
            _set_modes(modes)
            _put_back(now)
            self._draws.restore(drawn)

    def _require_kept(self) -> None:
        for kept in self._kept:
            if kept.has_moved:
                kind = "parameter" if isinstance(kept, SeenParameter) else "buffer"
                raise StrategyRefused(
                    f"the {kind} {kept.name!r} of its {type(kept.module).__name__} is written to or exchanged between a"
                    " forward pass and its gradients, so that it cannot be computed again: do that before the pass"
                )


def _set_modes(modes: Iterable[tuple[torch.nn.Module, bool]]) -> None:
    for module, training in modes:
        if module.training != training:
            module.training = training


def _hold_again(held: HeldBuffer) -> HeldBuffer:
    buffer = held.module._buffers[held.name]
    assert buffer is not None, "a forward pass removes no buffer"
    return HeldBuffer(held.module, held.name, buffer, buffer._version, buffer.detach().clone())


@torch.no_grad()
def _put_back(buffers: Sequence[HeldBuffer]) -> None:
    for module, name, tensor, _, values in buffers:
        module._buffers[name] = tensor
        if values is not None:
            tensor.copy_(values)
