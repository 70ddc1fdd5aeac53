"""Keeps the state of an optimizer in the host's memory, and has its steps taken piece by piece.

A step of each parameter depends on that parameter alone, so it leaves the same bits. It never chooses who offloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.signature import hook_parts

_PIECE = 256 << 20
"""The bytes of state that are brought to the device at once. As many come and go meanwhile."""
_BY_PARAMETER = {
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
}  # fmt: skip
"""PyTorch's optimizers that treat each parameter by itself, and count nothing elsewhere."""


def find_obstacle(model: BuiltTorchModel) -> str:
    """Return why the state of a model's optimizer cannot be kept on the host; "" if it can."""
    optimizer = model.model.optimizer
    kind = type(optimizer)
    if kind.__name__ not in _BY_PARAMETER or getattr(torch.optim, kind.__name__, None) is not kind:
        return f"its optimizer {kind.__name__} may do more than step each parameter by itself"
    step = vars(optimizer).get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        return "its optimizer has another `step` than its class, which would be called for each piece of a step"
    if _has_step_hooks(optimizer):
        return "its optimizer has hooks, which would be called for each piece of a step"
    if model.scaler.is_enabled():
        return "its gradients are scaled for precision='float16', all at once: use 'bfloat16'"
    if kind is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups):
        return "its optimizer is an SGD without momentum, which keeps no state: use 'recompute'"
    return ""


def _has_step_hooks(optimizer: Any) -> bool:
    """Whether a step of an optimizer calls hooks, its own or those of all optimizers."""
    of_all = optimizers._global_optimizer_pre_hooks or optimizers._global_optimizer_post_hooks
    return bool(of_all) or any("state_dict" not in place for place, _ in hook_parts(vars(optimizer)))


def place_state(model: BuiltTorchModel, on_host: bool) -> None:
    """Move the state of a model's optimizer to the host, in memory that a GPU can read, or to where its parameters are.

    Numbers, such as counts of steps, stay where they are.
    """
    model.keeps_state_on_host = on_host
    for parameter, state in model.model.optimizer.state.items():
        for key, value in state.items():
            if _is_large(value):
                state[key] = _to_host(value) if on_host else value.to(parameter.device)


