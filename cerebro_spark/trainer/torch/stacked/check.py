"""Compares stacked steps with single ones, bit by bit. It decides nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.torch.shapes import row_count


class SingleRun(NamedTuple):
    """What some single steps of a member left.

    Attributes:
        results: For each batch the loss, how much it counts, and the output.
        tree: The state after them.
        generator: The state of PyTorch's generator after them.
        draws_on_host: Whether they drew numbers from Python's or NumPy's generator.
        seconds: The time of the fastest step.
    """

    results: list[tuple[Any, ...]]
    tree: Tree
    generator: torch.Tensor
    draws_on_host: bool
    seconds: float


class StepWitness:
    """Sees what a single step gives, as a collector of metrics does.

    Args:
        weigh: Returns how much the loss of a batch counts, as of MetricCollector.
    """

    def __init__(self, weigh: Callable[[Any, Any, int], Any]) -> None:
        self._weigh = weigh
        self.results: list[tuple[Any, ...]] = []

    @torch.no_grad()
    def add(self, loss: torch.Tensor, output: Any, label: Any) -> None:
        """Note a batch: its loss, how much it counts, and the output."""
        self.results.append((loss, self._weigh(output, label, row_count(label)), output))


def host_state() -> Any:
    """Return the states of Python's and NumPy's generators, to be compared."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), kind, np.asarray(keys).tobytes(), rest


def find_difference(one: Tree, other: Tree, path: str = "") -> str | None:
    """Return the place of the first difference of two trees, or None. NaN equals NaN.

    >>> find_difference({"a": [torch.zeros(2)]}, {"a": [-torch.zeros(2)]})
    'a/0'
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return None if _is_same(one, other) else path
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            return path
        return _first(find_difference(one[key], other[key], _join(path, key)) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return path
        pairs = enumerate(zip(one, other, strict=True))
        return _first(find_difference(a, b, _join(path, place)) for place, (a, b) in pairs)
    return None if one == other else path


def _first(found: Any) -> str | None:
    return next((place for place in found if place is not None), None)


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    same = one == other
    if one.is_floating_point():
        same = (same & (one.signbit() == other.signbit())) | (one.isnan() & other.isnan())
    return bool(same.all())
