"""Collects the losses and metrics of PyTorch units. It never waits for a GPU before the end of the unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.trainer.torch.batch_cuts import tell_dependence
from cerebro_spark.trainer.torch.batchwise_inputs import BatchwiseInputs
from cerebro_spark.trainer.torch.losses import CheckedFunction
from cerebro_spark.trainer.torch.metric_inputs import MetricInputs
from cerebro_spark.trainer.torch.metric_states import (
    adds_up,
    check_hidden,
    get_added_state,
    get_hidden_state,
    get_state,
    move_part,
    set_added_state,
    set_state,
)
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.row_pairing import PairingCheck, compute_anew
from cerebro_spark.trainer.torch.rowwise_inputs import RowwiseInputs
from cerebro_spark.trainer.torch.shapes import call_watched, like_output, list_tensors, row_count
from cerebro_spark.types import Metrics

Weigh = Callable[[Any, Any, int], Any]

# Batches between two sums on the device: it bounds the tensors that are kept.
_FLUSH_BATCHES = 1024


class MetricCollector:
    """Collects the loss and the metrics of one unit, as sums that add up over partitions.

    Metric objects whose states all add up (torchmetrics' `dist_reduce_fx="sum"`) are merged, others carried.

    Args:
        metrics: Functions `fn(output, label)` that return values a row, or objects with `update`, `compute`, `reset`.
        carried: The metrics of the unit before, if any.
        weigh: `weigh(output, label, rows)` returns how much the loss of a batch counts; None for a loss that is a
            sum over its rows.
        device: Where the outputs are.
        takes_logits: Whether the loss takes logits, so that classification metrics are given probabilities. False, the
            default, if that is not known. None leaves all to the metrics, as older runs did.
        by_rows: Whether all rows together tell a metric if it is given logits, where the loss does not. False leaves
            that to the metric, batch by batch, as older runs did; it is so, too, inside a class of the user's own.
            Defaults to True.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        carried: Metrics | None,
        weigh: Weigh,
        device: torch.device,
        takes_logits: bool | None = False,
        by_rows: bool = True,
    ) -> None:
        self._objects = {name: m for name, m in metrics.items() if is_metric_object(m)}
        self._functions = {
            name: CheckedFunction(f"metric {name!r}", m) for name, m in metrics.items() if name not in self._objects
        }
        self._reshaped = {name for name, metric in self._objects.items() if needs_equal_shapes(metric)}
        self._weigh = weigh
        self._device = device
        self._pending: list[tuple[torch.Tensor, Any]] = []
        self._values: dict[str, list[torch.Tensor]] = {name: [] for name in self._functions}
        self._sums = dict.fromkeys(["loss", *self._functions], 0.0)
        self._rows = 0
        self._weight = 0.0
        self._watched = False
        self._pairings = {
            name: PairingCheck(f"metric {name!r}", partial(compute_anew, m)) for name, m in self._objects.items()
        }
        for metric in self._objects.values():
            metric.reset()
            move_part(metric, device)
        self._inputs = {} if takes_logits is None else self._find_inputs(takes_logits, by_rows)
        for name, metric in self._objects.items():
            if carried is not None and name in carried.carried:
                self._continue(name, metric, carried.carried[name])

    @torch.no_grad()
    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Count a batch. Nothing waits for the device before `collect`."""
        rows = row_count(label)
        weight = self._weigh(output, label, rows)
        if weight is None:  # a sum over rows becomes what others are: a mean, counted for that many rows
            loss, weight = loss.double() / rows, rows
        self._pending.append((loss, weight))
        self._rows += rows
        if self._functions or self._objects:
            output = detach(output)
        for name, function in self._functions.items():
            self._values[name].append(_add_rows(name, *function.compute(output, label), rows))
        for name, metric in self._objects.items():
            self._update(name, metric, output, label)
        # A single row cannot show what stretches rows over rows, and other rows may not either.
        self._watched = self._watched or (rows > 1 and all(each.is_told for each in self._pairings.values()))
        if len(self._pending) >= _FLUSH_BATCHES:
            self._flush()

    @property
    def counts_only_losses(self) -> bool:
        """Whether there are no metrics besides the loss."""
        return not self._functions and not self._objects

    def add_losses(self, losses: torch.Tensor, weights: Sequence[Any] | None, rows: int) -> None:
        """Count batches of `rows` rows each, as `add` does, if only their losses count.

        Args:
            losses: The loss of each batch.
            weights: How much each of them counts, as `weigh` returns it; None for losses that are sums over rows.
            rows: The rows of a batch.
        """
        if weights is None:
            losses, weights = losses.double() / rows, [rows] * len(losses)
        for loss, weight in zip(losses.unbind(), weights, strict=True):
            self._pending.append((loss, weight))
            self._rows += rows
            if len(self._pending) >= _FLUSH_BATCHES:
                self._flush()

    def add_all(self, losses: torch.Tensor, weights: Any, rows: Sequence[int]) -> None:
        """Count all batches of a unit at once, as `add` does one by one, if only their losses count.

        Args:
            losses: The loss of each batch.
            weights: How much each of them counts: a tensor, or None for losses that are sums over rows.
            rows: The rows of each batch.
        """
        means = losses.double()
        if weights is None:
            weights = torch.tensor(rows, dtype=torch.float64, device=means.device)
            means = means / weights
        chunks = zip(means.split(_FLUSH_BATCHES), weights.double().split(_FLUSH_BATCHES), strict=True)
        # The device is waited for once, not for each chunk.
        for loss, weight in torch.stack([_add_up(*chunk) for chunk in chunks]).tolist():
            self._sums["loss"] += loss
            self._weight += weight
        self._rows += sum(rows)

    def collect(self) -> Metrics:
        """Return the metrics of the unit. Only here, and after many batches, the device is waited for."""
        self._flush()
        added = {name: metric for name, metric in self._objects.items() if adds_up(metric)}
        states = {name: (*get_added_state(metric), *self._get_numbers(name)) for name, metric in added.items()}
        carried = {name: self._get_carried(name, each) for name, each in self._objects.items() if name not in added}
        weights = {**dict.fromkeys(self._sums, float(self._rows)), "loss": self._weight}
        return Metrics(self._sums, weights, states, carried)

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """Return the values of metric objects whose states were merged."""
        values: dict[str, float] = {}
        for name, metric in self._objects.items():
            if name in metrics.states:
                set_added_state(metric, metrics.states[name])
                if name in self._inputs:
                    self._inputs[name].finish(metrics.states[name])
            elif name in metrics.carried:
                self._continue(name, metric, metrics.carried[name])
                if name in self._inputs:
                    self._inputs[name].check()
            else:
                continue
            with _blaming(name, metric) if needs_equal_shapes(metric) else nullcontext():
                value = metric.compute()
            values[name] = _to_number(name, value)
        return values

    def _find_inputs(self, takes_logits: bool, by_rows: bool) -> dict[str, MetricInputs]:
        """Return the inputs of those metrics that would guess what they are given."""
        found = {name: self._make_inputs(name, takes_logits, by_rows) for name in self._objects}
        return {name: inputs for name, inputs in found.items() if inputs.guesses}

    def _make_inputs(self, name: str, takes_logits: bool, by_rows: bool) -> MetricInputs:
        given = name, self._objects[name], takes_logits, self._device
        rowwise = RowwiseInputs(*given)
        return rowwise if by_rows and rowwise.suits else BatchwiseInputs(*given)

    def _get_numbers(self, name: str) -> Sequence[float]:
        """Return what is known of a metric's inputs, beside its state that adds up."""
        return self._inputs[name].get_numbers() if name in self._inputs else ()

    def _get_carried(self, name: str, metric: Any) -> Any:
        """Return the state of a metric object for the next partition, with what is known of its inputs."""
        # In this order: what is known of inputs may settle which of two states the metric has.
        known = self._inputs[name].get_carried() if name in self._inputs else {}
        return {**get_state(name, metric), **known}

    def _continue(self, name: str, metric: Any, carried: Any) -> None:
        """Put a metric object into the state in which the partition before left it."""
        inputs = self._inputs.get(name)
        own = {key: value for key, value in carried.items() if inputs is None or key != inputs.key}
        set_state(metric, own, self._device)
        if inputs is not None:
            inputs.set_carried(carried[inputs.key])

    def _update(self, name: str, metric: Any, output: Any, label: Any) -> None:
        if not self._watched and name not in self._inputs:
            tell_dependence(name, metric, output, _fit_own(output, label) if name in self._reshaped else label)
        with self._inputs[name].of(output) if name in self._inputs else nullcontext():
            self._update_object(name, metric, output, label)

    def _update_object(self, name: str, metric: Any, output: Any, label: Any) -> None:
        before = {} if self._watched else get_hidden_state(metric)
        if name in self._reshaped:
            _check_output(name, metric, output)
            fitted = _fit_own(output, label)
            with nullcontext() if self._watched else _blaming(name, metric, output, fitted):
                metric.update(output, fitted)
        elif self._watched:
            metric.update(output, label)
        else:
            call_watched(f"metric {name!r}", metric.update, output, label, self._pairings[name])
        check_hidden(name, before, metric)

    def _flush(self) -> None:
        if not self._pending:
            return
        means, counts = zip(*self._pending, strict=True)
        losses = torch.stack(means).double()
        self._add_losses(losses, _stack(counts, losses.device))
        for name, parts in self._values.items():
            self._sums[name] += float(torch.stack(parts).sum())
            parts.clear()
        self._pending.clear()

    def _add_losses(self, means: torch.Tensor, weights: torch.Tensor) -> None:
        loss, weight = _add_up(means, weights).tolist()
        self._sums["loss"] += loss
        self._weight += weight


