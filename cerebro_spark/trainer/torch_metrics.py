"""What PyTorch units measure, as sums that add up over partitions. It never waits for a GPU before the unit's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch_returns import is_metric_object
from cerebro_spark.types import Metrics

Weigher = Callable[[Any, Any, int], Any]

_FLUSH = 1024
# No '$' in front: event logs keep such names for themselves.
_TENSOR, _TUPLE, _ITEMS = "tensor", "tuple", "items"


class Tally:
    """Collects a unit's losses and metrics.

    A metric is `fn(output, label) -> per-row values`, or an object with `update`, `compute` and `reset`. Of the latter,
    those whose states all add up (torchmetrics' `dist_reduce_fx="sum"`) are merged, others carried. `weigh(output,
    label, rows)` says how much a batch's loss counts; None for one that is a sum over its rows already.
    """

    def __init__(
        self, metrics: Mapping[str, Any], carried: Metrics | None, weigh: Weigher, device: torch.device
    ) -> None:
        self._functions = {name: m for name, m in metrics.items() if not is_metric_object(m)}
        self._objects = {name: m for name, m in metrics.items() if is_metric_object(m)}
        self._weigh = weigh
        self._device = device
        self._pending: list[torch.Tensor] = []
        self._pending_weights: list[Any] = []
        self._values: dict[str, list[torch.Tensor]] = {name: [] for name in self._functions}
        self._sums = dict.fromkeys(["loss", *self._functions], 0.0)
        self._rows = 0
        self._weight = 0.0
        for name, metric in self._objects.items():
            metric.reset()
            move_metric(metric, device)
            if carried is not None and name in carried.carried:
                set_state(metric, carried.carried[name], device)

    @torch.no_grad()
    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Count a batch in; nothing is waited for until `metrics`."""
        rows = len(next(iter(label.values())) if isinstance(label, dict) else label)
        weight = self._weigh(output, label, rows)
        # A sum over rows is brought to the form of the others: their mean, counted for so many rows.
        self._pending.append(loss.double() / rows if weight is None else loss)
        self._pending_weights.append(rows if weight is None else weight)
        self._rows += rows
        if self._functions or self._objects:
            output = {k: v.detach() for k, v in output.items()} if isinstance(output, dict) else output.detach()
        for name, function in self._functions.items():
            self._values[name].append(_row_sum(name, function(output, label), rows))
        for metric in self._objects.values():
            metric.update(output, label)
        if len(self._pending) >= _FLUSH:
            self._flush()

    def metrics(self) -> Metrics:
        """The unit's metrics; the one place that waits for the device."""
        self._flush()
        states: dict[str, tuple[float, ...]] = {}
        carried: dict[str, Any] = {}
        for name, metric in self._objects.items():
            if _adds_up(metric):
                states[name] = _added_state(metric)
            else:
                carried[name] = get_state(metric)
        weights = {**dict.fromkeys(self._sums, float(self._rows)), "loss": self._weight}
        return Metrics(self._sums, weights, states, carried)

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """The values of merged object metrics."""
        values: dict[str, float] = {}
        for name, metric in self._objects.items():
            if name in metrics.states:
                _set_added_state(metric, metrics.states[name])
            elif name in metrics.carried:
                set_state(metric, metrics.carried[name], self._device)
            else:
                continue
            values[name] = _number(name, metric.compute())
        return values

    def _flush(self) -> None:
        if not self._pending:
            return
        losses = torch.stack(self._pending).double()
        weights = _stacked(self._pending_weights, losses.device)
        # A batch whose labels are all ignored has no mean, and counts nothing.
        self._sums["loss"] += float(torch.where(weights == 0, 0.0, losses * weights).sum())
        self._weight += float(weights.sum())
        for name, parts in self._values.items():
            self._sums[name] += float(torch.stack(parts).sum())
            parts.clear()
        self._pending.clear()
        self._pending_weights.clear()


def _stacked(weights: list[Any], device: torch.device) -> torch.Tensor:
    if all(isinstance(weight, int) for weight in weights):
        return torch.tensor(weights, dtype=torch.float64, device=device)
    return torch.stack([torch.as_tensor(weight, dtype=torch.float64, device=device) for weight in weights])


def _row_sum(name: str, values: Any, rows: int) -> torch.Tensor:
    values = torch.as_tensor(values)
    if values.ndim == 0 or len(values) != rows:
        raise ConfigurationError(
            f"metric {name!r} returned shape {tuple(values.shape)} for {rows} rows, but must return a value a row"
            " (they are averaged exactly over all rows), or be an object with update, compute and reset"
        )
    total: torch.Tensor = values.sum(dtype=torch.float64)
    return total if values.ndim == 1 else torch.mul(total, rows / values.numel())


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    if isinstance(value, bool | int | float) or getattr(value, "shape", None) == ():
        return float(value)
    raise ConfigurationError(
        f"`compute` of metric {name!r} returned {value!r}, but must return one number: average it, or make a metric of"
        " each part"
    )


def move_metric(metric: Any, device: torch.device) -> None:
    """Put the tensors that a metric object keeps where the outputs are that it is updated with."""
    if isinstance(metric, torch.nn.Module):
        metric.to(device)
    elif is_metric_object(metric):
        for name, value in _states(metric).items():
            if isinstance(value, torch.Tensor) and value.device != device:
                setattr(metric, name, value.to(device))


def _states(metric: Any) -> dict[str, Any]:
    names = getattr(metric, "_defaults", None)
    if isinstance(names, Mapping):
        return {name: getattr(metric, name) for name in names}
    return dict(vars(metric))


def _adds_up(metric: Any) -> bool:
    reductions = getattr(metric, "_reductions", None)
    if not isinstance(reductions, Mapping) or not reductions:
        return False
    by_sum = all(getattr(fn, "__name__", "") in ("dim_zero_sum", "sum") for fn in reductions.values())
    return by_sum and all(isinstance(value, torch.Tensor) for value in _states(metric).values())


def _added_state(metric: Any) -> tuple[float, ...]:
    return tuple(float(x) for value in _states(metric).values() for x in value.double().reshape(-1).tolist())


def _set_added_state(metric: Any, state: tuple[float, ...]) -> None:
    metric.reset()
    rest = torch.tensor(state, dtype=torch.float64)
    for name, value in _states(metric).items():
        part, rest = rest[: value.numel()], rest[value.numel() :]
        setattr(metric, name, part.reshape(value.shape).to(value))
    _mark_updated(metric)


def get_state(metric: Any) -> Any:
    """A metric object's state as JSON."""
    return {name: _encode(name, value) for name, value in _states(metric).items()}


def set_state(metric: Any, state: Any, device: torch.device) -> None:
    """Put a metric object into a state that `get_state` returned."""
    for name, value in state.items():
        setattr(metric, name, _decode(value, device))
    _mark_updated(metric)


def _mark_updated(metric: Any) -> None:
    # torchmetrics warns when `compute` comes without an `update`, and keeps the last computed value.
    if hasattr(metric, "_update_count"):
        metric._update_count = max(1, metric._update_count)
        metric._computed = None


def _encode(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {_TENSOR: value.detach().cpu().reshape(-1).tolist(), "dtype": dtype, "shape": list(value.shape)}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(name, item) for item in value]}
    if isinstance(value, list):
        return [_encode(name, item) for item in value]
    if isinstance(value, dict):
        return {_ITEMS: [[_encode(name, key), _encode(name, item)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigurationError(
        f"a metric keeps {name!r} as a {type(value).__name__}, which cannot travel: keep tensors, numbers, lists"
    )


def _decode(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_decode(item, device) for item in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(_decode(item, device) for item in value[_TUPLE])
    if _ITEMS in value:
        return {_decode(key, device): _decode(item, device) for key, item in value[_ITEMS]}
    dtype = getattr(torch, value["dtype"])
    return torch.tensor(value[_TENSOR], dtype=dtype, device=device).reshape(value["shape"])
