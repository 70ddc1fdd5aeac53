"""Whether the parts of a batch train what the whole batch trains: found by trying, with a real batch. Pure arithmetic.

The members of a group compute the outputs, losses and gradients of parts. Their sum is that of the whole batch if no
row's output depends on the others, and if the loss is a mean over rows. What no batch shows (a rare label that a loss
leaves out) must be found otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cerebro_spark.errors import CerebroError
from cerebro_spark.trainer.feed import Array, Batch
from cerebro_spark.types import Metrics

LEAST_ROWS = 8
"""The rows of a batch that is tried, where there are as many: of fewer some losses have no value."""
FINE_ROUNDING = 1e-5
"""What is rounded, as a share of the largest value, where float32 is what it says: on a CPU."""
ROUNDING = 1e-3
"""The same on a GPU, whose kernels may compute float32 with less."""
NARROW_ROUNDING = 5e-2
"""The same below float32."""
_GRADIENTS = 10
"""How many times as much as of an output may be rounded of a gradient, which is summed over all places."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model makes of a batch, from a given state.

    Attributes:
        outputs: What it gives for each row.
        loss: The loss of the batch.
        gradient: Its gradient by all that is trained; None where that was not computed. In training it is given only
            where nothing is drawn at random.
        statistics: What it keeps of the batches that it has seen, by name.
        metrics: The metrics of the batch.
        terms: The numbers of which the loss is the sum, as far as they are known: a small one hides in a large sum.
    """

    outputs: Sequence[Array]
    loss: float
    gradient: Array | None = None
    statistics: Mapping[str, Array] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    terms: Sequence[float] = ()


Try = Callable[[Batch, bool], Probe]
"""Returns what comes of a batch, while training or not; always from the same state, generators included."""


def find_obstacle(batch: Batch, attempt: Try, rounding: float) -> str | None:
    """Return why parts of a batch do not train what the whole batch trains; None if they do.

    Args:
        batch: A real batch of two rows at least.
        attempt: Tries a batch.
        rounding: What the model rounds, as a share of the largest value.
    """
    rows = np.arange(len(next(iter(batch.values()))))
    # Parts of many rows are much alike: there what is no mean over rows (the root of a mean) hides in the rounding.
    few = _take(batch, rows[:LEAST_ROWS])
    found = _try_single_row(few, attempt) or _try_evaluating(few, 1, attempt, rounding)
    if found is None and len(rows) > LEAST_ROWS:
        found = _try_evaluating(batch, _cut(len(rows)), attempt, rounding)
    return found or _try_training(few, attempt, rounding)


def _try_single_row(batch: Batch, attempt: Try) -> str | None:
    """Return why a member could not give a single row, as each does now and then: elsewhere no batch is so small."""
    try:
        attempt(_take(batch, np.arange(1)), False)
    except CerebroError:
        raise
    except Exception as error:  # of the model, the loss or a metric
        first_line = (str(error).splitlines() or [""])[0]
        return (
            "it fails with a batch of a single row, as members of a group get it now and then"
            f" ({type(error).__name__}: {first_line}): if that is a `squeeze`, name its dimension"
        )
    return None


def _try_evaluating(batch: Batch, cut: int, attempt: Try, rounding: float) -> str | None:
    """Return why parts of a batch do not train what the whole trains, as far as that shows outside of training.

    Args:
        batch: The batch.
        cut: How many rows its first part has.
        attempt: Tries a batch.
        rounding: What the model rounds.
    """
    rows = np.arange(len(next(iter(batch.values()))))
    first, rest = _take(batch, rows[:cut]), _take(batch, rows[cut:])
    weights = [cut / len(rows), 1 - cut / len(rows)]
    whole = attempt(batch, False)
    found = _compare_parts(whole, [attempt(first, False), attempt(rest, False)], weights, rounding)
    if found is not None:
        return found
    # Parts may have as many rows of each class as the whole, by chance, but hardly twice.
    chosen = rows % 3 == 0
    parts = [attempt(_take(batch, rows[places]), False) for places in (chosen, ~chosen)]
    return _compare_sums(whole, parts, [float(chosen.mean()), float(1 - chosen.mean())], rounding)


def _try_training(batch: Batch, attempt: Try, rounding: float) -> str | None:
    """Return why parts of a batch do not train what the whole trains, as far as training differs from evaluating."""
    rows = np.arange(len(next(iter(batch.values()))))
    cut = _cut(len(rows))
    # The same number of rows, so that the same random numbers are drawn; but after the first ones there are others.
    others = _take(batch, np.where(rows < cut, rows, 0))
    whole, first = attempt(batch, True), attempt(_take(batch, rows[:cut]), True)
    found = _compare_training(whole, attempt(others, True), first, cut, rounding)
    if found is not None or whole.gradient is None:
        return found
    # Nothing is drawn at random: so what is trained can be compared, as what is evaluated was.
    weights = [cut / len(rows), 1 - cut / len(rows)]
    return _compare_parts(whole, [first, attempt(_take(batch, rows[cut:]), True)], weights, rounding)


def find_mixing(whole: Batch, parts: Sequence[Batch]) -> str | None:
    """Return the name of a column of which `input_fn` makes something else in parts of a batch; None if there is none.

    >>> find_mixing({"x": np.arange(3.0)}, [{"x": np.array([0.0])}, {"x": np.array([1.0, 2.5])}])
    'x'
    """
    for name, array in whole.items():
        one, others = np.asarray(array), [np.asarray(part[name]) for part in parts]
        if any(other.shape[1:] != one.shape[1:] for other in others):
            return name
        if not _is_close(one, np.concatenate(others), ROUNDING):
            return name
    return None


def find_reshaped(first: Batch, other: Batch) -> str | None:
    """Return the name of a column whose rows have another shape, or dtype, in another batch; None if there is none.

    >>> find_reshaped({"x": np.zeros((4, 9))}, {"x": np.zeros((2, 7))})
    'x'
    """
    pairs = ((name, np.asarray(array), np.asarray(other[name])) for name, array in first.items())
    return next((name for name, one, two in pairs if (one.shape[1:], one.dtype) != (two.shape[1:], two.dtype)), None)


def _compare_parts(whole: Probe, parts: Sequence[Probe], weights: Sequence[float], rounding: float) -> str | None:
    """Return in what a batch, not in training, differs from its parts."""
    joined = zip(whole.outputs, _join(parts), strict=False)
    if not _are_close(((one, other) for one, other in joined if other is not None), rounding):
        return "what its model gives for a row depends on the other rows of the batch"
    found = _compare_sums(whole, parts, weights, rounding)
    if found is not None:
        return found
    name = _find_metric(whole.metrics, Metrics.merge(part.metrics for part in parts), rounding)
    return None if name is None else f"its metric {name!r} does not add up over the parts of a batch"


def _compare_sums(whole: Probe, parts: Sequence[Probe], weights: Sequence[float], rounding: float) -> str | None:
    """Return what of a batch's loss and gradient is not the mean over its parts."""
    if any(len(part.terms) != len(whole.terms) for part in parts):
        return "how many losses it adds depends on the rows of a batch"
    # Before the whole loss, of which they are a part: so the reason says where it comes from.
    for number, term in enumerate(whole.terms):
        found = _compare_loss("a loss that it adds", term, [part.terms[number] for part in parts], weights, rounding)
        if found is not None:
            return found
    found = _compare_loss("its loss", whole.loss, [part.loss for part in parts], weights, rounding)
    if found is not None:
        return found
    if not _is_sum(whole.gradient, [part.gradient for part in parts], weights, _GRADIENTS * rounding):
        return "the gradient of a batch is not that of its parts: something in its model changes gradients on their way"
    return None