def _add_up(means: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum of losses, each times its weight, and that of the weights.

    A batch whose labels are all ignored has no mean, and does not count.
    """
    return torch.stack([torch.where(weights == 0, 0.0, means * weights).sum(), weights.sum()])


def detach(output: Any) -> Any:
    """Return an output without its graph: a tensor, or a dict, tuple or list of them.

    An object of any other class stays as it is: a metric may need its attributes.
    """
    if isinstance(output, torch.Tensor):
        return output.detach()
    if type(output) is dict:
        return {name: detach(part) for name, part in output.items()}
    if isinstance(output, tuple | list):
        parts = [detach(part) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output


def copy_output(output: Any) -> Any:
    """Return an output with copies of its tensors: a tensor, or a dict, tuple or list of them."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, output)


def _stack(weights: Sequence[Any], device: torch.device) -> torch.Tensor:
    if all(isinstance(weight, int) for weight in weights):
        return torch.tensor(weights, dtype=torch.float64, device=device)
    return torch.stack([torch.as_tensor(weight, dtype=torch.float64, device=device) for weight in weights])


def _add_rows(name: str, values: Any, label: Any, rows: int) -> torch.Tensor:
    """Return the sum of the values of all rows. If a row has a value for each of its parts, their mean counts."""
    if not isinstance(values, torch.Tensor | np.ndarray | np.generic | list | tuple | bool | int | float):
        raise ConfigurationError(
            f"metric {name!r} returned {values!r} of type {type(values).__name__}, but must return a tensor with a"
            " value a row: make a metric of each part of it"
        )
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


@contextmanager
def _blaming(name: str, metric: Any, *given: Any) -> Iterator[None]:
    """Say of an error inside the block which metric of torchmetrics has raised it, and what it was given."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        shapes = [f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}" for part in list_tensors(list(given))]
        of = f" for output and label of {' and '.join(shapes)}" if shapes else ""
        raise ConfigurationError(
            f"metric {name!r} ({type(metric).__name__}) has failed{of}: {error!r}. If labels should be of another kind"
            " (whole numbers instead of floats or bools), prepare them so, or make a class from the metric whose"
            " update(output, label) changes them and calls super().update"
        ) from error


def _check_output(name: str, metric: Any, output: Any) -> None:
    """Refuse several outputs for a metric of torchmetrics, which takes one."""
    picks = any(hasattr(part, "transform_pred") for part in metric.modules())
    if isinstance(output, dict | list | tuple) and not picks:
        parts = f" with {', '.join(map(repr, output))}" if isinstance(output, dict) else ""
        raise ConfigurationError(
            f"metric {name!r} ({type(metric).__name__}) takes one output, but the model gives a"
            f" {type(output).__name__}{parts}: make a class from it whose update(output, label) picks one and calls"
            " super().update"
        )


def _fit_own(output: Any, label: Any) -> Any:
    """Return a label as torchmetrics' own metrics take it: in the output's shape, or one class a row beside several."""
    is_column = isinstance(label, torch.Tensor) and label.ndim == 2 and label.shape[1] == 1
    if is_column and isinstance(output, torch.Tensor) and output.ndim > 1 and output.shape[1] > 1:
        return label[:, 0]
    return like_output(output, label)


def needs_equal_shapes(metric: Any) -> bool:
    """Whether a metric object is all torchmetrics' own: these need output and label in one shape."""
    kinds: list[Any] = []
    if isinstance(metric, torch.nn.Module):
        kinds = [type(part) for part in metric.modules() if is_metric_object(part)]
    return bool(kinds) and all(kind.update.__module__.startswith("torchmetrics.") for kind in kinds)


def _to_number(name: str, value: Any) -> float:
    single = value.numel() == 1 if isinstance(value, torch.Tensor) else getattr(value, "shape", None) == ()
    if single or isinstance(value, bool | int | float):
        return float(value)
    raise ConfigurationError(
        f"`compute` of metric {name!r} returned {value!r}, but must return one number: average it, or make a metric of"
        " each part"
    )
