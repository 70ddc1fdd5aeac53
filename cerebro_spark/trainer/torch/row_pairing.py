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
# Batches to try, until one tells.
_TRIES = 8
_RELATIVE, _ROUNDING = 1e-4, 1e-6


def compute_anew(metric: Any, output: Any, label: Any) -> Any:
    """Return what a metric object says of a batch alone. The object stays as it is."""
    fresh = copy.deepcopy(metric)
    fresh.reset()
    fresh.update(output, label)
    return fresh.compute()


class PairingCheck:
    """Refuses a metric or loss that combines each row with all others, as NumPy does with shapes (rows, 1) and (rows,).

    One that compares a row with its label gives another value if labels are moved to other rows. If it does so with
    both in shapes that go together, but not with both as they are, it stretches these over each other. So one that
    squeezes or broadcasts them itself is not refused. Nor is one that depends on no row's label, such as a mean of
    differences.

    Args:
        what: What the function is, for error messages.
        compute: Returns the value of a batch, or one of each row. It has no effects.

    Attributes:
        is_told: Whether the batches so far have told, if there were any. Rows that are all alike do not.
    """

    def __init__(self, what: str, compute: Compute) -> None:
        self._what = what
        self._compute = compute
        self._left = _TRIES
        self.is_told = True

    @torch.no_grad()
    def __call__(self, output: Any, label: Any) -> None:
        """Check the function with a few rows of a batch.

        Args:
            output: The outputs of the batch.
            label: Its label as it is stored.

        Raises:
            ConfigurationError: The function combines rows with other rows.
        """
        alike = [pair for pair in _reshape(output, label) if _shapes(*pair) != _shapes(output, label)]
        if not alike or _is_capturing():
            return
        rows = _pick_rows(next(list_tensors(label)))
        stored, *alike = [(take_rows(one, rows), take_rows(other, rows)) for one, other in [(output, label), *alike]]
        with keeping_generators(rows.device):
            seen = _sees_moves(self._compute, *stored)
            if seen is False and any(_sees_moves(self._compute, *each) for each in alike):
                raise stretched(self._what, *_first_difference(output, label), library="NumPy")
        self._left -= 1
        self.is_told = seen is not False or not self._left


def _reshape(output: Any, label: Any) -> Iterator[tuple[Any, Any]]:
    """Yield output and label in other shapes, in which a row of one goes with a row of the other."""
    yield output, like_output(output, label)
    yield like_output(label, output), label
    if isinstance(output, torch.Tensor) and isinstance(label, torch.Tensor) and output.ndim > 1:
        # One number a row beside several: a class beside its logits.
        if label.ndim == 2 and label.shape[1] == 1 and output.shape[1] > 1:
            yield output, label[:, 0]
        elif label.ndim == 1 and output.shape[1] > 1:
            yield output, label[:, None]


def _shapes(*values: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in list_tensors(values)]


def _first_difference(output: Any, label: Any) -> tuple[torch.Size, torch.Size]:
    outputs = list(list_tensors(output))
    fitted = zip(list_tensors(like_output(output, label)), list_tensors(label), strict=True)
    return next(((one.shape, two.shape) for one, two in fitted if one.shape != two.shape), None) or (
        outputs[0].shape,
        next(list_tensors(label)).shape,
    )


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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


def take_rows(value: Any, rows: torch.Tensor) -> Any:
    """Return these rows of the tensors in a value."""
    return tree_map(lambda part: part[rows] if isinstance(part, torch.Tensor) else part, value)


def _move(value: Any, places: int) -> Any:
    return tree_map(lambda part: part.roll(places, 0) if isinstance(part, torch.Tensor) else part, value)


@contextmanager
def keeping_generators(device: torch.device) -> Iterator[None]:
    """Put all default generators back after a block."""
    host = capture_host()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            restore_host(host)
