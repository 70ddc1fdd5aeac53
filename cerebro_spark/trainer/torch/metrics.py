"""What PyTorch units measure, as sums that add up over partitions. It never waits for a GPU before the unit's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.losses import known_loss
from cerebro_spark.trainer.torch.metric_states import (
    added_state,
    adds_up,
    check_hidden,
    get_state,
    hidden_state,
    move_metric,
    set_added_state,
    set_state,
)
from cerebro_spark.trainer.torch.returns import is_metric_object
from cerebro_spark.trainer.torch.shapes import check_same_shape, like_output, row_count, watched
from cerebro_spark.types import Metrics

Weigher = Callable[[Any, Any, int], Any]

_FLUSH = 1024


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
        self._known = {name: known_loss(function) for name, function in self._functions.items()}
        self._fitting = {name for name, metric in self._objects.items() if fits_itself(metric)}
        self._weigh = weigh
        self._device = device
        self._pending: list[torch.Tensor] = []
        self._pending_weights: list[Any] = []
        self._values: dict[str, list[torch.Tensor]] = {name: [] for name in self._functions}
        self._sums = dict.fromkeys(["loss", *self._functions], 0.0)
        self._rows = 0
        self._weight = 0.0
        self._watched = False
        for name, metric in self._objects.items():
            metric.reset()
            move_metric(metric, device)
            if carried is not None and name in carried.carried:
                set_state(metric, carried.carried[name], device)

    @torch.no_grad()
    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Count a batch in; nothing is waited for until `metrics`."""
        rows = row_count(label)
        weight = self._weigh(output, label, rows)
        # A sum over rows is brought to the form of the others: their mean, counted for so many rows.
        self._pending.append(loss.double() / rows if weight is None else loss)
        self._pending_weights.append(rows if weight is None else weight)
        self._rows += rows
        if self._functions or self._objects:
            output = _detached(output)
        for name, function in self._functions.items():
            self._values[name].append(self._summed(name, function, output, label, rows))
        for name, metric in self._objects.items():
            self._update(name, metric, output, label)
        self._watched = self._watched or rows > 1
        if len(self._pending) >= _FLUSH:
            self._flush()

    def metrics(self) -> Metrics:
        """The unit's metrics; the one place that waits for the device."""
        self._flush()
        states: dict[str, tuple[float, ...]] = {}
        carried: dict[str, Any] = {}
        for name, metric in self._objects.items():
            if adds_up(metric):
                states[name] = added_state(metric)
            else:
                carried[name] = get_state(metric)
        weights = {**dict.fromkeys(self._sums, float(self._rows)), "loss": self._weight}
        return Metrics(self._sums, weights, states, carried)

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """The values of merged object metrics."""
        values: dict[str, float] = {}
        for name, metric in self._objects.items():
            if name in metrics.states:
                set_added_state(metric, metrics.states[name])
            elif name in metrics.carried:
                set_state(metric, metrics.carried[name], self._device)
            else:
                continue
            values[name] = _number(name, metric.compute())
        return values

    def _summed(self, name: str, function: Any, output: Any, label: Any, rows: int) -> torch.Tensor:
        what, known = f"metric {name!r}", self._known[name]
        if known is not None:
            label = known.fit(output, label)
            if known.own and known.kind != "class numbers":
                check_same_shape(what, output, label)
        if self._watched or (known is not None and known.own):
            return _row_sum(name, function(output, label), label, rows)
        return _row_sum(name, watched(what, function, output, label), label, rows)

    def _update(self, name: str, metric: Any, output: Any, label: Any) -> None:
        before = {} if self._watched else hidden_state(metric)
        if name in self._fitting:
            metric.update(output, like_output(output, label))
        elif self._watched:
            metric.update(output, label)
        else:
            watched(f"metric {name!r}", metric.update, output, label)
        check_hidden(name, before, metric)

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


def _detached(output: Any) -> Any:
    """An output without its history: a tensor, some by name, or side by side as with auxiliary heads.

    What is a class of its own, which metrics may ask for attributes, stays as it is.
    """
    if isinstance(output, torch.Tensor):
        return output.detach()
    if type(output) is dict:
        return {name: _detached(part) for name, part in output.items()}
    if isinstance(output, tuple | list):
        parts = [_detached(part) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output


def _stacked(weights: list[Any], device: torch.device) -> torch.Tensor:
    if all(isinstance(weight, int) for weight in weights):
        return torch.tensor(weights, dtype=torch.float64, device=device)
    return torch.stack([torch.as_tensor(weight, dtype=torch.float64, device=device) for weight in weights])


def _row_sum(name: str, values: Any, label: Any, rows: int) -> torch.Tensor:
    """The sum of a value a row; where each part of a row has one, as where the label is an image, of their means."""
    values = torch.as_tensor(values)
    parts = isinstance(label, torch.Tensor) and values.shape == label.shape
    if (values.numel() != rows and not parts) or (values.ndim > 0 and len(values) != rows):
        raise ConfigurationError(
            f"metric {name!r} returned shape {tuple(values.shape)} for {rows} rows, but must return a value a row"
            " (they are averaged exactly over all rows): leave out its mean, with reduction='none' if it is a loss, or"
            " use an object with update, compute and reset"
        )
    total: torch.Tensor = values.sum(dtype=torch.float64)
    return total if values.numel() == rows else torch.mul(total, rows / values.numel())


def fits_itself(metric: Any) -> bool:
    """Whether all of a metric object is torchmetrics' own, which wants output and label in one shape and says so."""
    kinds: list[Any] = []
    if isinstance(metric, torch.nn.Module):
        kinds = [type(part) for part in metric.modules() if is_metric_object(part)]
    return bool(kinds) and all(kind.update.__module__.startswith("torchmetrics.") for kind in kinds)


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.item())
    if isinstance(value, bool | int | float) or getattr(value, "shape", None) == ():
        return float(value)
    raise ConfigurationError(
        f"`compute` of metric {name!r} returned {value!r}, but must return one number: average it, or make a metric of"
        " each part"
    )
