"""A kernel for traces: adds a tensor times a number that is in a tensor. A trace would freeze the number otherwise."""

from __future__ import annotations

from typing import Any

import torch

_LIBRARY = torch.library.Library("cerebro_spark", "DEF")
_LIBRARY.define("add_scaled_(Tensor(a!) self, Tensor other, Tensor scale) -> Tensor(a!)")


def _add_scaled(target: torch.Tensor, other: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return target.add_(other, alpha=scale.item())


_LIBRARY.impl("add_scaled_", _add_scaled, "CPU")

ADD_SCALED = "cerebro_spark::add_scaled_"
"""The name of the kernel."""


def add_scaled_(target: torch.Tensor, other: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Do what `target.add_(other, alpha=scale)` does."""
    kernel: Any = torch.ops.cerebro_spark.add_scaled_
    added: torch.Tensor = kernel(target, other, scale)
    return added


def add_scaled_rows(target: torch.Tensor, other: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Do it for each member: at once if all have the same number, else row by row.

    Args:
        target: The tensors that are added to, a row a member.
        other: What is added, a row a member.
        scales: The number of each member, or one number of all of them.
    """
    numbers = scales.reshape(-1).tolist()
    if all(number == numbers[0] for number in numbers):
        return target.add_(other, alpha=numbers[0])
    for row, own, number in zip(target.unbind(0), other.unbind(0), numbers, strict=True):
        row.add_(own, alpha=number)
    return target