def _compare_loss(
    name: str, whole: float, parts: Sequence[float], weights: Sequence[float], rounding: float
) -> str | None:
    """Return in what a loss of a batch differs from the mean over its rows."""
    mean = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    if _is_near(whole, mean, rounding, max(abs(part) for part in parts)):
        return None
    return (
        f"{name} is no mean over rows: it is {whole:.6g} for a batch, and {mean:.6g} by the means of two parts of it (a"
        " sum, a mean weighted by class, and a loss that compares rows are none)"
    )


def _compare_training(whole: Probe, others: Probe, part: Probe, cut: int, rounding: float) -> str | None:
    """Return what, while training, depends on which other rows are in a batch, or on how many."""
    both = zip(whole.outputs, others.outputs, strict=False)
    if not _are_close(((one[:cut], other[:cut]) for one, other in both if one.ndim and other.ndim), rounding):
        return "what its model gives for a row while training depends on the other rows of the batch"
    for name, array in whole.statistics.items():
        if any(probe.statistics[name].tobytes() != array.tobytes() for probe in (others, part)):
            return f"it keeps a statistic of its batches, {name!r}, which is not that of their parts"
    return None


def _cut(rows: int) -> int:
    """Return the size of the first part: parts are of different sizes, since the mean of two halves is right by chance.

    >>> _cut(2), _cut(8)
    (1, 2)
    """
    return max(1, rows // 3)


def _take(batch: Batch, rows: Array) -> Batch:
    return {name: np.asarray(array)[rows] for name, array in batch.items()}


def _join(parts: Sequence[Probe]) -> Iterator[Array | None]:
    """Yield the outputs of parts one below the other; None for what is not by rows."""
    for arrays in zip(*(part.outputs for part in parts), strict=False):
        alike = len({array.shape[1:] for array in arrays}) == 1 and all(array.ndim for array in arrays)
        yield np.concatenate(arrays) if alike else None


def _are_close(pairs: Iterable[tuple[Array, Array]], rounding: float) -> bool:
    """Whether the arrays of each pair are equal but for rounding; a pair of different shapes is not by rows."""
    return all(_is_close(one, other, rounding) for one, other in pairs if one.shape == other.shape)


def _is_close(one: Array, other: Array, rounding: float) -> bool:
    """Whether two arrays of one shape are equal but for rounding, which goes by their largest value."""
    if one.dtype.kind not in "fc":
        return np.array_equal(one, other)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return False
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    left, right = one[finite].astype(kind), other[finite].astype(kind)
    size = float(np.abs(left).max(initial=0.0))
    return float(np.abs(left - right).max(initial=0.0)) <= rounding * size


def _is_near(one: float, other: float, rounding: float, size: float) -> bool:
    if not np.isfinite(one):
        return True  # nothing can be told by it, and the unit fails anyway
    if not np.isfinite(other):
        return False  # a part has no value where the whole has one: a mean over those rows that count
    return abs(one - other) <= rounding * max(abs(one), abs(other), size)


def _is_sum(whole: Array | None, parts: Sequence[Array | None], weights: Sequence[float], rounding: float) -> bool:
    if whole is None:
        return True
    total: Any = sum(weight * part for weight, part in zip(weights, parts, strict=True) if part is not None)
    # Gradients of parts may cancel out each other, and are rounded before.
    size = max(float(np.linalg.norm(gradient)) for gradient in (whole, *parts) if gradient is not None)
    return not np.isfinite(size) or float(np.linalg.norm(whole - total)) <= rounding * size


def _find_metric(whole: Metrics, merged: Metrics, rounding: float) -> str | None:
    """Return the name of a metric that is not, for a batch, the sum of those of its parts."""
    for name, total in whole.sums.items():
        size = max(abs(total), abs(whole.weights[name]))
        if not _is_near(total, merged.sums[name], rounding, size):
            return name
        if not _is_near(whole.weights[name], merged.weights[name], 1e-6, 0.0):
            return name
    for name, state in whole.states.items():
        if not _is_close(np.array(state), np.array(merged.states[name]), rounding):
            return name
    return None
