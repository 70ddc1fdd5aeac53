"""Finds metric objects whose value depends on how rows are cut into batches, and says so. It changes none of them."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import torch

from cerebro_spark.trainer.torch.row_pairing import compute_anew, keeping_generators, take_rows
from cerebro_spark.trainer.torch.shapes import list_tensors

_log = logging.getLogger(__name__)

_FEWEST_ROWS = 6
_RELATIVE = 1e-3
_tried: set[tuple[str, str]] = set()


@torch.no_grad()
def tell_dependence(name: str, metric: Any, output: Any, label: Any) -> None:
    """Say if a metric object gives another value for a batch than for its rows in two batches of different sizes.

    A metric is tried once in a process, with copies.
    """
    tried, rows = (name, type(metric).__qualname__), len(next(list_tensors(label), ()))
    if tried in _tried or rows < _FEWEST_ROWS or _is_large(metric):
        return
    _tried.add(tried)
    places = torch.arange(rows, device=next(list_tensors(label)).device)
    with keeping_generators(places.device):
        try:
            whole = float(compute_anew(metric, output, label))
            cut = _compute_in_parts(metric, output, label, places.split([rows // 3, rows - rows // 3]))
        except Exception as error:  # it cannot be copied, or has no value of so few rows
            _log.debug("metric %r was not tried with other batches: %r", name, error)
            return
    if math.isfinite(whole) and math.isfinite(cut) and not math.isclose(whole, cut, rel_tol=_RELATIVE, abs_tol=1e-6):
        _log.warning(
            "metric %r (%s) gives %.6g for a batch, and %.6g for the same rows in two batches: what it says of a"
            " partition depends on the batch size, and trials with different ones cannot be compared by it. Let it sum"
            " over rows, and divide by their number in `compute`",
            *(name, type(metric).__name__, whole, cut),
        )


def _is_large(metric: Any) -> bool:
    """Whether a metric has a network of its own, as some of images have: they are slow, and sum over rows."""
    return isinstance(metric, torch.nn.Module) and next(metric.parameters(), None) is not None


def _compute_in_parts(metric: Any, output: Any, label: Any, parts: Any) -> float:
    fresh = copy.deepcopy(metric)
    fresh.reset()
    for rows in parts:
        fresh.update(take_rows(output, rows), take_rows(label, rows))
    return float(fresh.compute())