class HostedOptimizer:
    """Takes steps of an optimizer whose state is on the host.

    Args:
        optimizer: The user's optimizer.
        parameters: All of its parameters.
        device: Where these are.
        piece: The bytes of state that are brought there at once.
    """

    def __init__(
        self, optimizer: Any, parameters: Sequence[torch.Tensor], device: torch.device, piece: int = _PIECE
    ) -> None:
        self._states = optimizer.state
        self._parameters = parameters
        self._piece = piece
        self._transfer: _Transfer = _streams_of(device) if device.type == "cuda" else _Transfer(device)

    def finish(self) -> None:
        """Wait until all of the state is on the host. Until then only steps may read it."""
        self._transfer.finish()

    def step(self, take: Callable[[], None]) -> None:
        """Take one step.

        Args:
            take: Takes a step of all parameters that have a gradient.
        """
        gradients = {parameter: parameter.grad for parameter in self._parameters if parameter.grad is not None}
        pieces = self._cut(gradients)
        for parameter in gradients:
            parameter.grad = None
        try:
            self._step_pieces(pieces, gradients, take)
        finally:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient

    def _cut(self, parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return the parameters of each piece."""
        pieces: list[list[torch.Tensor]] = []
        size = 0
        for parameter in parameters:
            state = self._states.get(parameter, {})
            # Not yet known before the first step: most optimizers keep two numbers for each of a parameter.
            own = sum(v.nbytes for v in state.values() if _is_large(v)) or 2 * parameter.nbytes
            if not pieces or size + own > self._piece:
                pieces.append([])
                size = 0
            pieces[-1].append(parameter)
            size += own
        return pieces

    def _step_pieces(
        self,
        pieces: Sequence[Sequence[torch.Tensor]],
        gradients: dict[torch.Tensor, torch.Tensor],
        take: Callable[[], None],
    ) -> None:
        self._transfer.begin()
        ahead = self._fetch(pieces[0]) if pieces else {}
        for index, piece in enumerate(pieces):
            homes, ahead = ahead, {}
            self._transfer.use_fetched()
            for (parameter, key), (_, there) in homes.items():
                self._states[parameter][key] = there
            if index + 1 < len(pieces):
                ahead = self._fetch(pieces[index + 1])
            for parameter in piece:
                parameter.grad = gradients[parameter]
            take()
            for parameter in piece:
                parameter.grad = None
            self._store(piece, homes)

    def _fetch(self, piece: Sequence[torch.Tensor]) -> _Homes:
        """Begin to bring the state of a piece to the device; return where it was and where it will be."""
        wanted = {
            (parameter, key): value
            for parameter in piece
            for key, value in self._states.get(parameter, {}).items()
            if _is_large(value)
        }
        fetched = self._transfer.fetch(list(wanted.values()))
        return dict(zip(wanted, zip(wanted.values(), fetched, strict=True), strict=True))

    def _store(self, piece: Sequence[torch.Tensor], homes: _Homes) -> None:
        """Begin to bring the state of a piece back."""
        made = False
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for parameter in piece:
            state = self._states.get(parameter, {})
            for key, value in state.items():
                if _is_large(value):
                    home, fetched = homes.get((parameter, key), (None, None))
                    made = made or value is not fetched
                    if home is None or home.shape != value.shape or home.dtype != value.dtype:
                        home = _empty_on_host(value)
                    pairs.append((value, home))
                    state[key] = home
        homes.clear()
        self._transfer.store(pairs, wait=made)


_Homes = dict[tuple[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]]
"""By parameter and name in its state: the tensor on the host, and the one on the device."""


class _Transfer:
    """Copies tensors to a device and back, at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        """A step begins."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the device. They may be used after `use_fetched`."""
        return [torch.empty_like(each, device=self._device).copy_(each) for each in tensors]

    def use_fetched(self) -> None:
        """What was fetched last is to be used now."""

    def store(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], wait: bool) -> None:
        """Copy the first of each pair, on the device, to the second, on the host.

        Args:
            pairs: The pairs.
            wait: Whether some on the device did not come from `fetch`.
        """
        for there, home in pairs:
            home.copy_(there)

    def finish(self) -> None:
        """Wait until all is stored."""


class _Streams(_Transfer):
    """Copies tensors to a GPU and back while it computes.

    What was fetched is memory of the stream that fetches. It is written again only by a later fetch, which waits until
    all that was given up before then has been stored. So no more than three pieces are on the GPU at once.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._inward, self._outward = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._fetched: torch.cuda.Event | None = None
        self._stored: torch.cuda.Event | None = None

    def begin(self) -> None:
        self._inward.wait_stream(torch.cuda.current_stream(self._device))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._stored is not None:
            self._inward.wait_event(self._stored)
        with torch.cuda.stream(self._inward):
            copies = [torch.empty_like(each, device=self._device) for each in tensors]
            for copied, tensor in zip(copies, tensors, strict=True):
                copied.copy_(tensor, non_blocking=True)
            self._fetched = self._inward.record_event()
        return copies

    def use_fetched(self) -> None:
        if self._fetched is not None:
            torch.cuda.current_stream(self._device).wait_event(self._fetched)

    def store(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], wait: bool) -> None:
        self._outward.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._outward):
            for there, home in pairs:
                home.copy_(there, non_blocking=True)
            self._stored = self._outward.record_event()
        if wait:
            # A first step has made it in memory of the stream that computes, which would use it again at once.
            self._outward.synchronize()

    def finish(self) -> None:
        self._outward.synchronize()


@cache
def _streams_of(device: torch.device) -> _Streams:
    """Return the streams of a device, always the same: each keeps memory of its own."""
    return _Streams(device)


def _is_large(value: Any) -> bool:
    """Whether something in an optimizer's state is more than a number."""
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _empty_on_host(like: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the host, in memory that a GPU reads by itself if there is one."""
    return torch.empty_like(like, device="cpu", pin_memory=like.device.type == "cuda" or torch.cuda.is_available())


def _to_host(value: torch.Tensor) -> torch.Tensor:
    if value.device.type == "cpu" and (value.is_pinned() or not torch.cuda.is_available()):
        return value
    return _empty_on_host(value).copy_(value)
