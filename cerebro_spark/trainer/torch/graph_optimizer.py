"""Steps of a PyTorch optimizer that a CUDA graph can repeat. It takes them as the user's optimizer does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.signature import hook_parts

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers with a fused kernel for GPUs, which reads the learning rate and the step count there."""


def steps_on_host(optimizer: Any) -> bool:
    """Whether an optimizer may do something on the host in a step that a graph would not repeat.

    PyTorch's own do not, but for what they count there. Others may count in attributes, and do something every so
    often; so may hooks.

    >>> parameter = torch.nn.Parameter(torch.zeros(1))
    >>> steps_on_host(torch.optim.Adam([parameter])), steps_on_host(type("Own", (torch.optim.Adam,), {})([parameter]))
    (False, True)
    """
    return type(optimizer).__module__.partition(".optim.")[0] != "torch" or bool(hook_parts(vars(optimizer)))


class GraphOptimizer:
    """Takes steps of an optimizer whose learning rates and step counts are on the device.

    A step is that of PyTorch's fused kernel, where the optimizer has one and the user asked for no other, or that of
    its implementation for graphs (`capturable`). The user's optimizer keeps its numbers: schedulers see and set them as
    ever. A step leaves the same bits whether it is recorded, repeated or taken at once; those of a step without this
    class differ, by rounding.

    Args:
        model: The built model whose optimizer it is.
    """

    def __init__(self, model: BuiltTorchModel) -> None:
        self._optimizer = model.model.optimizer
        self._on_host = model.scaler.is_enabled() or steps_on_host(self._optimizer)
        self._device = model.parameters[0].device
        self._is_fused = all(map(self._fuses, self._groups))
        kind = torch.float32 if self._is_fused else torch.float64
        self._rates = [torch.zeros((), dtype=kind, device=self._device) for _ in self._groups]
        self._sent: list[float | None] = [None] * len(self._rates)
        self._kept: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        """The tensors of the state on the device, by parameter: graphs expect them where they were."""

    @property
    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return groups

    @property
    def is_plain(self) -> bool:
        """Whether a step is the user's own: some optimizers take no rate on the device, or do something on the host."""
        return self._on_host or not (self._is_fused or all("capturable" in group for group in self._groups))

    @property
    def is_repeatable(self) -> bool:
        """Whether all that a step counts is on the device; some optimizers count their steps on the host."""
        states = [value for state in self._optimizer.state.values() for value in state.values()]
        return all(isinstance(value, torch.Tensor) and value.device == self._device for value in states)

    def state_tensors(self) -> list[torch.Tensor]:
        """Return all tensors of the state."""
        values = [value for state in self._optimizer.state.values() for value in state.values()]
        return [value for value in values if isinstance(value, torch.Tensor)]

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep the step counts on the device for a unit; afterwards they are where the optimizer had them."""
        counted = [] if self.is_plain else self._count_on_host()
        for parameter in counted:
            state = self._optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(self._device)
        self.settle()
        try:
            yield
        finally:
            states = [self._optimizer.state.get(parameter, {}) for parameter in counted]
            states = [state for state in states if isinstance(state.get("step"), torch.Tensor)]
            if states:  # one copy for all: each waits for the device
                counts = torch.stack([state["step"] for state in states]).cpu().unbind()
                for state, count in zip(states, counts, strict=True):
                    state["step"] = count.clone()

    def settle(self) -> None:
        """Move the state to where it was before: a trial that begins has made a new one, elsewhere."""
        for parameter, state in self._optimizer.state.items():
            kept = self._kept.setdefault(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.device == self._device:
                    state[name] = _move_to(kept.get(name), value)
                    kept[name] = state[name]

    def send_rates(self) -> None:
        """Bring the learning rates up to date on the device."""
        if self.is_plain:
            return
        for index, (group, rate) in enumerate(zip(self._groups, self._rates, strict=True)):
            if self._sent[index] != group["lr"]:
                rate.fill_(float(group["lr"]))
                self._sent[index] = float(group["lr"])

    def step(self) -> None:
        """Take a step, with the rates that were sent."""
        if self.is_plain:
            self._optimizer.step()
            return
        own = [dict(group) for group in self._groups]
        for group, rate in zip(self._groups, self._rates, strict=True):
            group.update(self._settings(group, rate))
        try:
            self._optimizer.step()
        finally:
            for group, before in zip(self._groups, own, strict=True):
                group.update(before)

    def constants(self) -> tuple[Any, ...]:
        """Return the numbers that a graph of a step has as constants."""
        sent = {"params"} if self.is_plain else {"params", "lr", "initial_lr"}
        return tuple(
            (key, value.data_ptr() if isinstance(value, torch.Tensor) else value)
            for group in self._groups
            for key, value in group.items()
            if key not in sent
        )

    def _fuses(self, group: dict[str, Any]) -> bool:
        """Whether the steps of a group are taken by the fused kernel."""
        if type(self._optimizer) not in _FUSED or group.get("differentiable"):
            return False
        asked = group.get("foreach"), group.get("fused")
        floats = all(p.is_floating_point() and p.device == self._device for p in group["params"])
        return floats and asked in ((None, None), (None, True), (False, True))

    def _settings(self, group: dict[str, Any], rate: torch.Tensor) -> dict[str, Any]:
        """Return how a group is to be during a step."""
        capturable = {"capturable": True} if "capturable" in group else {}
        return {"lr": rate, **capturable, **({"fused": True, "foreach": False} if self._is_fused else {})}

    def _count_on_host(self) -> list[torch.Tensor]:
        """Return the parameters whose steps the optimizer itself would count on the host."""
        groups = [group for group in self._groups if not (group.get("capturable") or group.get("fused"))]
        return [parameter for group in groups for parameter in group["params"]]


def _move_to(place: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to where one of its form was, if there is such a place; return the tensor that now holds it."""
    if place is None or place is value or (place.shape, place.dtype) != (value.shape, value.dtype):
        return value
    return place.copy_(value)
