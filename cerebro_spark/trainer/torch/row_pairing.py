"""Finds metrics that leave PyTorch and combine rows with other rows there. It computes them again, and changes none."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

from cerebro_spark.trainer.checkpoints.randomness import capture_host, restore_host
from cerebro_spark.trainer.torch.shapes import like_output, list_tensors, stretched

Compute = Callable[[Any, Any], Any]

# A metric is computed again for these rows: so few that rounding cannot be taken for another value.
_ROWS = 16
# By how many places labels are moved. Labels are sorted by then: half of the rows away are others.
_MOVES = (1, 2, 4, 8)
_RELATIVE, _ROUNDING = 1e-4, 1e-6


def compute_anew(metric: Any, output: Any, label: Any) -> Any:
    """Return what a metric object says of a batch alone. The object stays as it is."""
    fresh = copy.deepcopy(metric)
    fresh.reset()
    fresh.update(output, label)
    return fresh.compute()


@torch.no_grad()
def check_pairing(what: str, compute: Compute, output: Any, label: Any) -> None:
    """Refuse a metric that combines each row with all others, as NumPy does with shapes (rows, 1) and (rows,).

    A metric that compares a row with its label gives another value if labels are moved to other rows. If it does so
    with both in one shape, but not with both as they are, it stretches these over each other. So a metric that squeezes
    or broadcasts them itself is not refused. Nor is one that depends on no row's label, such as a mean of differences.

    Args:
        what: What the metric is, for error messages.
        compute: Returns the value of a batch, or one of each row. It has no effects.
        output: The outputs of a batch.
        label: Its label as it is stored.

    Raises:
        ConfigurationError: It combines rows with other rows.
    """
    fitted = like_output(output, label)
    pairs = zip(list_tensors(fitted), list_tensors(label), strict=True)
    shapes = [(one.shape, other.shape) for one, other in pairs if one.shape != other.shape]
    if not shapes:
        return
    rows = _pick_rows(next(list_tensors(label)))
    alike = [(output, fitted), (like_output(label, output), label)]
    stored, *alike = [(_take(one, rows), _take(other, rows)) for one, other in [(output, label), *alike]]
    with _keeping_generators(rows.device):
        if _sees_moves(compute, *stored) is False and any(_sees_moves(compute, *each) for each in alike):
            raise stretched(what, *shapes[0], library="NumPy")


def _sees_moves(compute: Compute, output: Any, label: Any) -> bool | None:
    """Whether a metric gives another value if labels are moved to other rows; None if it cannot be computed."""
    rows = len(next(list_tensors(label)))
    try:
        size = max(float(part.double().abs().max()) for part in list_tensors((output, label)))
        still, *moved = (_to_number(compute(output, _move(label, by))) for by in (0, *_MOVES) if by < rows)
    except Exception:
        return None  # it takes only other shapes, has no value of so few rows, or cannot be copied
    return not all(_is_same(still, value, _ROUNDING * rows**2 * size) for value in moved)


def _is_same(one: float, other: float, rounding: float) -> bool:
    return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=rounding) or (math.isnan(one) and math.isnan(other))


def _to_number(value: Any) -> float:
    """Return what counts of a value: it is summed over rows."""
    return float(torch.as_tensor(value).double().sum())


def _pick_rows(label: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a few rows with labels as different as there are."""
    order = label.reshape(len(label), -1)[:, 0].argsort(stable=True)
    places = torch.linspace(0, len(order) - 1, min(_ROWS, len(order)), device=order.device)
    return order[places.round().long()]


def _take(value: Any, rows: torch.Tensor) -> Any:
    return tree_map(lambda part: part[rows] if isinstance(part, torch.Tensor) else part, value)


def _move(value: Any, places: int) -> Any:
    return tree_map(lambda part: part.roll(places, 0) if isinstance(part, torch.Tensor) else part, value)


@contextmanager
def _keeping_generators(device: torch.device) -> Iterator[None]:
    host = capture_host()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            restore_host(host)
