"""What PyTorch units measure, as sums that add up over partitions. It never waits for a GPU before the unit's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Metrics

_FLUSH = 1024


class Tally:
    """Collects a unit's losses and metrics.

    A metric is `fn(output, label) -> per-row values`, or an object with `update`, `compute` and `reset`. Of the latter,
    those whose states all add up (torchmetrics' `dist_reduce_fx="sum"`) are merged, others carried.
    """

    def __init__(self, metrics: Mapping[str, Any], carried: Metrics | None) -> None:
        self._functions = {name: m for name, m in metrics.items() if not _is_object(m)}
        self._objects = {name: m for name, m in metrics.items() if _is_object(m)}
        self._pending: list[torch.Tensor] = []
        self._pending_rows: list[int] = []
        self._values: dict[str, list[torch.Tensor]] = {name: [] for name in self._functions}
        self._sums = dict.fromkeys(["loss", *self._functions], 0.0)
        self._rows = 0
        for name, metric in self._objects.items():
            metric.reset()
            if carried is not None and name in carried.carried:
                set_state(metric, carried.carried[name])

    @torch.no_grad()
    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Count a batch in; nothing is computed of the loss until `metrics`."""
        rows = len(next(iter(label.values())) if isinstance(label, dict) else label)
        self._pending.append(loss)
        self._pending_rows.append(rows)
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
        return Metrics(self._sums, dict.fromkeys(self._sums, float(self._rows)), states, carried)

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """The values of merged object metrics."""
        values: dict[str, float] = {}
        for name, metric in self._objects.items():
            if name in metrics.states:
                _set_added_state(metric, metrics.states[name])
            elif name in metrics.carried:
                set_state(metric, metrics.carried[name])
            else:
                continue
            values[name] = float(metric.compute())
        return values

    def _flush(self) -> None:
        if not self._pending:
            return
        losses = torch.stack(self._pending).double()
        rows = torch.tensor(self._pending_rows, dtype=torch.float64, device=losses.device)
        self._sums["loss"] += float(losses @ rows)
        for name, parts in self._values.items():
            self._sums[name] += float(torch.stack(parts).sum())
            parts.clear()
        self._pending.clear()
        self._pending_rows.clear()


def _row_sum(name: str, values: Any, rows: int) -> torch.Tensor:
    values = torch.as_tensor(values)
    if values.ndim == 0 or len(values) != rows:
        raise ConfigurationError(
            f"metric {name!r} returned shape {tuple(values.shape)} for {rows} rows, but must return a value a row"
            " (they are averaged exactly over all rows), or be an object with update, compute and reset"
        )
    total: torch.Tensor = values.sum(dtype=torch.float64)
    return total if values.ndim == 1 else torch.mul(total, rows / values.numel())


def _is_object(metric: Any) -> bool:
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


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


def set_state(metric: Any, state: Any) -> None:
    """Put a metric object into a state that `get_state` returned."""
    for name, value in state.items():
        setattr(metric, name, _decode(value))
    _mark_updated(metric)


def _mark_updated(metric: Any) -> None:
    # torchmetrics warns when `compute` comes without an `update`, and keeps the last computed value.
    if hasattr(metric, "_update_count"):
        metric._update_count = max(1, metric._update_count)
        metric._computed = None


def _encode(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"$tensor": value.detach().cpu().reshape(-1).tolist(), "dtype": dtype, "shape": list(value.shape)}
    if isinstance(value, list | tuple):
        return [_encode(name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): _encode(name, item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigurationError(
        f"a metric keeps {name!r} as a {type(value).__name__}, which cannot travel: keep tensors, numbers, lists"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, dict) and "$tensor" in value:
        return torch.tensor(value["$tensor"], dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    return [_decode(item) for item in value] if isinstance(value, list) else value
